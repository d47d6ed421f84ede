"""Settings of agents, of their tools, and of MCP servers."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

from backchannel.config.adapters import SANDBOXES
from backchannel.config.schema_models import ModelSetting
from backchannel.core.contracts import ThinkingLevel
from backchannel.core.policy.approvals import ApprovalRuleSettings
from backchannel.core.policy.visibility import AgentToAgentSettings, SandboxMode, SandboxVisibility, Visibility
from backchannel.core.settings import NonEmpty, Settings, secret, setting

AnnounceMode: TypeAlias = Literal["post", "wake"]

SandboxName: TypeAlias = Annotated[str, Meta(extra={"adapters": SANDBOXES.group})]
"""The name of a kind of sandbox that is installed: see `validation.SettingKind.words`."""
WorkspaceAccess: TypeAlias = Literal["rw", "ro", "none"]

Names: TypeAlias = tuple[str, ...]


class InstructionsFileSettings(Settings, frozen=True, kw_only=True):
    """Instructions that are kept in a file of their own."""

    file: Annotated[str, setting("The path, relative to the configuration file. Read at the start.", min_length=1)]


class SandboxLimitSettings(Settings, frozen=True, kw_only=True):
    """What a program in a sandbox may use."""

    cpu_seconds: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        setting("Processor time of each process, in seconds. Unset everywhere: 600."),
    ] = None
    memory_mb: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        setting(
            "Memory of a call, in MiB: its processes, shared memory and temporary folders. Unset everywhere: 2048."
        ),
    ] = None
    processes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        setting("Most processes and threads of a call at once. Unset everywhere: 256."),
    ] = None
    output_kb: Annotated[
        Annotated[int, Meta(ge=1, le=1_048_576)] | None,
        setting("Output of a command that is kept, in KiB; also outside a sandbox. Unset everywhere: 4096."),
    ] = None
    disk_mb: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        setting("Size limit of the workspace, in MiB. A call that exceeds it is killed. Unset everywhere: 10240."),
    ] = None
    files: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        setting("Most files and folders in the workspace. A call that exceeds it is killed. Unset everywhere: 250000."),
    ] = None


class SandboxSettings(Settings, frozen=True, kw_only=True):
    """Which sessions run sandboxed, and what those may see and use."""

    mode: Annotated[
        SandboxMode | None,
        setting("Which sessions run in a sandbox: none, all but the main session, or all. Unset everywhere: `off`."),
    ] = None
    session_tools_visibility: Annotated[
        SandboxVisibility | None,
        setting(
            "`spawned`: a sandboxed session never sees more than `tree`; `all`: no such limit. "
            "Unset everywhere: `spawned`."
        ),
    ] = None
    backend: Annotated[
        SandboxName | None,
        setting(
            "The kind of sandbox: `bubblewrap` (Linux, no root) or `docker` (a container of docker or podman). "
            "Unset everywhere: `bubblewrap`."
        ),
    ] = None
    image: Annotated[
        NonEmpty | None,
        setting("With `docker`: the image. Unset everywhere: `debian:stable-slim`."),
    ] = None
    network: Annotated[bool | None, setting("Whether its programs reach the network. Unset everywhere: `false`.")] = (
        None
    )
    workspace_access: Annotated[
        WorkspaceAccess | None,
        setting("Access to the workspace: read and write, read only, or none. Unset everywhere: `rw`."),
    ] = None
    limits: Annotated[SandboxLimitSettings, setting("Limits of its programs.")] = SandboxLimitSettings()


class SessionToolSettings(Settings, frozen=True, kw_only=True):
    """What the session tools may reach."""

    visibility: Annotated[
        Visibility | None,
        setting(
            "Which sessions the session tools see. `self`: the caller's own; `tree`: also those it spawned; `agent`: "
            "also all of its agent; `all`: also those of other agents, as `tools.agentToAgent` permits. "
            "Unset everywhere: `tree`."
        ),
    ] = None


class AgentToolSettings(Settings, frozen=True, kw_only=True):
    """The tools of one agent."""

    allow: Annotated[
        Names | None,
        setting(
            "Only these tools. `*` is a wildcard; alone it means all but the tools of the workspace and of MCP "
            "servers. Groups: `group:sessions` (session tools), `group:fs` (files), `group:exec` (commands), "
            "`group:mcp:<server>` (a server's tools)."
        ),
    ] = None
    deny: Annotated[Names | None, setting("Never these tools. Wins over `allow`, and adds to `tools.deny`.")] = None
    sessions: Annotated[SessionToolSettings, setting("What the session tools may reach.")] = SessionToolSettings()


class AgentSubagentSettings(Settings, frozen=True, kw_only=True):
    """What one agent may spawn."""

    allow_agents: Annotated[
        Names | None,
        setting("Other agents that it may spawn; `*` is any. Unset: only itself."),
    ] = None
    model: Annotated[
        ModelSetting | None,
        setting("The model of its sub-agents, or `{ primary, fallbacks }`. Unset: the agent's own."),
    ] = None


class SubagentSettings(AgentSubagentSettings, frozen=True, kw_only=True):
    """How sub-agents run, for all agents."""

    max_concurrent: Annotated[
        int,
        setting(
            "Most sub-agent runs at once in one process. Half are reserved for the agents, in equal shares.",
            ge=1,
            le=10_000,
        ),
    ] = 8
    announce: Annotated[
        AnnounceMode,
        setting("`post`: the result is posted to the requester. `wake`: the requester also gets a run."),
    ] = "post"
    wake_after_seconds: Annotated[
        float,
        setting(
            "With `wake`: the longest wait for the last child after the spawning run ended. 0: no limit.",
            ge=0,
        ),
    ] = 0
    archive_after_minutes: Annotated[
        float, setting("Minutes until an ended sub-agent is archived. 0: never.", ge=0)
    ] = 60
    max_children: Annotated[
        int, setting("Most sub-agents of one requester that work or have yet to announce.", ge=0, le=10_000)
    ] = 20


class ContextSettings(Settings, frozen=True, kw_only=True):
    """How long conversations are kept within a model's context window."""

    at: Annotated[
        float,
        setting(
            "The part of the window above which old tool results are cleared and the older part is summarised.",
            ge=0.2,
            le=0.9,
        ),
    ] = 0.75
    hard: Annotated[
        float, setting("The part of the window above which a run waits for the summary. Above `at`.", ge=0.3, le=0.95)
    ] = 0.9
    model: Annotated[
        ModelSetting | None,
        setting("The model that writes summaries, or `{ primary, fallbacks }`. Unset: the agent's own."),
    ] = None


