"""Settings of older generations, and their names today.

Older files are read as they are. `modernise` puts every setting where it stands today, so that the schema knows one
name for each. It notes each move as a warning, and `migrating` makes the same moves in the text. Where a setting is
given under its new name too, that one holds. `origins` leads from today's path back to the one in the file, because
errors name what was written.

The moves, older name first:

- `match.surface`, then `match.provider`, in `session.sendPolicy.rules[]` and `bindings[]`: `match.channel`.
- `agent.…`: `agents.defaults.…`.
- `agent.subagents.tools`: `tools.subagents.tools`.
- `routing.agents.<id>`: the entry of `agents.list[]` with that id.
- `routing.agentToAgent`: `tools.agentToAgent`.
- `routing.bindings`: `bindings`.
- `session.resetByType`: `session.reset.byType`, and in it `dm`: `direct`.
- `session.idleMinutes`: `session.reset.idleMinutes`; without a `reset`, its mode is `idle`.
- `dmPolicy: "pairing"` in `channels.<name>`: `pairing: true`. `"allowlist"` is what holds without it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec.structs import fields

from backchannel.config.findings import MAX_FINDINGS, show_path
from backchannel.config.schema import ConfigFile
from backchannel.config.source import trace
from backchannel.config.validation import describe_value_type, kind_of
from backchannel.core.keys import normalise_agent_id
from backchannel.core.settings import SettingIssue, SettingPath
from backchannel.core.text import nearest
from backchannel.errors import UnknownAgent

Fate: TypeAlias = Literal["moved", "renamed", "ignored", "needless", "empty"]

ROUTING = ("agents", "agentToAgent", "bindings")
"""What is read of the older group `routing`."""

_OLDER_THAN_CHANNEL = ("provider", "surface")  # the newer one first: it wins over the other
_DM_POLICY = "dmPolicy"
_NO_LONGER = {"defaultAgentId": "today the agent's entry in `agents.list` has `default: true`"}


class Move(NamedTuple):
    """A setting under an older name: where it stands in the file, its place today if any, and what becomes of it.

    What is `renamed` stays in its group, which may itself be moved. The last three are left out: they are given
    under a newer name, say what is said already, or hold nothing.
    """

    old: SettingPath
    new: SettingPath
    fate: Fate = "moved"
    value: str | None = None
    """What is written for it today, where a renamed setting says that in another way."""

    @property
    def is_left_out(self) -> bool:
        """Whether nothing of it holds."""
        return self.fate not in ("moved", "renamed")


@dataclass(slots=True)
class SettingsModernised:
    """Settings under today's names, and how they came there."""

    raw: dict[str, Any]
    moves: list[Move] = field(default_factory=list)
    errors: list[SettingIssue] = field(default_factory=list)
    origins: dict[SettingPath, SettingPath] = field(default_factory=dict)

    def note(self, move: Move) -> None:
        """Remember a move, and where its setting came from."""
        self.moves.append(move)
        if not move.is_left_out:
            self.origins[move.new] = move.old

    @property
    def issues(self) -> list[SettingIssue]:
        """A warning for each older name, and what could not be read."""
        warnings = [SettingIssue("warning", move.old, self._warning(move)) for move in self.moves[:MAX_FINDINGS]]
        if len(self.moves) > MAX_FINDINGS:
            warnings.append(SettingIssue("warning", (), f"and {len(self.moves) - MAX_FINDINGS} more older names"))
        return self.errors + warnings

    def _warning(self, move: Move) -> str:
        today = f"an older name for `{show_path(move.new)}`"
        match move.fate:
            case "ignored":
                return f"{today}, and ignored: a newer name is given too"
            case "needless" if move.old[-1] == _DM_POLICY:
                return "not needed: whoever is in `allowFrom` or `owners` is answered, and nobody else"
            case "needless":
                return "not needed: the agent stands under its id"
            case "empty":
                return "an older name, and there is nothing in it"
        return f"{today}: `backchannel config migrate` rewrites it"


def modernise(raw: dict[str, Any]) -> SettingsModernised:
    """Put every setting where it stands today."""
    modern = SettingsModernised(_copied(raw))
    for name, read in (("agent", _read_agent), ("routing", _read_routing)):
        if name in modern.raw:
            group = modern.raw.pop(name)
            if _is_object(modern, group, (name,)):
                read(modern, group)
    for path in (("session", "sendPolicy", "rules"), ("bindings",)):
        _rename_in_matches(modern, path)
    _read_resets(modern)
    channels = modern.raw.get("channels")
    for name, channel in channels.items() if isinstance(channels, dict) else ():
        if isinstance(channel, dict):
            _read_dm_policy(modern, channel, ("channels", name))
    return modern


