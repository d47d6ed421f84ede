"""Deliveries: one outbound message to a chat, and its receipt.

States and who moves them. A receipt is `pending` from the commit that caused it. The step that writes its text may
settle it at once:

- `skipped`: there is nothing to say.
- `no_channel`: there is nowhere to say it.
- `cancelled`: its cause is gone.
- `suppressed`: the send policy forbids it.
- `failed`: the run that was to write the text failed.

The outbox makes a receipt `sending` in a commit of its own before it calls the channel. The outcome is `sent`,
`failed`, `uncertain` (nobody knows), or `pending` once more (to be sent again at `due_at`). Only a person's action
changes `failed` and `uncertain`; a proof of arrival also changes `uncertain`. Every other state is final.

A delivery is sent in parts, one after the other. Each part has its own key and attempts. Parts are `pending`,
`sending`, `sent`, `failed` or `uncertain`. The first part that is not sent decides the state of the whole. When a
delivery is dropped, its unsent parts become `dropped`. The other parts keep their states.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Self

import msgspec

from backchannel.core.delivery.channels import (
    DEFAULT_ACCOUNT,
)
from backchannel.core.delivery.outgoing import Button, FileCopy
from backchannel.core.delivery.splitting import Measure, split
from backchannel.core.runs import Run, RunState, ToolCall
from backchannel.core.secrets.redaction import redact_value_opening
from backchannel.core.sessions import WEBCHAT, Address, read_address
from backchannel.core.text import cut
from backchannel.errors import InvalidRequest

VERBOSE = "on"
"""The `verboseLevel` of a session whose chat is told of each tool call."""
_LONGEST_NUMBER = 10
_LONGEST_ID = 64  # clients choose ids, and a chat is no place for long ones
_NAME_LIMIT = 64
_ARGUMENTS_LIMIT = 160


class DeliveryState(StrEnum):
    PENDING = "pending"
    SKIPPED = "skipped"
    NO_CHANNEL = "no_channel"
    CANCELLED = "cancelled"
    SUPPRESSED = "suppressed"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"
    UNCERTAIN = "uncertain"
    DROPPED = "dropped"

    @property
    def is_settled(self) -> bool:
        """True if the state is final."""
        return not (self.is_open or self.needs_person)

    @property
    def is_open(self) -> bool:
        """True if the gateway still works on it."""
        return self in (DeliveryState.PENDING, DeliveryState.SENDING)

    @property
    def needs_person(self) -> bool:
        """True if only a person can settle it."""
        return self in (DeliveryState.FAILED, DeliveryState.UNCERTAIN)


class DeliveryLane(NamedTuple):
    """One chat, or one thread in it. Its messages are sent one at a time, in order."""

    channel: str
    account_id: str
    to: str
    thread_id: str | None

    @classmethod
    def of(cls, channel: str, to: str, account_id: str | None = None, thread_id: str | None = None) -> Self:
        """Return the lane of an address. No account and the default account are the same lane."""
        return cls(channel, account_id or DEFAULT_ACCOUNT, to, thread_id)


class Delivery(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A delivery as it is stored. The field names are the columns."""

    position: int
    """Its place in the line of its chat: the order in which texts, and retries, were committed."""
    id: str
    session_key: str
    exchange_id: str | None
    run_id: str | None
    state: DeliveryState
    channel: str | None
    account_id: str | None
    target: str | None
    thread_id: str | None
    text: str | None
    """Absent until the step that writes it has ended."""
    attempts: int
    error: str | None
    due_at: int | None
    """When it may be sent; absent means at once."""
    created_at: int
    updated_at: int
    number: int = 0
    """The order in which receipts were made; it never changes, so lists go by it."""
    quotes: str | None = None
    """The platform's id of the message that its first part quotes."""
    buttons: str | None = None
    """The buttons under its last part, as JSON."""
    question: str | None = None
    """What it asks its reader, by the name of the row: `approval:1a2b3c4d`."""
    edits: str | None = None
    """The delivery whose last message it replaces."""
    files: str | None = None
    """The files that follow its text, as JSON."""

    @property
    def lane(self) -> DeliveryLane | None:
        """The lane that it waits in; None without a text or an address, so that it delays nothing."""
        if self.text is None or self.channel is None or self.target is None:
            return None
        return DeliveryLane.of(self.channel, self.target, self.account_id, self.thread_id)


class Tries(NamedTuple):
    """The attempts of a part, with the last one. A person's retry starts the count again."""

    attempts: int
    waited_ms: int = 0


