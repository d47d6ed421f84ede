"""The agents of a configuration, each with the defaults merged into its settings.

What an agent says itself wins over `agents.defaults`, and that over `tools`. One thing adds up instead:
`tools.deny` holds for every agent, so that a tool denied there stays denied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from backchannel.config.adapters import SANDBOXES
from backchannel.config.schema import Config, ConfigFile
from backchannel.config.schema_agents import (
    AgentSubagentSettings,
    ContextSettings,
    InstructionsFileSettings,
    ListedAgentSettings,
    SandboxLimitSettings,
    SandboxSettings,
    WorkspaceAccess,
)
from backchannel.config.schema_models import ModelSetting, fallbacks_of, primary_of
from backchannel.core.contracts import ThinkingLevel
from backchannel.core.keys import normalise_agent_id
from backchannel.core.models.model_row import ModelRow
from backchannel.core.policy.visibility import SightSettings
from backchannel.core.text import nearest
from backchannel.errors import UnknownAgent

ANY_AGENT = "*"

_S = TypeVar("_S", bound=AgentSubagentSettings)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRules:
    """What the sandbox of an agent's sessions is, after all defaults."""

    backend: str = field(default_factory=lambda: SANDBOXES.default)
    image: str = "debian:stable-slim"
    network: bool = False
    workspace_access: WorkspaceAccess = "rw"
    cpu_seconds: int = 600
    memory_mb: int = 2048
    processes: int = 256
    output_kb: int = 4096
    disk_mb: int = 10_240
    files: int = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings(SightSettings):
    """What holds for one agent, after all defaults."""

    id: str
    is_default: bool
    name: str | None
    row: ModelRow
    """Its model, and the fallbacks."""
    retry_for_s: float
    """How long a run waits for a model that is down."""
    instructions: str | None
    thinking: ThinkingLevel | None
    timeout_s: float
    allow_tools: tuple[str, ...] | None
    """The only tools it has; `None` is all."""
    deny_tools: tuple[str, ...]
    allow_setting: str
    """The setting that `allow_tools` comes from."""
    deny_settings: tuple[tuple[str, tuple[str, ...]], ...]
    """The settings that `deny_tools` is made of, each with its own."""
    spawns_under: tuple[str, ...]
    """The other agents it may spawn under; `*` is any, and it may always spawn under itself."""
    subagent_row: ModelRow
    context: ContextSettings
    summary_row: ModelRow | None
    """The models that write summaries; None: the model of the conversation."""
    workspace: str | None
    """The folder of its tools, where one is named; else it has one in the state folder."""
    sandbox: SandboxRules

    @property
    def model(self) -> str:
        """The model that is asked first."""
        return self.row.primary

    @property
    def subagent_model(self) -> str:
        return self.subagent_row.primary


def agent(config: Config, agent_id: str) -> AgentSettings:
    """Look up an agent, with the defaults merged in.

    Raises:
        UnknownAgent: no agent of the configuration has this id.
    """
    own, defaults, tools = _find(config, agent_id), config.agents.defaults, config.tools
    instructions = own.instructions if own.instructions is not None else defaults.instructions
    row = _row(ModelRow(config.default_model.ref), own.model, defaults.model)
    summary = defaults.context.model
    place = f"agents.list[{own.id}].tools"
    allowed = ((f"{place}.allow", own.tools.allow), ("agents.defaults.tools.allow", defaults.tools.allow))
    own_denied = (f"{place}.deny", own.tools.deny)
    if own.tools.deny is None:
        own_denied = ("agents.defaults.tools.deny", defaults.tools.deny)
    denied = (("tools.deny", tuple(tools.deny)), (own_denied[0], tuple(own_denied[1] or ())))
    return AgentSettings(
        id=own.id,
        is_default=own.default,
        name=own.name,
        row=row,
        retry_for_s=3600 * (defaults.retry_for_hours if own.retry_for_hours is None else own.retry_for_hours),
        instructions=_text(instructions),
        thinking=first(own.thinking, defaults.thinking),
        timeout_s=defaults.timeout_seconds,
        allow_tools=first(own.tools.allow, defaults.tools.allow, tools.allow),
        deny_tools=tuple(dict.fromkeys(name for _, names in denied for name in names)),
        allow_setting=next((setting for setting, names in allowed if names is not None), "tools.allow"),
        deny_settings=denied,
        visibility=first(own.tools.sessions.visibility, defaults.tools.sessions.visibility, tools.sessions.visibility)
        or "tree",
        sandbox_mode=first(own.sandbox.mode, defaults.sandbox.mode) or "off",
        sandbox_visibility=first(own.sandbox.session_tools_visibility, defaults.sandbox.session_tools_visibility)
        or "spawned",
        spawns_under=first(own.subagents.allow_agents, defaults.subagents.allow_agents) or (),
        subagent_row=_row(row, own.subagents.model, defaults.subagents.model),
        context=defaults.context,
        summary_row=None if summary is None else _row(row, summary),
        workspace=first(own.workspace, defaults.workspace),
        sandbox=_sandbox(own.sandbox, defaults.sandbox),
    )


