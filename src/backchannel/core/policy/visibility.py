"""Visibility: the sessions that a caller may see.

One rule guards list, history, send and status. A `Viewer` is a caller with all the settings that bear on it.
`sees` decides about one session, with a reason that may be shown to the caller; `scope` is the same rule as a
condition of a query. The two agree for every input: change them together.

Each mode includes the one before:

- `self`: the session itself.
- `tree`: the sessions it spawned, whatever their agent.
- `agent`: every session of its agent.
- `all`: other agents' sessions, as `tools.agentToAgent` permits.

A sandboxed session never sees more than `tree` while `sandbox.sessionToolsVisibility` is `spawned`. An operator sees
everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, Self, TypeAlias

from backchannel.core.caller_keys import CallerKeys
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.policy.decisions import Decision, quote
from backchannel.core.settings import Settings, setting
from backchannel.core.text import matches

Visibility: TypeAlias = Literal["self", "tree", "agent", "all"]
SandboxMode: TypeAlias = Literal["off", "non-main", "all"]
SandboxVisibility: TypeAlias = Literal["spawned", "all"]

VISIBILITY = "tools.sessions.visibility"
SANDBOX_VISIBILITY = "agents.defaults.sandbox.sessionToolsVisibility"
TALK_ENABLED = "tools.agentToAgent.enabled"
TALK_ALLOW = "tools.agentToAgent.allow"


class Mode(StrEnum):
    """How far a session sees, from the least to the most."""

    SELF = "self"
    TREE = "tree"
    AGENT = "agent"
    ALL = "all"

    @property
    def rank(self) -> int:
        return _RANKS[self]

    def includes(self, other: Mode) -> bool:
        """Whether everything that the other mode shows is shown by this one too."""
        return self.rank >= other.rank


_RANKS = {mode: rank for rank, mode in enumerate(Mode)}


class AgentToAgentSettings(Settings, frozen=True, kw_only=True):
    """Whether sessions of different agents may reach each other."""

    enabled: Annotated[bool, setting("Whether an agent's session may reach another agent's.")] = False
    allow: Annotated[
        tuple[str, ...] | None,
        setting("Patterns that both agents must match; `*` is a wildcard. Unset: all; empty: nobody."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SightSettings:
    """What the settings of an agent say about the view of its sessions."""

    visibility: Visibility
    sandbox_mode: SandboxMode
    sandbox_visibility: SandboxVisibility


_APART = AgentToAgentSettings()
"""Agents keep to themselves, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A caller, with what decides about its view; `caller` is None for the operator."""

    caller: SessionKey | None
    setting: Mode = Mode.TREE
    """What `tools.sessions.visibility` says for its agent, before the sandbox has its say."""
    is_sandboxed: bool = False
    is_clamped: bool = False
    """Sandboxed, with `sessionToolsVisibility: "spawned"`: it never sees more than `tree`."""
    talk: AgentToAgentSettings = _APART
    shown: str | None = None
    """The caller's key as others may write it, where it is not the stored one."""

    @classmethod
    def of(cls, caller: SessionKey, scheme: KeyScheme, sight: SightSettings, talk: AgentToAgentSettings) -> Self:
        """Join a session and its agent's settings."""
        sandboxed = is_sandboxed(caller, scheme, sight.sandbox_mode)
        in_force = scheme.in_force(caller)
        shown = CallerKeys(scheme, None).show(in_force)
        return cls(
            caller=in_force,
            setting=Mode(sight.visibility),
            is_sandboxed=sandboxed,
            is_clamped=sandboxed and sight.sandbox_visibility == "spawned",
            talk=talk,
            shown=None if shown == str(in_force) else shown,
        )

    @property
    def mode(self) -> Mode:
        """The mode in force, after the sandbox clamp."""
        if self.caller is None:
            return Mode.ALL
        return Mode.TREE if self.is_clamped and self.setting.includes(Mode.TREE) else self.setting

    @property
    def hides_existence(self) -> bool:
        """Whether a session that does not exist must look to it like one that it may not see: use `unseen`."""
        return self.is_sandboxed


OPERATOR = Viewer(None)


@dataclass(frozen=True, slots=True)
class VisibleScope:
    """What a viewer sees, as a query: `key = ? OR spawned_by = ? OR agent_id IN (…)`, or no condition at all."""

    everything: bool = False
    key: str | None = None
    spawned_by: str | None = None
    agent_ids: tuple[str, ...] = ()

    def includes(self, key: SessionKey, spawned_by: str | None) -> bool:
        """Whether the query gives this row."""
        return (
            self.everything
            or str(key) == self.key
            or (spawned_by is not None and spawned_by == self.spawned_by)
            or key.agent in self.agent_ids
        )


def is_sandboxed(key: SessionKey, scheme: KeyScheme, mode: SandboxMode) -> bool:
    """Whether a session runs sandboxed under its agent's `sandbox.mode`."""
    return mode == "all" or (mode == "non-main" and not scheme.is_main(key))


