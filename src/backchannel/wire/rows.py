"""Rows of answers: sessions, runs, deliveries and the like.

An unknown value is absent, never null. The gateway makes rows (`tools/rows.py` and its methods), and the command line
reads them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from backchannel.core.messages import Usage
from backchannel.core.sessions import Address
from backchannel.wire.shapes import Answer, doc


class SessionFields(Answer, frozen=True):
    """The fields of every session row. They are positional, since that is fastest and lists are long."""

    key: Annotated[str, doc("What other tools take to name it, as short as the caller can write it.")]
    channel: Annotated[str, doc("Where it takes place, such as `telegram`; `internal` for cron, hooks and nodes.")]
    updated_at: Annotated[int, doc("When it last changed, in milliseconds since 1970.")]
    session_id: Annotated[str, doc("The transcript that it writes now; a reset starts another.")]
    agent_id: Annotated[str, doc("Its agent.")]
    system_sent: Annotated[bool, doc("Whether a run of this transcript has had its system prompt.")]
    aborted_last_run: Annotated[bool, doc("Whether its last run was stopped.")]
    label: Annotated[str | None, doc("The name that it was given.")] = None
    display_name: Annotated[str | None, doc("The name of the chat, where the channel gave one.")] = None
    model: Annotated[str | None, doc("What the next run will use, as `provider/model`.")] = None
    model_provider: Annotated[str | None, doc("The first part of it.")] = None
    context_tokens: Annotated[int | None, doc("How much that model takes.")] = None
    total_tokens: Annotated[int | None, doc("How much of it the last model call used, its reply included.")] = None
    thinking_level: Annotated[str | None, doc("Set for this session by `sessions.patch`.")] = None
    verbose_level: Annotated[str | None, doc("The same; `on` also tells the chat of each tool call.")] = None
    send_policy: Annotated[str | None, doc("The session's own `allow` or `deny`.")] = None
    last_channel: Annotated[str | None, doc("`deliveryContext.channel`.")] = None
    last_to: Annotated[str | None, doc("`deliveryContext.to`.")] = None
    last_account_id: Annotated[str | None, doc("`deliveryContext.accountId`.")] = None
    delivery_context: Annotated[Address | None, doc("Its return address.")] = None
    transcript_path: Annotated[str | None, doc("The JSONL file of the transcript.")] = None
    spawned_by: Annotated[str | None, doc("Of a sub-agent: the session that started it.")] = None
    archived_at: Annotated[int | None, doc("When it was archived; no list of the tools shows such a session.")] = None


class Row(SessionFields, frozen=True, kw_only=True):
    """A session, as the tools show it."""

    kind: Annotated[str, doc("`main`, `group`, `cron`, `hook`, `node` or `other`.")]
    status: Annotated[str, doc("`idle`, `queued` or `running`.")]
    messages: Annotated[list[msgspec.Raw] | None, doc("The last messages, with `messageLimit`.")] = None


class ModelShown(Answer, frozen=True, kw_only=True):
    """A model, as rows and defaults name it."""

    model: str = ""
    model_provider: str = ""
    context_tokens: int | None = None


class RetryRow(Answer, frozen=True, kw_only=True):
    """A model call that failed and is repeated."""

    attempt: int
    """The attempt that failed."""
    attempts: int
    error: str
    retry_at: int


class AwaitedByRun(Answer, frozen=True, kw_only=True):
    """A model that gave no reply, or a budget that has too little left for the next call."""

    kind: str
    """`model` or `budget`."""
    budget: str | None = None
    """The name of the budget."""
    model: str | None = None
    error: str | None = None
    """Why the model gave no reply."""
    since: int | None = None
    tries: int | None = None
    """How often a model was asked in vain."""


class ModelLeftAlone(Answer, frozen=True, kw_only=True):
    """A model that failed, and is not asked for a while."""

    model: str
    error: str
    since: int
    until: int
    """Then one run tries it."""


class RunRow(Answer, frozen=True, kw_only=True):
    """A run."""

    run_id: str
    session_key: str
    kind: str
    status: str
    """`queued`, `running`, `ok`, `error`, `timeout` or `aborted`."""
    accepted_at: int
    step: int
    deliver: bool
    usage: Usage
    session_id: str | None = None
    started_at: int | None = None
    at_work_since: int | None = None
    """Of a running run: `startedAt`, moved by the time in which no process held it."""
    resume_at: int | None = None
    """The next try of a run that is set aside after crashes, or that waits for a model."""
    waits_for: AwaitedByRun | None = None
    """The model or the budget that the run waits for, in its lane."""
    waiting_for: str | None = None
    """`function`: its agent is a function of a program that is not running; `agent`: no running gateway has its agent;
    `gateway`: another gateway has its agent and has not begun; `approval`: a person must approve a call."""
    retry: RetryRow | None = None
    """The failed model call that is repeated."""
    ended_at: int | None = None
    duration_ms: int | None = None
    message_id: str | None = None
    model: str | None = None
    thinking: str | None = None
    timeout_seconds: float | None = None
    abort_requested: bool = False
    error: str | None = None
    error_code: str | None = None
    reply: str | None = None
    exchange_id: str | None = None
    spawn_id: str | None = None


class PartRow(Answer, frozen=True, kw_only=True):
    """One message of a delivery."""

    n: int
    state: str
    message_id: str | None = None
    attempts: int = 0
    error: str | None = None


class DeliveryRow(Answer, frozen=True, kw_only=True):
    """A delivery without its parts."""

    id: str
    state: str
    session_key: str
    attempts: int
    created_at: int
    updated_at: int
    exchange_id: str | None = None
    run_id: str | None = None
    channel: str | None = None
    account_id: str | None = None
    to: str | None = None
    thread_id: str | None = None
    error: str | None = None
    due_at: int | None = None


class ReceiptRow(DeliveryRow, frozen=True, kw_only=True):
    """A delivery with its text and its parts."""

    parts: list[PartRow]
    text: str | None = None


class ApprovalRow(Answer, frozen=True, kw_only=True):
    """A tool call that a person has to approve."""

    id: str
    run_id: str
    session_key: str
    tool: str
    args: Any
    state: str
    """`pending`, `approved`, `denied` or `expired`."""
    created_at: int
    answered_at: int | None = None
    answered_by: str | None = None


class Flow(Answer, frozen=True, kw_only=True):
    """An exchange or a receipt in short."""

    id: str
    state: str
    updated_at: int
    error: str | None = None


class SpawnShown(Answer, frozen=True, kw_only=True):
    """The start of a sub-agent, and its outcome."""

    state: str
    """`run`, `announce` or `done`."""
    task: str
    run_id: str
    run_status: str
    receipt: Flow
    outcome: str | None = None
    """`posted`, `skipped` or `cancelled`."""
    resume_at: int | None = None
    """The next try of its run that is set aside after crashes, or that waits for a model."""
    waits_for: AwaitedByRun | None = None
    """As in a RunRow."""
    started_at: int | None = None
    at_work_since: int | None = None
    """As in a RunRow."""
    ended_at: int | None = None
    runtime_ms: int | None = None
    model: str | None = None


class Child(Answer, frozen=True, kw_only=True):
    """A session that this one spawned."""

    key: str
    status: str
    usage: Usage
    label: str | None = None
    archived_at: int | None = None
    spawn: SpawnShown | None = None


class TreeNode(Answer, frozen=True, kw_only=True):
    """A session in a tree."""

    key: str
    name: str
    kind: str
    agent_id: str
    status: str
    updated_at: int
    usage: Usage
    """The usage of the session itself, like `tokens` and `cost`."""
    tree_usage: Usage
    """The usage of the session and all below it."""
    children: list[str]
    """The keys of its children that are shown."""
    spawned: int
    """The number of its children, shown or not."""
    tokens: int
    cost: float | None = None
    parent_key: str | None = None
    label: str | None = None
    display_name: str | None = None
    archived: bool = False
    archived_at: int | None = None
    spawn: SpawnShown | None = None
    task: str | None = None
    run_status: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    receipt: Flow | None = None


class PartyShown(Answer, frozen=True, kw_only=True):
    """One of the two sessions, at the time of the send."""

    session_key: str
    channel: str


class ExchangeShown(Answer, frozen=True, kw_only=True):
    """An exchange, with its runs and its receipt."""

    id: str
    state: str
    """`primary`, `handover`, `turn`, `announce` or `done`."""
    turn: int
    max_turns: int
    waiting: bool
    target: PartyShown
    message: str
    path: tuple[str, ...]
    runs: list[RunRow]
    receipt: ReceiptRow
    created_at: int
    updated_at: int
    requester: PartyShown | None = None
    reply: str | None = None
    latest_reply: str | None = None
    loop_end: str | None = None
    outcome: str | None = None
    reason: str | None = None


class PairingRow(Answer, frozen=True, kw_only=True):
    """A person whom the settings do not name."""

    channel: str
    account_id: str
    sender_id: str
    state: str
    """`pending`, `approved` or `denied`."""
    created_at: int
    sender_name: str | None = None
    code: str | None = None
    expires_at: int | None = None
    answered_at: int | None = None
    answered_by: str | None = None


class ChannelSettingsShown(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """The settings that every channel has; others are not shown, since they may be secrets."""

    allow_from: tuple[str, ...]
    owners: tuple[str, ...]
    require_mention: bool
    allow_bots: bool
    pairing: bool
    max_text_length: int


class ChannelState(Answer, frozen=True, kw_only=True):
    """The state of a channel."""

    name: str
    adapter: str
    status: str
    """`ok`, `connecting` or `down`."""
    since: int | None = None
    last_error: str | None = None
    last_error_at: int | None = None


class ChannelShown(ChannelState, frozen=True, kw_only=True):
    """A channel, its state and its queue."""

    waiting: int
    failed: int
    uncertain: int
    accounts: list[str] | None = None
    settings: ChannelSettingsShown | None = None


class TokenShown(Answer, frozen=True, kw_only=True):
    id: str
    scopes: list[str]
    created_at: int
    session_key: str | None = None
    label: str | None = None
    revoked_at: int | None = None
    device: TokenDevice | None = None


class TokenDevice(Answer, frozen=True, kw_only=True):
    """The device of a device token."""

    id: str
    made_from: str
    """The id of the token it was made from, or `operator`."""
    is_stale: bool = False
    """Whether it was made from an operator's token that is no longer valid here."""
    client: str | None = None
    platform: str | None = None
    origin: str | None = None
    last_used_at: int
    """Exact to the hour."""
    ends_at: int