class AgentDefaultSettings(Settings, frozen=True, kw_only=True):
    """Defaults for every agent."""

    model: Annotated[
        ModelSetting | None,
        setting(
            "The model, as `provider/model`, or `{ primary, fallbacks }`. Unset: what the environment offers. "
            "Fallbacks are asked, in order, when a model fails."
        ),
    ] = None
    retry_for_hours: Annotated[
        float,
        setting("Hours that a run waits for a model that is down, before it ends as `error`.", ge=0, le=720),
    ] = 24
    instructions: Annotated[
        str | InstructionsFileSettings | None, setting('The system prompt: text, or `{ file: "…" }`.')
    ] = None
    thinking: Annotated[
        ThinkingLevel | None, setting("How much the model thinks, if it can. Unset: the model's default.")
    ] = None
    timeout_seconds: Annotated[float, setting("Time limit of a run. Only active time counts.", gt=0)] = 600
    max_concurrent: Annotated[
        int,
        setting(
            "Most runs at once in one process. Half are reserved for the agents, in equal shares.", ge=1, le=100_000
        ),
    ] = 64
    subagents: Annotated[SubagentSettings, setting("Sub-agents.")] = SubagentSettings()
    workspace: Annotated[
        NonEmpty | None,
        setting(
            "The folder of the tools `group:fs` and `group:exec`, relative to the configuration file. "
            "Unset: one for each agent, in the state folder."
        ),
    ] = None
    sandbox: Annotated[SandboxSettings, setting("The sandbox of sessions.")] = SandboxSettings()
    tools: Annotated[AgentToolSettings, setting("The tools of agents without their own.")] = AgentToolSettings()
    context: Annotated[ContextSettings, setting("Long conversations.")] = ContextSettings()


class ListedAgentSettings(Settings, frozen=True, kw_only=True):
    """One agent."""

    id: Annotated[
        str,
        setting(
            "Letters, digits, `_` and `-`, at most 64; `Research Bot` is read as `research-bot`.",
            min_length=1,
        ),
    ]
    default: Annotated[
        bool, setting("Whether it answers messages that name no agent. Unset everywhere: the first agent.")
    ] = False
    name: Annotated[str | None, setting("Its name for people.")] = None
    model: Annotated[ModelSetting | None, setting("Its model, as `provider/model`, or `{ primary, fallbacks }`.")] = (
        None
    )
    retry_for_hours: Annotated[
        Annotated[float, Meta(ge=0, le=720)] | None,
        setting("Hours that its runs wait for a model that is down. Unset: as in `agents.defaults`."),
    ] = None
    instructions: Annotated[
        str | InstructionsFileSettings | None, setting('Its system prompt: text, or `{ file: "…" }`.')
    ] = None
    thinking: Annotated[ThinkingLevel | None, setting("How much its model thinks, if it can.")] = None
    subagents: Annotated[AgentSubagentSettings, setting("What it may spawn.")] = AgentSubagentSettings()
    workspace: Annotated[
        NonEmpty | None,
        setting("The folder of its tools. Unset: `<state>/agents/<id>/workspace`."),
    ] = None
    sandbox: Annotated[SandboxSettings, setting("The sandbox of its sessions.")] = SandboxSettings()
    tools: Annotated[AgentToolSettings, setting("Its tools.")] = AgentToolSettings()


