"""Values of an exchange: its row, its events and its actions.

`core/flows/exchange.py` moves them. An `Exchange` is what the body of its row holds; everything here is a plain value.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from backchannel.core.delivery.delivery import Receipt
from backchannel.core.flows.flow import AbortRun, QueueRun, RunEnded, Settle
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Provenance
from backchannel.core.policy.limits import Lineage
from backchannel.core.runs import Chain, FlowCall, Run
from backchannel.core.sessions import MAX_INTEGER, Address, Session
from backchannel.core.stored import StoredForm


class ExchangeState(StrEnum):
    """The state of an exchange. `core/flows/exchange.py` has the moves."""

    PRIMARY = "primary"
    HANDOVER = "handover"
    TURN = "turn"
    ANNOUNCE = "announce"
    DONE = "done"


class ExchangeOutcome(StrEnum):
    """What became of the announce, as far as the exchange knows: the outbox has the rest of an announced one."""

    ANNOUNCED = "announced"
    SKIPPED = "skipped"
    NO_CHANNEL = "no_channel"
    CANCELLED = "cancelled"
    FAILED = "failed"


class EarlyEnding(StrEnum):
    """Why an exchange takes a shorter way, because one of its sessions changed."""

    LOOP_OVER = "loop_over"
    """No further turn; the announce still runs."""
    CANCELLED = "cancelled"
    """No further turn and no announce."""


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two sessions."""

    key: SessionKey
    channel: str = "unknown"
    shown: str | None = None
    """The key as others may write it, where it is not the stored one."""

    @property
    def name(self) -> str:
        return self.shown or str(self.key)


class SendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `sessions_send` asks for, with everything about the two sessions that is written down at acceptance."""

    exchange_id: str
    run_id: str
    """The primary run's; the idempotency key of a call from outside a run."""
    requester: Party | None
    """None when it is no session that asks: an operator, an outside client."""
    target: Party
    message: str
    call_id: str | None
    """The tool call in a run of the requester; None when a program made the call from outside."""
    is_waiting: bool
    address: Address | None
    """The target's return address."""
    origin: Lineage | None
    """Where the calling run stands; None for a call from outside."""
    reply_to: Address | None = None
    """Where the calling run replies to."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What `sessions_send` started."""

    id: str
    requester: Party | None
    target: Party
    request: str
    call_id: str | None
    primary_run: str
    max_turns: int
    chain: Chain
    path: tuple[str, ...]
    address: Address | None
    """Where the announce goes: written at acceptance or, if there was none then, when the announce begins."""
    is_waiting: bool
    """Whether the caller waits: for the primary run and then, in a run of its own, for its result to be written."""
    run_id: str | None
    """The run that is open; the end of any other changes nothing."""
    state: ExchangeState = ExchangeState.PRIMARY
    turn: int = 0
    reply: str | None = None
    """The target's reply to the request."""
    latest: str | None = None
    """The newest reply of either side."""
    failure: str | None = None
    """Why the primary run failed."""
    has_reply: bool = False
    """Whether the requester has the reply: as the call's result, in a turn's message, or as a note."""
    loop_end: str | None = None
    """Why there are no more turns, or never were; None while there may be."""
    ending: EarlyEnding | None = None
    is_requester_gone: bool = False
    announces: int = 0
    """How many announce runs there were: one, unless a reset interrupted it or a person retried it."""
    announces_again: bool = False
    """A reset stops the announce run that is open; another follows."""
    outcome: ExchangeOutcome | None = None
    reason: str | None = None
    reply_to: Address | None = None
    """Where the run that asked replies to: what the requester starts in its turns answers there too."""

    @property
    def is_left(self) -> bool:
        """Whether the call that asked has nothing more to expect: what comes of it comes as a message."""
        return self.call_id is not None and not self.is_waiting

    @property
    def is_same_session(self) -> bool:
        return self.requester is not None and self.requester.key == self.target.key

    @property
    def speaker(self) -> Party:
        """The session whose run is open, or was last: turn 1 is the requester's, turn 2 the target's, and so on."""
        if self.state is ExchangeState.TURN and self.turn % 2 == 1 and self.requester is not None:
            return self.requester
        return self.target

    @property
    def note_taker(self) -> Party | None:
        """Whom a note about this exchange would tell something new."""
        return None if self.is_requester_gone or self.is_same_session else self.requester


_STORED: StoredForm[Exchange] = StoredForm(Exchange)
read_exchange, write_exchange = _STORED.read, _STORED.write


# What happens


class WaitEnd(StrEnum):
    EXPIRED = "expired"
    """Its time ran out."""
    ANSWERED = "answered"
    """The call's result was committed."""
    BROKEN = "broken"
    """The call ended without the reply: its run was stopped, failed or timed out."""


class WaitEnded(msgspec.Struct, frozen=True):
    """The caller no longer waits."""

    how: WaitEnd


class Change(StrEnum):
    RESET = "reset"
    STOP = "stop"
    DELETE = "delete"


class SessionInterrupted(msgspec.Struct, frozen=True, kw_only=True):
    """A person reset, stopped or deleted one of the two sessions."""

    key: SessionKey
    change: Change
    active_run: str | None = None
    """The run that this stops."""


class StepRetried(msgspec.Struct, frozen=True, kw_only=True):
    """A person asked for a failed run once more."""

    run_id: str | None = None
    """The run, when it was itself queued again; None asks for a new announce run."""


Event = RunEnded | WaitEnded | SessionInterrupted | StepRetried


# What is to be done


class AddNote(msgspec.Struct, frozen=True, kw_only=True):
    """Put a note into a session's inbox."""

    key: SessionKey
    text: str
    provenance: Provenance


class Deliver(msgspec.Struct, frozen=True, kw_only=True):
    """Hand the announce to the outbox, under the receipt's id."""

    run_id: str
    """The announce run that wrote it."""
    text: str
    address: Address


class Reopen(msgspec.Struct, frozen=True):
    """Make a failed receipt pending again."""


Action = QueueRun | AbortRun | AddNote | Deliver | Settle | Reopen
Stepped = tuple[Exchange, tuple[Action, ...]]


# What is asked of the store, and what it tells


class ExchangeOpened(msgspec.Struct, frozen=True):
    """An exchange, as it is now, and until when its caller waits (None: no longer, or never did)."""

    exchange: Exchange
    run: Run
    delivery_id: str
    delivery_state: str
    wait_until: int | None


class ExchangeRecord(msgspec.Struct, frozen=True):
    """An exchange with all that became of it."""

    exchange: Exchange
    runs: list[Run]
    receipt: Receipt
    created_at: int
    updated_at: int


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A send, as a tool asks for it; what it stands on is read in the unit that accepts it."""

    call: FlowCall
    requester: SessionKey | None
    target: SessionKey
    message: str
    wait_ms: int
    target_session_id: str | None = None
    """The id that the target was named by, if it was: no other transcript of it is meant."""


class ExchangePlace(msgspec.Struct, frozen=True):
    """A place in the list: exchanges after (older than) this one. It travels in cursors, so it may be forged."""

    created_at: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
    id: str


class Talk(msgspec.Struct, frozen=True, kw_only=True):
    """What passed from one session, or from the operator, to another."""

    requester: str | None
    target: str
    last_at: int
    sends: int = 0
    replies: int = 0
    """What came back: replies to sends, and results of sub-agents."""
    spawns: int = 0
    cost: float | None = None


class TalkMap(msgspec.Struct, frozen=True):
    """Who talked to whom, and the sessions that did, as far as they are still there."""

    talks: list[Talk]
    sessions: dict[str, Session]
    is_cut: bool
