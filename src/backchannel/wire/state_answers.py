"""Answers about the gateway itself: health, status, slots, budgets, cron jobs and transcript files."""

from __future__ import annotations

from typing import Any

from msgspec import field

from backchannel.core.sessions import Address
from backchannel.wire.rows import (
    ChannelState,
    GatewayState,
    HealthProblem,
    ServiceState,
    SlotCount,
    SlotUse,
)
from backchannel.wire.shapes import Answer


class Health(Answer, frozen=True, kw_only=True):
    ok: bool
    status: str
    """`ok`, `degraded` or `unavailable`."""
    ts: int
    uptime_ms: int
    default_agent_id: str
    store: str
    problems: list[HealthProblem]
    agents: list[dict[str, Any]] = field(default_factory=list)
    """For OpenClaw's clients, like `sessions`: `[{agentId, isDefault, heartbeat, sessions, name?}]`."""
    sessions: dict[str, Any] | None = None


class Status(Answer, frozen=True, kw_only=True):
    version: str
    status: str
    """`ok`, `degraded` or `unavailable`."""
    ts: int
    uptime_ms: int
    connections: int
    runs: dict[str, int]
    """`{queued, running, failed, setAside, waiting}`; `failed` counts the last 24 hours."""
    deliveries: dict[str, int]
    """`{waiting, failed, uncertain}`."""
    approvals: dict[str, int]
    """`{pending}`."""
    pairings: dict[str, int]
    """`{pending}`."""
    channels: list[ChannelState]
    commits: int
    agents: list[str]
    default_agent_id: str
    model: str
    gateways: list[GatewayState]
    """The gateways on the same PostgreSQL."""
    problems: list[HealthProblem]
    sessions: dict[str, Any]
    """`{count, defaults {model, contextTokens?}, byAgent}`, for OpenClaw's clients, like the four fields below."""
    heartbeat: dict[str, Any]
    tasks: dict[str, Any]
    channel_summary: tuple[()]
    queued_system_events: tuple[()]
    services: list[ServiceState] = field(default_factory=list)
    search: dict[str, int] | None = None
    """`{unindexed}`: how many older messages the search does not find yet; absent when it finds all."""
    sandbox: str | None = None
    """The limit of the memory of sandboxes, if sessions have them."""
    cli_projection: dict[str, Any] | None = None
    """With `includeCliProjection`, for OpenClaw's command line."""


class SlotsListed(Answer, frozen=True, kw_only=True):
    kinds: list[SlotCount]
    slots: list[SlotUse]
    has_more: bool = False


class SlotEnded(Answer, frozen=True, kw_only=True):
    ok: bool
    id: str


class ListedTranscript(Answer, frozen=True, kw_only=True):
    session_id: str
    key: str
    ended_at: int | None = None
    end_reason: str | None = None


class TranscriptsListed(Answer, frozen=True, kw_only=True):
    transcripts: list[ListedTranscript]
    next_cursor: str | None = None


class TranscriptRebuilt(Answer, frozen=True, kw_only=True):
    ok: bool
    key: str
    session_id: str
    lines: int


class LastRun(Answer, frozen=True, kw_only=True):
    run_id: str
    status: str
    accepted_at: int
    ended_at: int | None = None


class WhenShown(Answer, frozen=True, kw_only=True):
    """The command that decides whether a job runs."""

    command: str
    """Credentials in it are hidden."""
    timeout_seconds: float | None = None


class SkipsShown(Answer, frozen=True, kw_only=True):
    """How often a job was skipped for one reason."""

    count: int
    last_at: int
    why: str | None = None
    """What the command of `when` last said: how it ended, and the first line of its errors."""
    is_fault: bool = False
    """Whether the command could not do its work the last time: it is missing, or took too long."""


class JobShown(Answer, frozen=True, kw_only=True):
    """A cron job in our words."""

    id: str
    status: str
    """`scheduled`, `disabled`, `done` or `error`."""
    source: str
    """`config` or `runtime`."""
    schedule: str
    tz: str | None = None
    agent_id: str
    session_key: str
    message: str | None = None
    """Absent beside OpenClaw's shape, whose `payload` has it."""
    deliver: Address | None = None
    model: str | None = None
    fallbacks: tuple[str, ...] | None = None
    """The models that are asked when that one fails. Absent: those of its agent."""
    timeout_seconds: float | None = None
    next_at: int | None = None
    last_run: LastRun | None = None
    last_error: str | None = None
    skipped: int
    """How many times became no run, for any reason."""
    skips: dict[str, SkipsShown] = field(default_factory=dict)
    """The same by reason: `busy`, `full` or `when`."""
    when: WhenShown | None = None
    checking_since: int | None = None
    """Since when its command runs."""
    created_at: int


class BudgetSubject(Answer, frozen=True, kw_only=True):
    subject: str
    """An agent, a session key, the id of a chain or a sender as `channel:id`; empty for the gateway."""
    spent: float
    """In dollars, tokens or runs, as `unit` says."""
    reserved: float
    """What calls under way may cost at most, besides."""
    limit: float
    """With what was granted."""
    granted: int = 0
    """How often owners granted the amount again."""
    denied: bool = False


class BudgetListed(Answer, frozen=True, kw_only=True):
    name: str
    scope: str
    per: str
    then: str
    unit: str
    """`usd`, `tokens` or `runs`."""
    limit: float
    since: int | None = None
    """The start of its window; absent for `total`."""
    opens_at: int | None = None
    """The end of its window; absent for `total`."""
    warn_at: float | None = None
    """The share of which owners are told."""
    waiting: int = 0
    """The number of runs that wait for this budget."""
    subjects: list[BudgetSubject]
    has_more: bool = False


class BudgetsListed(Answer, frozen=True, kw_only=True):
    budgets: list[BudgetListed]


class SpentSum(Answer, frozen=True, kw_only=True, omit_defaults=False):
    usd: float
    tokens: int
    runs: int
    unpriced: int
    """The number of runs of models without a price."""


class SpentByDay(SpentSum, frozen=True, kw_only=True, omit_defaults=False):
    date: str


class SpentByAgent(SpentSum, frozen=True, kw_only=True, omit_defaults=False):
    agent_id: str


class SpentByTree(SpentSum, frozen=True, kw_only=True):
    session_key: str
    """The session at its top."""
    name: str | None = None
    """Its label, or the name of its chat."""


class SpendingShown(Answer, frozen=True, kw_only=True):
    days: list[SpentByDay]
    """All days, the oldest first."""
    agents: list[SpentByAgent]
    trees: list[SpentByTree]
    total: SpentSum
    agents_left_out: int = 0
    trees_left_out: int = 0
    partial: bool = False
    """Whether the oldest runs were left out, since there were too many."""


class BudgetReset(Answer, frozen=True, kw_only=True):
    ok: bool
    name: str