def may_talk(agent: str, other: str, talk: AgentToAgentSettings) -> Decision:
    """Decide whether sessions of one agent may reach those of another; both must match the same list."""
    if agent == other:
        return Decision(True, f"both sessions are of agent {agent}")
    if not talk.enabled:
        return Decision(False, f"{TALK_ENABLED} is false (true would allow it)", TALK_ENABLED)
    if talk.allow is None:
        return Decision(True, f"{TALK_ENABLED} is true, and {TALK_ALLOW} is not set: all agents may", TALK_ENABLED)
    missing = [name for name in (agent, other) if not any(matches(pattern, name) for pattern in talk.allow)]
    if not missing:
        return Decision(True, f"{TALK_ALLOW} {quote(talk.allow)} has both {agent} and {other}", TALK_ALLOW)
    patterns = " and ".join(map(quote, missing))
    return Decision(False, f"{TALK_ALLOW} is {quote(talk.allow)} (adding {patterns} would allow it)", TALK_ALLOW)


def sees(viewer: Viewer, target: SessionKey, spawned_by: str | None) -> Decision:
    """Decide whether the viewer sees a session, with a reason that may be shown to it.

    A caller that must not learn what exists gets the same refusal whatever the target is: see `unseen`.
    """
    decision = explain(viewer, target, spawned_by)
    return unseen(viewer) if viewer.hides_existence and not decision.allowed else decision


def unseen(viewer: Viewer) -> Decision:
    """Refuse without telling whether the session exists: the text depends on the viewer alone."""
    wider = " or ".join(quote(mode) for mode in Mode if not viewer.setting.includes(mode))
    settings = [f"{VISIBILITY} is {quote(viewer.setting)}" + (f" ({wider} would show more)" if wider else "")]
    if viewer.is_clamped:
        settings.append(f'{SANDBOX_VISIBILITY} is "spawned", which stops at "tree" ("all" would not)')
    if viewer.mode is Mode.ALL:
        settings.append(f"{TALK_ENABLED} is {quote(viewer.talk.enabled)}, {TALK_ALLOW} is {quote(viewer.talk.allow)}")
    reason = f"no such session is visible to this sandboxed session: {'; '.join(settings)}"
    return Decision(False, reason, SANDBOX_VISIBILITY if viewer.is_clamped else VISIBILITY)


def explain(viewer: Viewer, target: SessionKey, spawned_by: str | None) -> Decision:
    """Decide as `sees` does, with the whole reason: for operators, and for logs."""
    caller = viewer.caller
    if caller is None:
        return Decision(True, "an operator sees every session")
    needed = _needed(caller, target, spawned_by)
    if needed is Mode.SELF:
        return Decision(True, "it is the calling session itself")
    refusals = list(_refusals(viewer, caller, target, needed))
    if refusals:
        what = f"{_RELATIONS[needed]} is not visible to {viewer.shown or caller}"
        return Decision(False, f"{what}: {'; '.join(reason for _, reason in refusals)}", refusals[0][0])
    reason = f"{_RELATIONS[needed]} is visible: {VISIBILITY} is {quote(viewer.setting)}"
    if needed is Mode.ALL:
        reason += f", and {may_talk(caller.agent, target.agent, viewer.talk).reason}"
    return Decision(True, reason, VISIBILITY)


_RELATIONS = {
    Mode.TREE: "a session that it spawned",
    Mode.AGENT: "another session of its agent",
    Mode.ALL: "a session of another agent",
}


def _needed(caller: SessionKey, target: SessionKey, spawned_by: str | None) -> Mode:
    """The least mode that could show the target."""
    if target == caller:
        return Mode.SELF
    if spawned_by == str(caller):
        return Mode.TREE
    return Mode.AGENT if target.agent == caller.agent else Mode.ALL


def _refusals(viewer: Viewer, caller: SessionKey, target: SessionKey, needed: Mode) -> Iterable[tuple[str, str]]:
    """Name every setting that stands in the way: changing one of two would not be enough."""
    if not viewer.setting.includes(needed):
        yield VISIBILITY, f"{VISIBILITY} is {quote(viewer.setting)} ({quote(needed)} would allow it)"
    if viewer.is_clamped and not Mode.TREE.includes(needed):
        reason = f'{SANDBOX_VISIBILITY} is "spawned", and the caller runs sandboxed ("all" would allow it)'
        yield SANDBOX_VISIBILITY, reason
    if needed is Mode.ALL:
        talk = may_talk(caller.agent, target.agent, viewer.talk)
        if not talk.allowed:
            yield talk.rule or TALK_ENABLED, talk.reason


def scope(viewer: Viewer, agent_ids: Iterable[str]) -> VisibleScope:
    """Turn the rule into a query; `agent_ids` names every agent that is configured or has sessions."""
    caller = viewer.caller
    if caller is None:
        return VisibleScope(everything=True)
    key, mode = str(caller), viewer.mode
    agents = [caller.agent] if mode.includes(Mode.AGENT) else []
    if mode is Mode.ALL:
        others = sorted(set(agent_ids) - {caller.agent})
        agents += [other for other in others if may_talk(caller.agent, other, viewer.talk).allowed]
    return VisibleScope(
        key=key,
        spawned_by=key if mode.includes(Mode.TREE) else None,
        agent_ids=tuple(agents),
    )


def is_restricted(viewer: Viewer, agent_ids: Iterable[str]) -> bool:
    """Whether there can be sessions that the viewer does not see; `agent_ids` as for `scope`."""
    if viewer.caller is None:
        return False
    agents = {viewer.caller.agent, *agent_ids}
    return not agents <= set(scope(viewer, agents).agent_ids)
