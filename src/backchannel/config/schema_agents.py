"""The settings of agents, of the tools they have, and of the MCP servers that bring them more."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

from backchannel.core.contracts import ThinkingLevel
from backchannel.core.policy.approvals import ApprovalRuleSettings
from backchannel.core.policy.visibility import AgentToAgentSettings, SandboxMode, SandboxVisibility, Visibility
from backchannel.core.settings import NonEmpty, Settings, secret, setting

AnnounceMode: TypeAlias = Literal["post", "wake"]

SandboxBackend: TypeAlias = Literal["bubblewrap", "docker"]
WorkspaceAccess: TypeAlias = Literal["rw", "ro", "none"]

Names: TypeAlias = tuple[str, ...]


class InstructionsFileSettings(Settings, frozen=True, kw_only=True):
    """Instructions that are kept in a file of their own."""

    file: Annotated[str, setting("The file's path, relative to the configuration file. Read at start.", min_length=1)]


class SandboxLimitSettings(Settings, frozen=True, kw_only=True):
    """What a program in a sandbox may use."""

    cpu_seconds: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        setting("Seconds of processor time of each process. Unset everywhere: 600."),
    ] = None
    memory_mb: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        setting(
            "Memory of a call, in MiB: its processes, what they share, and its temporary folders. "
            "Unset everywhere: 2048."
        ),
    ] = None
    processes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        setting("Processes and threads of a call at the same time. Unset everywhere: 256."),
    ] = None
    output_kb: Annotated[
        Annotated[int, Meta(ge=1, le=1_048_576)] | None,
        setting("How much output of a command is kept, in KiB; also outside a sandbox. Unset everywhere: 4096."),
    ] = None
    disk_mb: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        setting("What the workspace may hold, in MiB: a call that fills it further is ended. Unset everywhere: 10240."),
    ] = None
    files: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        setting(
            "How many files and folders the workspace may hold: a call that makes more is ended. "
            "Unset everywhere: 250000."
        ),
    ] = None


class SandboxSettings(Settings, frozen=True, kw_only=True):
    """Which sessions run sandboxed, and what those may see and use."""

    mode: Annotated[
        SandboxMode | None,
        setting("Which sessions run sandboxed: none, all but the main session, or all. Unset everywhere: `off`."),
    ] = None
    session_tools_visibility: Annotated[
        SandboxVisibility | None,
        setting(
            "`spawned`: a sandboxed session never sees more than `tree`; `all`: no such limit. "
            "Unset everywhere: `spawned`."
        ),
    ] = None
    backend: Annotated[
        SandboxBackend | None,
        setting(
            "What the sandbox is made of: `bubblewrap` (Linux, no root), or `docker`, a container of docker or podman. "
            "Unset everywhere: `bubblewrap`."
        ),
    ] = None
    image: Annotated[
        NonEmpty | None,
        setting("With `docker`: the image that programs run in. Unset everywhere: `debian:stable-slim`."),
    ] = None
    network: Annotated[bool | None, setting("Whether programs in it reach the network. Unset everywhere: `false`.")] = (
        None
    )
    workspace_access: Annotated[
        WorkspaceAccess | None,
        setting("What it has of the workspace: read and write, read only, or nothing. Unset everywhere: `rw`."),
    ] = None
    limits: Annotated[SandboxLimitSettings, setting("What a program in it may use.")] = SandboxLimitSettings()


class SessionToolSettings(Settings, frozen=True, kw_only=True):
    """What the session tools may reach."""

    visibility: Annotated[
        Visibility | None,
        setting(
            "Which sessions the session tools see: only the caller's own, also those it spawned, also all "
            "of its agent, or also those of other agents as `tools.agentToAgent` permits. "
            "Unset everywhere: `tree`."
        ),
    ] = None


class AgentToolSettings(Settings, frozen=True, kw_only=True):
    """The tools of one agent."""

    allow: Annotated[
        Names | None,
        setting(
            "Only these tools. `*` is a wildcard; alone it names all but those of the workspace and of MCP servers. "
            "`group:sessions` names the session tools, `group:fs` those that read and write files, `group:exec` those "
            "that run commands, `group:mcp:<server>` those of a server."
        ),
    ] = None
    deny: Annotated[Names | None, setting("Never these tools; wins over `allow`, and adds to `tools.deny`.")] = None
    sessions: Annotated[SessionToolSettings, setting("What the session tools may reach.")] = SessionToolSettings()


class AgentSubagentSettings(Settings, frozen=True, kw_only=True):
    """What one agent may spawn."""

    allow_agents: Annotated[
        Names | None,
        setting("The other agents it may spawn sub-agents under; `*` is any. Unset: only itself."),
    ] = None
    model: Annotated[
        str | None, setting("The model of its sub-agents, as `provider/model`. Unset: the agent's own.")
    ] = None


class SubagentSettings(AgentSubagentSettings, frozen=True, kw_only=True):
    """How sub-agents run, for all agents."""

    max_concurrent: Annotated[
        int,
        setting(
            "Sub-agent runs at the same time in one process; half are kept for the agents, evenly.", ge=1, le=10_000
        ),
    ] = 8
    announce: Annotated[
        AnnounceMode,
        setting("`post`: a result is posted to the requester; `wake`: the requester also gets a run."),
    ] = "post"
    wake_after_seconds: Annotated[
        float,
        setting(
            "With `wake`: the longest wait for the last child after the spawning run ended; 0 is no limit.",
            ge=0,
        ),
    ] = 0
    archive_after_minutes: Annotated[float, setting("When an ended sub-agent is archived; 0 is never.", ge=0)] = 60
    max_children: Annotated[int, setting("Unsettled sub-agents per requester.", ge=0, le=10_000)] = 20


class AgentDefaultSettings(Settings, frozen=True, kw_only=True):
    """What holds for every agent that does not say otherwise."""

    model: Annotated[str | None, setting("The model, as `provider/model`. Unset: what the environment offers.")] = None
    instructions: Annotated[
        str | InstructionsFileSettings | None, setting('The system prompt: text, or `{ file: "…" }`.')
    ] = None
    thinking: Annotated[
        ThinkingLevel | None, setting("How much the model thinks, where it can. Unset: the model's own.")
    ] = None
    timeout_seconds: Annotated[
        float, setting("The longest a run may take; only the time in which it runs counts.", gt=0)
    ] = 600
    max_concurrent: Annotated[
        int, setting("Runs at the same time in one process; half are kept for the agents, evenly.", ge=1, le=100_000)
    ] = 64
    subagents: Annotated[SubagentSettings, setting("How sub-agents run.")] = SubagentSettings()
    workspace: Annotated[
        NonEmpty | None,
        setting(
            "The folder that the tools `group:fs` and `group:exec` work in, relative to the configuration file. "
            "Unset: one for each agent, in the state folder."
        ),
    ] = None
    sandbox: Annotated[SandboxSettings, setting("Which sessions run sandboxed.")] = SandboxSettings()
    tools: Annotated[AgentToolSettings, setting("The tools of agents that name none.")] = AgentToolSettings()


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
        bool, setting("Whether it answers what names no agent. Unset everywhere: the first agent does.")
    ] = False
    name: Annotated[str | None, setting("How it is shown to people.")] = None
    model: Annotated[str | None, setting("Its model, as `provider/model`.")] = None
    instructions: Annotated[
        str | InstructionsFileSettings | None, setting('Its system prompt: text, or `{ file: "…" }`.')
    ] = None
    thinking: Annotated[ThinkingLevel | None, setting("How much its model thinks, where it can.")] = None
    subagents: Annotated[AgentSubagentSettings, setting("What it may spawn.")] = AgentSubagentSettings()
    workspace: Annotated[
        NonEmpty | None,
        setting("The folder that its tools work in. Unset: `<state>/agents/<id>/workspace`."),
    ] = None
    sandbox: Annotated[SandboxSettings, setting("Which of its sessions run sandboxed.")] = SandboxSettings()
    tools: Annotated[AgentToolSettings, setting("The tools it has.")] = AgentToolSettings()


class AgentsSettings(Settings, frozen=True, kw_only=True):
    """The agents, and what they share."""

    defaults: Annotated[AgentDefaultSettings, setting("What holds for every agent.")] = AgentDefaultSettings()
    list: Annotated[tuple[ListedAgentSettings, ...], setting("The agents. Empty: one agent, `main`.")] = ()


class ToolNameSettings(Settings, frozen=True, kw_only=True):
    """Tools added to and taken from a set."""

    allow: Annotated[Names, setting("Tools given back to sub-agents; `sessions_spawn` cannot be.")] = ()
    deny: Annotated[Names, setting("Tools taken from sub-agents; wins over `allow`.")] = ()


class SubagentToolSettings(Settings, frozen=True, kw_only=True):
    """What sub-agents have of their agent's tools."""

    tools: Annotated[
        ToolNameSettings, setting("A sub-agent has its agent's tools without the session tools; this adjusts it.")
    ] = ToolNameSettings()