class AgentsSettings(Settings, frozen=True, kw_only=True):
    """The agents, and what they share."""

    defaults: Annotated[AgentDefaultSettings, setting("Defaults for every agent.")] = AgentDefaultSettings()
    list: Annotated[tuple[ListedAgentSettings, ...], setting("The agents. Empty: one agent, `main`.")] = ()


class ToolNameSettings(Settings, frozen=True, kw_only=True):
    """Tools added to and taken from a set."""

    allow: Annotated[Names, setting("Tools given back to sub-agents, except `sessions_spawn`.")] = ()
    deny: Annotated[Names, setting("Tools taken from sub-agents. Wins over `allow`.")] = ()


class SubagentToolSettings(Settings, frozen=True, kw_only=True):
    """The tools of sub-agents."""

    tools: Annotated[
        ToolNameSettings, setting("Changes to a sub-agent's tools: its agent's tools without the session tools.")
    ] = ToolNameSettings()


LONGEST_BACKGROUND_S = 86_400


class ExecSettings(Settings, frozen=True, kw_only=True):
    """How the commands of `exec` run."""

    background_seconds: Annotated[
        float,
        setting(
            "Time limit of a background command, unless its call sets one, which may be up to a day.",
            gt=0,
            le=LONGEST_BACKGROUND_S,
        ),
    ] = 3600


class ToolsSettings(Settings, frozen=True, kw_only=True):
    """The tools of all agents."""

    allow: Annotated[Names | None, setting("Only these tools, for agents without their own `allow`.")] = None
    deny: Annotated[Names, setting("Never these tools, for any agent.")] = ()
    sessions: Annotated[SessionToolSettings, setting("What the session tools may reach.")] = SessionToolSettings()
    agent_to_agent: Annotated[AgentToAgentSettings, setting("Whether agents may reach each other.")] = (
        AgentToAgentSettings()
    )
    subagents: Annotated[SubagentToolSettings, setting("The tools of sub-agents.")] = SubagentToolSettings()
    exec: Annotated[ExecSettings, setting("Commands of `exec`.")] = ExecSettings()
    approval: Annotated[
        tuple[ApprovalRuleSettings, ...],
        setting("Which calls need an approval. The first matching rule decides; without one the call runs."),
    ] = ()
    approval_timeout_minutes: Annotated[
        float, setting("Minutes that a call waits for its approval before it is denied. 0: for ever.", ge=0, le=525_600)
    ] = 0

    @property
    def approval_lives_ms(self) -> int:
        """How long a question about a call stands; 0 is for ever."""
        return round(self.approval_timeout_minutes * 60_000)


McpEffects: TypeAlias = Literal["none", "outside"]
_Secrets: TypeAlias = dict[str, Annotated[str, secret("Text.")]]
_Address: TypeAlias = Annotated[str, Meta(pattern=r"^https?://\S+$")]


class McpServerSettings(Settings, frozen=True, kw_only=True):
    """One MCP server: a program that is started, or an address."""

    command: Annotated[
        NonEmpty | None, setting("The program to start. It speaks MCP over its standard input and output.")
    ] = None
    args: Annotated[
        tuple[str, ...],
        setting("Its arguments. Put secrets into `env`: other programs on the machine see arguments."),
    ] = ()
    env: Annotated[
        _Secrets, secret("Its environment, besides `PATH`, `HOME`, `LANG` and the like. It inherits nothing else.")
    ] = field(default_factory=dict)
    cwd: Annotated[
        NonEmpty | None,
        setting("Its working folder, relative to the configuration file. Unset: the gateway's."),
    ] = None
    url: Annotated[_Address | None, secret("Its address, `http://…` or `https://…`, instead of `command`.")] = None
    headers: Annotated[_Secrets, secret("Headers of every request to `url`.")] = field(default_factory=dict)
    enabled: Annotated[bool, setting("Whether agents may use it.")] = True
    timeout_seconds: Annotated[float, setting("Time limit of one call.", gt=0, le=600)] = 60
    trust_annotations: Annotated[
        bool,
        setting(
            "Trust what the server says about its tools: a tool that only reads, or may be called twice, is called "
            "again after a crash. Otherwise every tool counts as having outside effects."
        ),
    ] = False
    effects: Annotated[
        dict[str, McpEffects],
        setting('The effects of single tools, whatever the server says: `{ "<tool>": "none" }`.'),
    ] = field(default_factory=dict)


class McpSettings(Settings, frozen=True, kw_only=True):
    """MCP servers whose tools agents may have."""

    servers: Annotated[
        dict[str, McpServerSettings],
        setting(
            "MCP servers by name. Their tools are `<name>__<tool>`, together `group:mcp:<name>`. An agent has the "
            "tools that its `tools.allow` names."
        ),
    ] = field(default_factory=dict)
