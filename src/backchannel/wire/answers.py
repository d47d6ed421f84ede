"""Answers of the methods that the command line reads.

Both sides have the same types, so a name is written once. An answer that only other clients read is beside its method.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from backchannel.core.messages import CompactionEntry, Message, Usage
from backchannel.openclaw.rows import SessionRow, TerminalReply
from backchannel.wire.rows import (
    AgentShown,
    ApprovalRow,
    AwaitedByRun,
    ChannelShown,
    Child,
    DecisionExplained,
    ExchangeShown,
    Flow,
    ModelShown,
    PairingRow,
    ReceiptRow,
    Row,
    RunRow,
    SpawnShown,
    TokenShown,
    TreeNode,
)
from backchannel.wire.shapes import Answer
from backchannel.wire.timeline import TimelineEntry


class ReceivedFrame(Answer, frozen=True, kw_only=True):
    """A frame of the gateway as a client gets it: an answer or an event with an unread payload."""

    type: str
    id: str | None = None
    ok: bool = False
    event: str = ""
    seq: int | None = None
    payload: Raw = Raw(b"{}")
    error: dict[str, Any] | None = None


class SessionDefaults(Answer, frozen=True, kw_only=True):
    default_agent_id: str
    main_key: str
    main_session_key: str
    scope: str


class Snapshot(Answer, frozen=True, kw_only=True):
    session_defaults: SessionDefaults


class Hello(Answer, frozen=True, kw_only=True):
    """The part of the answer to `connect` that the command line reads."""

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
    """The sessions that a `shortId` may mean."""


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
    """False if there is none."""
    archived: list[str]
    """Empty: the file of the transcript is moved later."""
    backchannel: DeletedSession | None = None


class SessionCompacted(Answer, frozen=True, kw_only=True):
    """What became of a request for a summary."""

    ok: bool
    key: str
    compacted: bool
    """Whether there is a new summary."""
    undone: bool | None = None
    """With `undo`: whether the last summary was taken back."""
    reason: str | None = None
    """Why there is no new summary, or none was taken back."""
    result: CompactionEntry | None = None


class SessionDescribed(Answer, frozen=True, kw_only=True):
    session: SessionRow | None
    compaction: CompactionEntry | None = None
    """The summary that stands for the older part of its conversation."""


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
    """A session's row, and its work."""

    queue_length: int
    children: list[Child]
    exchanges: list[Flow]
    receipts: list[Flow]
    usage: Usage
    tree_usage: Usage
    active_run: RunRow | None = None
    resume_at: int | None = None
    """The next try of its first run that is set aside after crashes, or that waits for a model."""
    waits_for: AwaitedByRun | None = None
    """The model or the budget that its first run waits for."""
    children_left_out: int | None = None
    """The number of children that `children` does not have."""
    spawn: SpawnShown | None = None
    """Of a sub-agent: how it was started, and its outcome."""
    compaction: CompactionEntry | None = None
    """The summary that stands for the older part of its conversation."""
    cached_share: float | None = None
    """The part of the last request that was read from the provider's cache, from 0 to 1."""


class StatusSeen(Answer, frozen=True, kw_only=True):
    """The part of a result of `session_status` that a client reads; it may be a refusal."""

    key: str = ""
    children: tuple[Child, ...] = ()
    receipts: tuple[Flow, ...] = ()


class DeliveryBegun(Answer, frozen=True, kw_only=True):
    """The receipt of a send; its state is called `status` there."""

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


class HitSeen(Answer, frozen=True, kw_only=True):
    """A hit of `sessions_search`."""

    session_key: str
    message_id: str
    role: str
    timestamp: int
    snippet: str
    label: str | None = None
    display_name: str | None = None


class HitsSeen(Answer, frozen=True, kw_only=True):
    """The result of `sessions_search`; a refusal has a status and an error."""

    count: int = 0
    hits: tuple[HitSeen, ...] = ()
    visibility: dict[str, Any] | None = None
    redacted: bool | None = None
    note: str | None = None
    next_cursor: str | None = None
    status: str | None = None
    error: str | None = None


class HitsInvoked(Answer, frozen=True, kw_only=True):
    """The answer of `tools.invoke` for `sessions_search`."""

    result: HitsSeen


class MessagesSeen(Answer, frozen=True, kw_only=True):
    """The part of a result of `sessions_history` that a client reads; it may be a refusal."""

    messages: tuple[Message, ...] = ()


class ChatStarted(Answer, frozen=True, kw_only=True):
    run_id: str
    status: str
    """`started` or `queued`; `ok` for a chat command."""
    reply: str | None = None
    """The answer of a chat command, which has no run and is in no history."""


class FollowedTranscript(Answer, frozen=True, kw_only=True):
    """A transcript that a reset ended."""

    session_id: str
    ended_at: int
    reason: str
    """`reset`: somebody asked for it. `daily`, `idle`: `session.reset` did."""


class ChatRead(Answer, frozen=True, kw_only=True):
    """The answer of `chat.history` with decoded messages."""

    session_key: str
    messages: list[Message]
    pending: list[Message]
    has_more: bool
    pending_left_out: int | None = None
    """The number of waiting messages behind those in `pending`."""
    pending_next: str | None = None
    session_id: str | None = None
    thinking_level: str | None = None
    follows: FollowedTranscript | None = None


class ChatAborted(Answer, frozen=True, kw_only=True):
    ok: bool
    aborted: bool
    run_ids: list[str]


class RunWaited(Answer, frozen=True, kw_only=True):
    run_id: str
    status: str
    """`ok`, `error`, `timeout` or `aborted`."""
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None
    reply: str | None = None
    terminal_reply: TerminalReply | None = None
    """For OpenClaw's clients."""
    running: bool = False
    queued: bool = False
    resume_at: int | None = None
    """The next try of a run that is set aside after crashes, or that waits for a model."""
    waits_for: AwaitedByRun | None = None
    """The model or the budget that the run waits for, in its lane."""
    waiting_for: str | None = None
    """As in a RunRow. A run that waits for a `function` or an `agent` is not `running`."""


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
    """The result for several deliveries; a refused one stays as it was."""

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
    """`ok`, `failed` or `untested`; an untested channel can only be tried by sending."""
    detail: str


class JobFired(Answer, frozen=True, kw_only=True):
    ok: bool
    id: str
    ran: bool
    run_id: str = ""
    """Its run, for `agent.wait`."""
    session_key: str = ""
    reason: str = ""
    """Why it did not run: `disabled`, `not-due` or `when`."""


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