class AgentModel(Answer, frozen=True, kw_only=True):
    primary: str
    fallbacks: tuple[str, ...] = ()


class AgentTool(Answer, frozen=True, kw_only=True):
    name: str
    allowed: bool
    because: str | None = None


class AgentSubagents(Answer, frozen=True, kw_only=True):
    allow_agents: tuple[str, ...]
    model: str
    max_children: int


class AgentDetails(Answer, frozen=True, kw_only=True):
    """The part of an agent that OpenClaw's answer has no place for."""

    tools: list[AgentTool]
    """The tools of its main session."""
    subagents: AgentSubagents
    is_function: bool
    model: str | None = None
    workspace: str | None = None
    waits_for: str | None = None


class AgentShown(Answer, frozen=True, kw_only=True):
    id: str
    backchannel: AgentDetails
    name: str | None = None
    model: AgentModel | None = None
    thinking_default: str | None = None


class HealthProblem(Answer, frozen=True, kw_only=True):
    """A problem, and what to do about it."""

    code: str
    message: str
    hint: str


class ServiceState(Answer, frozen=True, kw_only=True):
    """One part of the gateway that is kept going."""

    name: str
    up: bool
    since: int
    last_error: str | None = None
    last_error_at: int | None = None
    next_try_at: int | None = None


class GatewayState(Answer, frozen=True, kw_only=True):
    """One of the gateways on a database."""

    number: int
    name: str
    version: str
    since: int
    agents: list[str]
    is_this: bool


class SlotUse(Answer, frozen=True, kw_only=True):
    """A piece of work that has a slot or waits for one."""

    id: str = ""
    """Absent for a session that waits with a queued run."""
    kind: str
    agent_id: str
    session_key: str
    what: str
    """A command, a tool or a model, in words."""
    since: int | None = None
    """The time of its start, in milliseconds since 1970."""
    run_id: str | None = None
    is_waiting: bool = False


class SlotCount(Answer, frozen=True, kw_only=True):
    """The slots of one kind, counted."""

    kind: str
    limit: int
    own: int
    """The number reserved for each agent."""
    used: int
    waiting: int


class DecisionExplained(Answer, frozen=True, kw_only=True):
    """A decision, its reason, and the setting behind it."""

    what: str
    allowed: bool
    reason: str
    rule: str | None = None