class Part(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One message of a delivery, as it is stored. The field names are the columns."""

    delivery_id: str
    n: int
    text: str
    state: DeliveryState = DeliveryState.PENDING
    message_id: str | None = None
    attempts: int = 0
    error: str | None = None
    waited_ms: int = 0
    """How long its retries have waited in all; a person's retry begins anew."""
    draft_id: str | None = None
    """The platform's id of the draft whose place it takes, by an edit."""
    note: str | None = None
    """What its receipt says of it, also once it is sent."""
    crashes: int = 0
    """How many of its attempts ended with the process that made them."""
    doubt_at: int | None = None
    """When it was first sent without an answer. Absent: every attempt was answered."""
    file: str | None = None
    """The file that it sends, as JSON; the text is the caption."""
    purpose: str | None = None
    """What it is instead of what it was to be: another purpose has another key."""

    @property
    def key(self) -> str:
        return part_key(self.delivery_id, self.n, self.purpose)

    @property
    def tries(self) -> Tries:
        """The attempts that count: the platform had a part in them."""
        return Tries(max(self.attempts - self.crashes, 1), self.waited_ms)


INSTEAD = "instead"
"""The purpose of a line that stands for a file."""


def part_key(delivery_id: str, n: int, purpose: str | None = None) -> str:
    """Make the idempotency key of a delivery's n-th part, counted from 1.

    Most deliveries have one purpose, and an id of their own: the notice that stands for a reply is another delivery. A
    text that is sent elsewhere gets new numbers. A line that is sent in the place of a file has its `purpose`.
    """
    return f"{delivery_id}/{n}" if purpose is None else f"{delivery_id}/{n}/{purpose}"


def parse_part_key(key: str) -> tuple[str, int] | None:
    """Read the delivery and the number out of a key; None if it is no key of a part."""
    delivery_id, slash, n = key.removesuffix(f"/{INSTEAD}").rpartition("/")
    is_key = bool(delivery_id and slash) and n.isascii() and n.isdecimal() and len(n) < _LONGEST_NUMBER
    return (delivery_id, int(n)) if is_key else None


def draft_key(run_id: str) -> str:
    """Make the idempotency key of the post that first shows a run's reply. It is never that of a part."""
    return f"{run_id}/draft"


def make_parts(delivery_id: str, text: str, limit: int, measure: Measure = len, *, after: int = 0) -> list[Part]:
    """Split a delivery's text for its channel (`core/delivery/splitting.py`); `after` is the last number that is taken.

    A re-routed delivery is split again for its new channel. Its new parts get new numbers, because a platform that
    knows the old keys would post nothing.
    """
    parts = split(text, limit, measure)
    return [Part(delivery_id=delivery_id, n=n, text=part) for n, part in enumerate(parts, after + 1)]


def state_of(parts: Sequence[DeliveryState]) -> DeliveryState:
    """Return the state of a delivery from its parts, in order; `skipped` without parts."""
    if not parts:
        return DeliveryState.SKIPPED
    return next((state for state in parts if state is not DeliveryState.SENT), DeliveryState.SENT)


class PartAttempted(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a part after an attempt."""

    state: DeliveryState
    message_id: str | None = None
    wait_ms: int | None = None
    """How long to wait before the next attempt; absent where none is to be made, or at once."""
    error: str | None = None
    drops_draft: bool = False
    """Whether it is posted from now on, and edits no draft."""
    leaves_draft: bool = False
    """Whether the draft that it edits no more is still in its chat, and has to be removed."""
    drops_file: bool = False
    """Whether a line of text is sent from now on, in the place of its file."""
    is_crash: bool = False
    """Whether the process ended during the attempt, which then does not count."""
    doubts: bool = False
    """Whether it is not known what the platform did with this attempt."""


class DeliveryAction(StrEnum):
    """An action of a person on a delivery that failed or is uncertain."""

    RETRY = "retry"
    REROUTE = "reroute"
    DROP = "drop"
    CONFIRM = "confirm"
    """Say that the part arrived of which nobody knew: what is left is sent."""


_BECOMES = {
    DeliveryAction.RETRY: DeliveryState.PENDING,
    DeliveryAction.REROUTE: DeliveryState.PENDING,
    DeliveryAction.DROP: DeliveryState.DROPPED,
    DeliveryAction.CONFIRM: DeliveryState.SENT,
}
CONFIRMED = "a person said that it arrived"
"""What a part says that was confirmed."""
_WHY_NOT = {
    DeliveryState.PENDING: "the gateway is still trying; wait until it is sent, failed or uncertain",
    DeliveryState.SENDING: "it is being sent right now; wait until it is sent, failed or uncertain",
    DeliveryState.SENT: "it has arrived, and nothing is left to do",
}
_WHY_GONE = "it waits for a gateway that has its channel; re-route or drop it"
_SETTLED = "it is settled for good; `send` can post a text of its own"


def act(action: DeliveryAction, delivery: Delivery, *, has_channel: bool = True) -> DeliveryState:
    """Return the state of a delivery after a person's action. A retry without a text runs its announce again.

    A confirmed delivery is `sent`, or continues with its remaining parts.

    Without `has_channel`, this gateway lacks the delivery's channel. Perhaps another gateway has it. If none does, the
    delivery would wait for ever, so a person may drop or re-route it.

    Raises:
        InvalidRequest: nothing can be done in its state, or it has no text to send elsewhere.
    """
    state = delivery.state
    facts = {"deliveryId": delivery.id, "state": state.value}
    waits_in_vain = state is DeliveryState.PENDING and delivery.lane is not None and not has_channel
    may_act = state.needs_person or (waits_in_vain and action in (DeliveryAction.REROUTE, DeliveryAction.DROP))
    if not may_act:
        why = _WHY_GONE if waits_in_vain else _WHY_NOT.get(state, _SETTLED)
        works = (
            "only failed and uncertain deliveries can be retried, re-routed or dropped, and uncertain ones confirmed"
        )
        raise InvalidRequest(f"cannot {action} delivery {delivery.id}: it is {state} ({why}; {works})", **facts)
    if action is DeliveryAction.REROUTE and delivery.text is None:
        works = "retry it: that runs the announce again"
        raise InvalidRequest(f"cannot reroute delivery {delivery.id}: it has no text yet ({works})", **facts)
    if action is DeliveryAction.CONFIRM and state is not DeliveryState.UNCERTAIN:
        works = "retry, re-route or drop it; only uncertain ones can be confirmed"
        raise InvalidRequest(f"cannot confirm delivery {delivery.id}: it is {state} ({works})", **facts)
    return _BECOMES[action]


def notice_address(run: Run) -> Address | None:
    """Return the address for the failure notice of a run that just ended; None if there is no notice.

    A run that should answer an outside chat gets a notice if it ends as error or timeout. An aborted run gets none: a
    person asked for the abort. Webchat has an event instead, and flows post their own outcome. A retried run gets no
    second notice.
    """
    if run.state not in (RunState.ERROR, RunState.TIMEOUT) or run.failure_told:
        return None
    return owed_address(run)


def owed_address(run: Run) -> Address | None:
    """Return the outside chat that a run should answer; None if there is none."""
    if not run.deliver or run.kind.is_internal or run.reply_to is None:
        return None
    address = read_address(run.reply_to)
    return None if address.channel == WEBCHAT.channel or address.to is None else address


def notice_text(run_id: str) -> str:
    """Write the notice. It hides the provider's error, which the operator finds by the run's id."""
    return f"Sorry, I could not answer this (run {cut(run_id, _LONGEST_ID)}). The operator can see why."


def wait_text(run_id: str) -> str:
    """Write the notice that an answer comes later. It hides the provider's error."""
    return f"I cannot answer right now, and will as soon as I can (run {cut(run_id, _LONGEST_ID)})."


def tool_line(call: ToolCall) -> str:
    """Show a tool call and its arguments in one line. Credentials are hidden before the line is cut."""
    name = cut(" ".join(call.name.split()), _NAME_LIMIT)
    arguments = redact_value_opening(call.block.arguments, _ARGUMENTS_LIMIT)
    shown = f": {cut(msgspec.json.encode(arguments).decode(), _ARGUMENTS_LIMIT)}" if arguments else ""
    return f"🔧 {name}{shown}"


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """A text to deliver to a chat."""

    session_key: str
    address: Address | None
    text: str
    run_id: str | None = None
    exchange_id: str | None = None
    quotes: str | None = None
    """The platform's id of the message that it quotes."""
    always: bool = False
    """Whether the send policy is passed by: a command's reply."""
    buttons: tuple[Button, ...] = ()
    question: str | None = None
    """What it asks its reader, as in `Delivery`."""
    edits: str | None = None
    """The delivery whose last message it replaces."""
    files: tuple[FileCopy, ...] = ()


class Receipt(msgspec.Struct, frozen=True):
    """A delivery with its parts."""

    delivery: Delivery
    parts: list[Part]


class PartClaimed(msgspec.Struct, frozen=True):
    """A part that this process alone may send now."""

    delivery: Delivery
    part: Part
    asks: bool = False
    """Whether the platform is asked first: it may have the part already."""
    buttons: tuple[Button, ...] = ()
    file: FileCopy | None = None
