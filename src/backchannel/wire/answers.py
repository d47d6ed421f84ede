"""What the methods of the gateway answer, as far as the command line reads it: lists of rows, and what was done.

Both sides have the same types, so a name is written once. What only other clients read is beside its method.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, field

from backchannel.core.messages import Message, Usage
from backchannel.wire.rows import (
    AgentShown,
    ApprovalRow,
    ChannelShown,
    ChannelState,
    Child,
    DecisionExplained,
    ExchangeShown,
    Flow,
    GatewayState,
    HealthProblem,
    JobShown,
    ModelShown,
    PairingRow,
    ReceiptRow,
    Row,
    RunRow,
    ServiceState,
    SessionRow,
    SlotCount,
    SlotUse,
    SpawnShown,
    TokenShown,
    TreeNode,
)
from backchannel.wire.shapes import Answer
from backchannel.wire.summaries import (
    AgentHealth,
    CliProjection,
    HeartbeatSummary,
    SessionsCounted,
    SessionsSummary,
    TasksSummary,
)
from backchannel.wire.timeline import TimelineEntry


class ReceivedFrame(Answer, frozen=True, kw_only=True):
    """A frame of the gateway as a client gets it: an answer or an event, whose payload is yet to be read."""

    type: str
    id: str | None = None
    ok: bool = False
    event: str = ""
    seq: int | None = None
    payload: Raw = Raw(b"{}")
    error: dict[str, Any] | None = None


NAMED_PER_AGENT = "per-sender"
"""The scope that clients are told, also where all direct chats share a session: OpenClaw's clients write `global` for
every main session once they hear of that scope, and here each agent has one, which is addressed as `main`."""


class SessionDefaults(Answer, frozen=True, kw_only=True):
    default_agent_id: str
    main_key: str
    main_session_key: str
    scope: str


class Snapshot(Answer, frozen=True, kw_only=True):
    session_defaults: SessionDefaults


class Hello(Answer, frozen=True, kw_only=True):
    """What `connect` is answered, as far as the command line reads it."""

    snapshot: Snapshot


class SessionRows(Answer, frozen=True, kw_only=True):
    ts: int
    path: str
    count: int
    has_more: bool
    defaults: ModelShown
    sessions: list[SessionRow]
    next_cursor: str | None = None


class FoundKey(Answer, frozen=True, kw_only=True):
    key: str
    agent_id: str


class SessionFound(Answer, frozen=True, kw_only=True):
    ok: bool
    key: str | None = None
    agent_id: str | None = None
    candidates: list[FoundKey] | None = None
    """Which it may be, if several have what was given."""


class SessionPatched(Answer, frozen=True, kw_only=True):
    ok: bool
    key: str
    entry: SessionRow


class DeletedSession(Answer, frozen=True, kw_only=True):
    session_id: str


class SessionDeleted(Answer, frozen=True, kw_only=True):
    ok: bool
    key: str
    deleted: bool
    archived: list[str]
    """Files that were moved for it: none by its answer, since its transcript is moved later."""
    backchannel: DeletedSession | None = None


class SessionDescribed(Answer, frozen=True, kw_only=True):
    session: SessionRow | None


class EventsSubscribed(Answer, frozen=True, kw_only=True):
    subscribed: bool
    key: str | None = None


class Trees(Answer, frozen=True, kw_only=True):
    ts: int
    count: int
    roots: list[str]
    nodes: list[TreeNode]
    truncated: bool = False


class StatusAnswer(Row, frozen=True, kw_only=True):
    """A session's row, and what it is busy with."""

    queue_length: int
    children: list[Child]
    exchanges: list[Flow]
    receipts: list[Flow]
    usage: Usage
    tree_usage: Usage
    active_run: RunRow | None = None
    resume_at: int | None = None
    """When the first of its runs is tried again that are set aside after crashes."""
    children_left_out: int | None = None
    """How many more there are than `children` has."""
    spawn: SpawnShown | None = None
    """For a sub-agent: how it was started, and its outcome."""


class StatusSeen(Answer, frozen=True, kw_only=True):
    """What a client reads of the result of `session_status`, which may be a refusal."""

    key: str = ""
    children: tuple[Child, ...] = ()
    receipts: tuple[Flow, ...] = ()


class DeliveryBegun(Answer, frozen=True, kw_only=True):
    """The receipt that a send was given, whose state is called status there."""

    id: str
    status: str
    mode: str = ""


class SendSeen(Answer, frozen=True, kw_only=True):
    """Any of the results of `sessions_send`."""

    run_id: str = ""
    status: str
    session_key: str = ""
    delivery: DeliveryBegun | None = None
    reply: str | None = None
    error: str | None = None


class SpawnSeen(Answer, frozen=True, kw_only=True):
    """Any of the results of `sessions_spawn`."""

    status: str
    run_id: str = ""
    child_session_key: str = ""
    model: str = ""
    error: str | None = None


class MessagesSeen(Answer, frozen=True, kw_only=True):
    """What a client reads of the result of `sessions_history`, which may be a refusal."""

    messages: tuple[Message, ...] = ()


class ChatStarted(Answer, frozen=True, kw_only=True):
    run_id: str
    status: str
    reply: str | None = None
    """What a chat command answers: it has no run to wait for, and is in no history."""