def _read_resets(modern: SettingsModernised) -> None:
    """Read when sessions begin anew. `idleMinutes` alone means that they do so after that time."""
    session, reset = modern.raw.get("session"), ("session", "reset")
    if not isinstance(session, dict):
        return
    if "idleMinutes" in session:
        minutes, old = session.pop("idleMinutes"), ("session", "idleMinutes")
        if "reset" in session or "resetByType" in session:
            _put(modern, minutes, old, (*reset, "idleMinutes"))
        else:
            session["reset"] = {"mode": "idle", "idleMinutes": minutes}
            modern.origins[*reset, "idleMinutes"] = old
            modern.note(Move(old, reset, "renamed", f'{{ mode: "idle", idleMinutes: {json.dumps(minutes)} }}'))
    if "resetByType" in session:
        _put(modern, session.pop("resetByType"), ("session", "resetByType"), (*reset, "byType"))
    types = session["reset"].get("byType") if isinstance(session.get("reset"), dict) else None
    if isinstance(types, dict) and "dm" in types:
        path = (*reset, "byType")
        fate: Fate = "ignored" if "direct" in types else "renamed"
        types.setdefault("direct", types.pop("dm"))
        modern.note(Move(trace((*path, "dm"), modern.origins), (*path, "direct"), fate))


def _read_dm_policy(modern: SettingsModernised, channel: dict[str, Any], path: SettingPath) -> None:
    """Read who may begin a direct chat. Other words than these are unknown, and told as such."""
    old, new = (*path, _DM_POLICY), (*path, "pairing")
    match channel.get(_DM_POLICY):
        case "allowlist":
            modern.note(Move(old, (), "needless"))
        case "pairing" if "pairing" in channel:
            modern.note(Move(old, new, "ignored"))
        case "pairing":
            channel["pairing"] = True
            modern.note(Move(old, new, "renamed", "true"))
        case _:
            return
    del channel[_DM_POLICY]


def _rename_in_matches(modern: SettingsModernised, path: tuple[str, ...]) -> None:
    listed: Any = modern.raw
    for name in path:
        listed = listed.get(name) if isinstance(listed, dict) else None
    for index, item in enumerate(listed if isinstance(listed, list) else ()):
        match = item.get("match") if isinstance(item, dict) else None
        if isinstance(match, dict):
            _rename_in_match(modern, match, (*path, index, "match"))


def _rename_in_match(modern: SettingsModernised, match: dict[str, Any], path: SettingPath) -> None:
    for name in _OLDER_THAN_CHANNEL:
        if name in match:
            value = match.pop(name)
            fate: Fate = "ignored" if "channel" in match else "renamed"
            match.setdefault("channel", value)
            modern.note(Move(trace((*path, name), modern.origins), (*path, "channel"), fate))


def _read_agent(modern: SettingsModernised, agent: dict[str, Any]) -> None:
    subagents = agent.get("subagents")
    if not isinstance(subagents, dict) or "tools" not in subagents:
        _put(modern, agent, ("agent",), ("agents", "defaults"))
        return
    tools = subagents.pop("tools")
    if not subagents:
        del agent["subagents"]
    if agent:
        _put(modern, agent, ("agent",), ("agents", "defaults"))
    # Last, because it lies inside what has just been moved: `rewriting` takes it out first.
    _put(modern, tools, ("agent", "subagents", "tools"), ("tools", "subagents", "tools"))


def _read_routing(modern: SettingsModernised, routing: dict[str, Any]) -> None:
    if not routing:
        modern.note(Move(("routing",), (), "empty"))
    for name, value in routing.items():
        path = ("routing", name)
        match name:
            case "agents":
                if _is_object(modern, value, path):
                    _read_agents(modern, value)
            case "agentToAgent":
                _put(modern, value, path, ("tools", "agentToAgent"))
            case "bindings":
                _put(modern, value, path, ("bindings",))
            case _:
                modern.errors.append(SettingIssue("error", path, _unknown(name)))