def _row(usual: ModelRow, *given: ModelSetting | None) -> ModelRow:
    """Merge settings of models, the narrowest first: the first model that is named, and the first list of fallbacks."""
    return usual.led_by(first(*map(primary_of, given)), first(*map(fallbacks_of, given)))


def _sandbox(own: SandboxSettings, defaults: SandboxSettings) -> SandboxRules:
    named = {
        name: value
        for name in ("backend", "image", "network", "workspace_access")
        if (value := first(getattr(own, name), getattr(defaults, name))) is not None
    }
    limits = {
        name: value
        for name in SandboxLimitSettings.__struct_fields__
        if (value := first(getattr(own.limits, name), getattr(defaults.limits, name))) is not None
    }
    return SandboxRules(**named, **limits)


def first(*values: _T | None) -> _T | None:
    """The first value that is set."""
    return next((value for value in values if value is not None), None)


def complete(file: ConfigFile) -> ConfigFile:
    """Fill in what a checked file leaves open: an agent, a default one, ids in their one spelling."""
    agents = file.agents.list or (ListedAgentSettings(id="main"),)
    chosen = next((index for index, agent in enumerate(agents) if agent.default), 0)
    listed = tuple(
        replace(
            agent,
            id=normalise_agent_id(agent.id),
            default=index == chosen,
            subagents=_normalised(agent.subagents),
        )
        for index, agent in enumerate(agents)
    )
    defaults = replace(file.agents.defaults, subagents=_normalised(file.agents.defaults.subagents))
    bindings = tuple(replace(b, agent_id=normalise_agent_id(b.agent_id)) for b in file.bindings)
    jobs = tuple(
        replace(job, agent_id=normalise_agent_id(job.agent_id)) if job.agent_id else job for job in file.cron.jobs
    )
    return replace(
        file,
        agents=replace(file.agents, defaults=defaults, list=listed),
        bindings=bindings,
        cron=replace(file.cron, jobs=jobs),
        session=replace(file.session, main_key=file.session.main_key.lower()),
    )


def _normalised(subagents: _S) -> _S:
    if subagents.allow_agents is None:
        return subagents
    ids = tuple(name if name == ANY_AGENT else normalise_agent_id(name) for name in subagents.allow_agents)
    return replace(subagents, allow_agents=ids)


def _find(config: Config, agent_id: str) -> ListedAgentSettings:
    wanted = normalise_agent_id(agent_id)
    known = {agent.id: agent for agent in config.agents.list}
    if wanted in known:
        return known[wanted]
    close = nearest(wanted, known)
    hint = f"did you mean {close}?" if close else f"configured: {', '.join(known)}"
    raise UnknownAgent(f"no agent is called {wanted!r} ({hint})")


def _text(instructions: str | InstructionsFileSettings | None) -> str | None:
    # A file was replaced by its text when the configuration was loaded.
    return instructions if isinstance(instructions, str) else None
