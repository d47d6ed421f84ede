"""Agents and sessions in short, as OpenClaw's clients show the state of a gateway; parts of `Health` and `Status`."""

from __future__ import annotations

from msgspec import field

from backchannel.wire.shapes import Answer


class SessionsCounted(Answer, frozen=True, kw_only=True, omit_defaults=False):
    path: str
    count: int
    recent: tuple[()] = ()


class AgentHeartbeat(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """There are no heartbeats here."""

    agent_id: str
    enabled: bool = False
    every: str = "disabled"
    every_ms: None = None


class AgentHealth(Answer, frozen=True, kw_only=True):
    agent_id: str
    is_default: bool
    heartbeat: AgentHeartbeat
    sessions: SessionsCounted
    name: str | None = None


class ModelDefaults(Answer, frozen=True, kw_only=True):
    model: str
    context_tokens: int | None = None


class AgentSessions(SessionsCounted, frozen=True, kw_only=True):
    agent_id: str


class AgentNamed(Answer, frozen=True, kw_only=True):
    id: str
    name: str | None = None


class AgentsNamed(Answer, frozen=True, kw_only=True):
    default_id: str
    selection_required: bool
    rows: list[AgentNamed]


class NoMemory(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """There are no plugins here, and so none for memory."""

    enabled: bool = False
    slot: None = None
    reason: str = "there are no plugins here"


class CliProjection(Answer, frozen=True, kw_only=True):
    agents: AgentsNamed
    memory_plugin: NoMemory


class SessionsSummary(Answer, frozen=True, kw_only=True):
    """How OpenClaw's clients show the sessions there are; the lists stand in `sessions.list`."""

    count: int
    defaults: ModelDefaults
    paths: tuple[()]
    recent: tuple[()]
    by_agent: list[AgentSessions]


class HeartbeatSummary(Answer, frozen=True, kw_only=True):
    default_agent_id: str
    agents: list[AgentHeartbeat]


class TasksSummary(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """There are no tasks here."""

    total: int = 0
    active: int = 0
    terminal: int = 0
    failures: int = 0
    by_status: dict[str, int] = field(default_factory=dict)
    by_runtime: dict[str, int] = field(default_factory=dict)