def _unknown(name: str) -> str:
    if hint := _NO_LONGER.get(name):
        return f"unknown setting; {hint}"
    if close := nearest(name, ROUTING):
        return f"unknown setting; did you mean `{close}`?"
    return f"unknown setting; of the older group `routing` these are read: {', '.join(ROUTING)}"


def _read_agents(modern: SettingsModernised, agents: dict[str, Any]) -> None:
    """Put each agent into the list: its name becomes the id, and an entry that has this id is completed."""
    if not agents:
        modern.note(Move(("routing", "agents"), (), "empty"))
    group = modern.raw.get("agents", {})
    listed = group.get("list", []) if isinstance(group, dict) else None
    if not isinstance(listed, list):
        what = "cannot be put into `agents.list`, which is no list"
        modern.errors.append(SettingIssue("error", ("routing", "agents"), what))
        return
    known = {_id(item.get("id")): index for index, item in enumerate(listed) if isinstance(item, dict)}
    for name, value in agents.items():
        old = ("routing", "agents", name)
        if not _is_object(modern, value, old) or not _has_own_id(modern, value, name):
            continue
        if (index := known.get(_id(name))) is not None:
            _merge(modern, listed[index], value, Move(old, ("agents", "list", index)))
            continue
        new = ("agents", "list", len(listed))
        listed.append({"id": written_id(name), **value})
        modern.note(Move(old, new))
        modern.origins[*new, "id"] = old
    if listed:
        modern.raw["agents"] = {**group, "list": listed}


def written_id(name: str) -> str:
    """An agent's name as the text of its `id`, where `${` would be taken for a variable."""
    return name.replace("${", "$${")


def _has_own_id(modern: SettingsModernised, agent: dict[str, Any], name: str) -> bool:
    """Whether an agent's `id`, if it has one, agrees with the name it stands under; it is not needed any more."""
    if "id" not in agent:
        return True
    path = ("routing", "agents", name, "id")
    if _id(agent.pop("id")) != _id(name):
        modern.errors.append(SettingIssue("error", path, "differs from the name that the agent stands under; keep one"))
        return False
    modern.note(Move(path, (), "needless"))
    return True


def _id(name: object) -> object:
    """What identifies an agent. A name that no agent can have is like no other, and is reported later."""
    try:
        return normalise_agent_id(name) if isinstance(name, str) and "${" not in name else object()
    except UnknownAgent:
        return object()


def _put(modern: SettingsModernised, value: Any, old: SettingPath, new: tuple[str, ...]) -> None:
    """Put a value where it stands today, with the groups around it."""
    group: Any = modern.raw
    for depth, name in enumerate(new[:-1], 1):
        group = group.setdefault(name, {})
        if not isinstance(group, dict):
            what = f"cannot be put into `{show_path(new[:depth])}`, which is no object"
            modern.errors.append(SettingIssue("error", old, what))
            return
    _place(modern, group, value, Move(old, new))


def _place(modern: SettingsModernised, group: dict[str, Any], value: Any, move: Move) -> None:
    """Put a value into its group, unless it is there; of two groups, those settings that are not there."""
    name = str(move.new[-1])
    if name not in group:
        group[name] = value
        modern.note(move)
    elif isinstance(value, dict) and isinstance(group[name], dict):
        _merge(modern, group[name], value, move)
    elif not _is_group(move.new) or _is_object(modern, value, move.old):
        modern.note(move._replace(fate="ignored"))


def _merge(modern: SettingsModernised, group: dict[str, Any], value: dict[str, Any], move: Move) -> None:
    if not value:
        modern.note(move._replace(fate="ignored"))
    for name, inner in value.items():
        _place(modern, group, inner, Move((*move.old, name), (*move.new, name)))


def _is_object(modern: SettingsModernised, value: Any, path: SettingPath) -> bool:
    if isinstance(value, dict):
        return True
    modern.errors.append(SettingIssue("error", path, f"{describe_value_type(value)}, expected an object"))
    return False


def _is_group(path: SettingPath) -> bool:
    """Whether today's setting is a group of settings and can be nothing else."""
    exact: Any = ConfigFile
    for step in path:
        kind = kind_of(exact)
        known = {field.encode_name: field.type for field in fields(kind.struct)} if kind.struct else {}
        exact = kind.item if isinstance(step, int) else known.get(step)
        if exact is None:
            return False
    kind = kind_of(exact)
    return kind.struct is not None and len(kind.choices) == 1


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(inner) for name, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value