class ChatRead(Answer, frozen=True, kw_only=True):
    """What `chat.history` answers, its messages read."""

    session_key: str
    messages: list[Message]
    pending: list[Message]
    has_more: bool
    pending_left_out: int | None = None
    """How many more wait than `pending` has."""
    session_id: str | None = None
    thinking_level: str | None = None


class ChatAborted(Answer, frozen=True, kw_only=True):
    ok: bool
    aborted: bool
    run_ids: list[str]


class TerminalReply(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """A reply, as OpenClaw's clients look for it after they lost the connection."""

    disposition: str = "visible"
    text: str


class RunWaited(Answer, frozen=True, kw_only=True):
    run_id: str
    status: str
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None
    reply: str | None = None
    terminal_reply: TerminalReply | None = None
    running: bool = False
    queued: bool = False
    resume_at: int | None = None
    """Of a run that is set aside after crashes: when it is tried again."""
    waiting_for: str | None = None
    """As of a run."""


class RunShown(Answer, frozen=True, kw_only=True):
    run: RunRow


class RunsListed(Answer, frozen=True, kw_only=True):
    count: int
    has_more: bool
    runs: list[RunRow]
    next_cursor: str | None = None


class TimelineShown(Answer, frozen=True, kw_only=True):
    run: RunRow
    entries: list[TimelineEntry]
    truncated: bool = False


class ExchangeFound(Answer, frozen=True, kw_only=True):
    exchange: ExchangeShown


class DeliveriesListed(Answer, frozen=True, kw_only=True):
    count: int
    has_more: bool
    deliveries: list[ReceiptRow]
    next_cursor: str | None = None


class NotMended(Answer, frozen=True, kw_only=True):
    id: str
    error: str


class DeliveriesMended(Answer, frozen=True, kw_only=True):
    """What became of several deliveries; those that could not be helped stay as they were."""

    count: int
    refused: list[NotMended]
    next_cursor: str | None = None


class ApprovalsListed(Answer, frozen=True, kw_only=True):
    count: int
    has_more: bool
    approvals: list[ApprovalRow]
    next_cursor: str | None = None


class ApprovalAnswered(Answer, frozen=True, kw_only=True):
    approval: ApprovalRow


class PairingsListed(Answer, frozen=True, kw_only=True):
    count: int
    has_more: bool
    pairings: list[PairingRow]
    next_cursor: str | None = None


class PairingAnswered(Answer, frozen=True, kw_only=True):
    pairing: PairingRow


class PairingsRemoved(Answer, frozen=True, kw_only=True):
    removed: list[PairingRow]


class ChannelsListed(Answer, frozen=True, kw_only=True):
    channels: list[ChannelShown]


class ChannelTested(Answer, frozen=True, kw_only=True):
    name: str
    status: str
    detail: str


class JobsListed(Answer, frozen=True, kw_only=True):
    jobs: list[JobShown]


class JobAdded(Answer, frozen=True, kw_only=True):
    job: JobShown


class JobFired(Answer, frozen=True, kw_only=True):
    ok: bool
    id: str
    ran: bool
    run_id: str
    session_key: str


class JobNotFired(Answer, frozen=True, kw_only=True):
    ok: bool
    id: str
    ran: bool
    reason: str


class JobRemoved(Answer, frozen=True, kw_only=True):
    ok: bool
    id: str
    removed: bool


class AgentsListed(Answer, frozen=True, kw_only=True):
    default_id: str
    main_key: str
    scope: str
    agents: list[AgentShown]


class AgentForgotten(Answer, frozen=True, kw_only=True):
    ok: bool
    agent_id: str


class IdFound(Answer, frozen=True, kw_only=True):
    kind: str
    id: str


class TokenMade(Answer, frozen=True, kw_only=True):
    id: str
    token: str
    scopes: list[str]
    session_key: str | None = None
    label: str | None = None


class TokensListed(Answer, frozen=True, kw_only=True):
    tokens: list[TokenShown]


class TokenRevoked(Answer, frozen=True, kw_only=True):
    ok: bool
    id: str


class Explanation(Answer, frozen=True, kw_only=True):
    caller: str
    target: str
    tools: list[DecisionExplained]
    send: DecisionExplained


class ToolInvoked(Answer, frozen=True, kw_only=True, omit_defaults=False):
    ok: bool
    result: Any


class Health(Answer, frozen=True, kw_only=True):
    ok: bool
    status: str
    ts: int
    uptime_ms: int
    default_agent_id: str
    store: str
    problems: list[HealthProblem]
    agents: list[AgentHealth] = field(default_factory=list)
    sessions: SessionsCounted | None = None


class Status(Answer, frozen=True, kw_only=True):
    version: str
    status: str
    ts: int
    uptime_ms: int
    connections: int
    runs: dict[str, int]
    deliveries: dict[str, int]
    approvals: dict[str, int]
    pairings: dict[str, int]
    channels: list[ChannelState]
    commits: int
    agents: list[str]
    default_agent_id: str
    model: str
    gateways: list[GatewayState]
    problems: list[HealthProblem]
    sessions: SessionsSummary
    heartbeat: HeartbeatSummary
    tasks: TasksSummary
    channel_summary: tuple[()]
    queued_system_events: tuple[()]
    services: list[ServiceState] = field(default_factory=list)
    sandbox: str | None = None
    """What bounds the memory of sandboxes on its machine, where sessions have them."""
    cli_projection: CliProjection | None = None


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


class Rebuilt(Answer, frozen=True, kw_only=True):
    ok: bool
    key: str
    session_id: str
    lines: int