LONGEST_BACKGROUND_S = 86_400


class ExecSettings(Settings, frozen=True, kw_only=True):
    """How the commands of `exec` run."""

    background_seconds: Annotated[
        float,
        setting(
            "When a background command is stopped whose call does not say so; a call may ask for up to a day.",
            gt=0,
            le=LONGEST_BACKGROUND_S,
        ),
    ] = 3600


class ToolsSettings(Settings, frozen=True, kw_only=True):
    """The tools of all agents."""

    allow: Annotated[Names | None, setting("Only these tools, for agents with no `allow` of their own.")] = None
    deny: Annotated[Names, setting("Never these tools, for any agent.")] = ()
    sessions: Annotated[SessionToolSettings, setting("What the session tools may reach.")] = SessionToolSettings()
    agent_to_agent: Annotated[AgentToAgentSettings, setting("Whether agents may reach each other.")] = (
        AgentToAgentSettings()
    )
    subagents: Annotated[SubagentToolSettings, setting("What sub-agents have.")] = SubagentToolSettings()
    exec: Annotated[ExecSettings, setting("How commands run.")] = ExecSettings()
    approval: Annotated[
        tuple[ApprovalRuleSettings, ...],
        setting("Which calls wait for an owner's word. The first rule that fits decides; none: the call goes ahead."),
    ] = ()
    approval_timeout_minutes: Annotated[
        float, setting("How long a call waits for that; then it is not carried out. 0 is for ever.", ge=0, le=525_600)
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
        NonEmpty | None, setting("The program to start; it is spoken to over its standard input and output.")
    ] = None
    args: Annotated[
        tuple[str, ...],
        setting("Its arguments. Secrets belong into `env`: other programs on the machine see arguments."),
    ] = ()
    env: Annotated[
        _Secrets, secret("Its environment, beside `PATH`, `HOME`, `LANG` and the like; nothing else of ours is in it.")
    ] = field(default_factory=dict)
    cwd: Annotated[
        NonEmpty | None,
        setting("The folder it is started in, relative to the configuration file. Unset: the gateway's."),
    ] = None
    url: Annotated[_Address | None, secret("Where it is, `http://…` or `https://…`, instead of `command`.")] = None
    headers: Annotated[_Secrets, secret("Headers of every request to `url`.")] = field(default_factory=dict)
    enabled: Annotated[bool, setting("Whether it is used at all.")] = True
    timeout_seconds: Annotated[float, setting("The longest that one call may take.", gt=0, le=600)] = 60
    trust_annotations: Annotated[
        bool,
        setting(
            "Whether to believe the server which of its tools only read, or may be called twice: after a crash such a "
            "call is made again. Else every tool has outside effects."
        ),
    ] = False
    effects: Annotated[
        dict[str, McpEffects],
        setting('What a second call of a tool could spoil, whatever the server says: `{ "<tool>": "none" }`.'),
    ] = field(default_factory=dict)


class McpSettings(Settings, frozen=True, kw_only=True):
    """MCP servers whose tools agents may have."""

    servers: Annotated[
        dict[str, McpServerSettings],
        setting(
            "MCP servers by name. Their tools are `<name>__<tool>`, together `group:mcp:<name>`; an agent has those "
            "that its `tools.allow` names."
        ),
    ] = field(default_factory=dict)
