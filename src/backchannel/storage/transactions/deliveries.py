"""Deliveries: a receipt made with the step that caused it, its parts claimed, sent and settled, one commit each.

What follows what is decided in `core/delivery.py`; here it is written down. A row takes its place in line when its
text is written and again with each retry, so that within a lane the row that is being sent is always the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from backchannel.core import verbosity
from backchannel.core.channels import DEFAULT_ACCOUNT, ChannelError, Sent
from backchannel.core.control_words import is_silent
from backchannel.core.decisions import Decision
from backchannel.core.delivery import (
    Action,
    Attempted,
    Delivery,
    DeliveryLane,
    DeliveryState,
    Part,
    Tries,
    act,
    after_attempt,
    after_crash,
    make_parts,
    state_of,
)
from backchannel.core.facts import DeliveryChanged
from backchannel.core.runs import Run, RunState, ToolCall
from backchannel.core.sessions import WEBCHAT, Address, read_address
from backchannel.errors import DeliveryNotFound, InvalidRequest, PolicyDenied, UnknownChannel
from backchannel.storage.ids import new_id
from backchannel.storage.transactions import sessions, spawns
from backchannel.storage.tx import Row, Tx, columns, required

FIELDS = columns(Delivery.__struct_fields__)
PART_FIELDS = columns(Part.__struct_fields__)

# Rows that stand in line, in the words of their index.
IN_LINE = "state IN ('pending', 'sending') AND text IS NOT NULL"


class Outlets(Protocol):
    """Where deliveries can go: the channels of this process, and what the send policy says of them."""

    @property
    def names(self) -> Sequence[str]: ...

    def limit(self, channel: str) -> int | None:
        """Tell how long a message of this channel may be; None when there is no such channel."""
        ...

    def decide(self, key: str, override: str | None, channel: str) -> Decision:
        """Ask whether a session's text may go there; `override` is the session's own policy."""
        ...


class NoOutlets:
    """What a store has before it is told of any channel."""

    names: Sequence[str] = ()

    def limit(self, channel: str) -> int | None:
        return None

    def decide(self, key: str, override: str | None, channel: str) -> Decision:
        return Decision(True, "nothing is asked")


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """A text that shall go to a chat."""

    session_key: str
    address: Address | None
    text: str
    run_id: str | None = None
    exchange_id: str | None = None
    always: bool = False
    """Whether the send policy is passed by: a command's reply."""


class Claimed(msgspec.Struct, frozen=True):
    """A part that may be sent now, and nobody else sends."""

    delivery: Delivery
    part: Part


class Receipt(msgspec.Struct, frozen=True):
    """A delivery with its parts."""

    delivery: Delivery
    parts: list[Part]


def _delivery(row: Row) -> Delivery:
    return msgspec.convert(row, Delivery, strict=False)


def _part(row: Row) -> Part:
    return msgspec.convert(row, Part, strict=False)


def find(tx: Tx, delivery_id: str) -> Delivery | None:
    row = tx.one(f"SELECT {FIELDS} FROM deliveries WHERE id = ?", delivery_id)
    return None if row is None else _delivery(row)


def need(tx: Tx, delivery_id: str) -> Delivery:
    """Load a delivery that must be there."""
    delivery = find(tx, delivery_id)
    if delivery is None:
        raise DeliveryNotFound(
            f"no delivery {delivery_id[:80]!r}: `deliveries.list` shows those there are", deliveryId=delivery_id[:80]
        )
    return delivery


def parts_of(tx: Tx, delivery_id: str) -> list[Part]:
    rows = tx.all(f"SELECT {PART_FIELDS} FROM delivery_parts WHERE delivery_id = ? ORDER BY n", delivery_id)
    return [_part(row) for row in rows]


def receipt(tx: Tx, delivery_id: str) -> Receipt:
    """Load a delivery with its parts.

    Raises:
        DeliveryNotFound: there is none of this id.
    """
    return Receipt(need(tx, delivery_id), parts_of(tx, delivery_id))


def update(tx: Tx, delivery_id: str, **changed: Any) -> Delivery:
    """Change columns of a delivery, and tell of it."""
    sets = ", ".join(f"{name} = ?" for name in changed)
    row = tx.one(f"UPDATE deliveries SET {sets} WHERE id = ? RETURNING {FIELDS}", *changed.values(), delivery_id)
    delivery = _delivery(required(row))
    tx.tell(DeliveryChanged(delivery))
    spawns.receipt_changed(tx, delivery, delivery.updated_at)
    return delivery


# Making one


def post(tx: Tx, post: Post, now: int, outlets: Outlets | None = None) -> Delivery:
    """Make the receipt of a text, in line to be sent; with `outlets`, what would stop it is told at once."""
    delivery_id = new_id()
    tx.run(
        "INSERT INTO deliveries (id, session_key, exchange_id, run_id, state, created_at, updated_at) "
        "VALUES (?, ?, ?, ?, 'pending', ?, ?)",
        delivery_id,
        post.session_key,
        post.exchange_id,
        post.run_id,
        now,
        now,
    )
    return hand_over(tx, delivery_id, post.text, post.address, now, outlets, always=post.always)


def hand_over(
    tx: Tx,
    delivery_id: str,
    text: str,
    address: Address | None,
    now: int,
    outlets: Outlets | None = None,
    *,
    always: bool = False,
) -> Delivery:
    """Write a receipt's text and address, and put it in line; what says nothing, or has no address, is settled.

    With `outlets` it is judged and split at once, else when its turn comes. On webchat a session is its own chat.
    """
    if address is not None and address.channel == WEBCHAT.channel:
        address = Address(channel=WEBCHAT.channel, to=need(tx, delivery_id).session_key)
    state, error = DeliveryState.PENDING, None
    if is_silent(text):
        state = DeliveryState.SKIPPED
    elif address is None:
        state, error = DeliveryState.NO_CHANNEL, "the session has no return address, and none was named"
    elif address.to is None:
        state, error = DeliveryState.NO_CHANNEL, f"the address on {address.channel[:64]} names no chat"
    channel, account_id, target, thread_id = _columns(address)
    _to_the_end(tx, delivery_id)
    delivery = update(
        tx,
        delivery_id,
        state=state.value,
        channel=channel,
        account_id=account_id,
        target=target,
        thread_id=thread_id,
        text=text,
        error=error,
        due_at=None,
        updated_at=now,
    )
    if outlets is not None and state is DeliveryState.PENDING:
        return _prepare(tx, delivery, outlets, now, asks=not always)
    return delivery


def settle(tx: Tx, delivery_id: str, state: str, reason: str | None, now: int) -> Delivery:
    """Settle a receipt for which nothing is sent."""
    return update(tx, delivery_id, state=DeliveryState(state).value, error=reason, due_at=None, updated_at=now)


def _to_the_end(tx: Tx, delivery_id: str) -> None:
    tx.run(
        "UPDATE deliveries SET position = (SELECT coalesce(max(position), 0) + 1 FROM deliveries) WHERE id = ?",
        delivery_id,
    )


def _columns(address: Address | None) -> tuple[str | None, ...]:
    if address is None:
        return (None, None, None, None)
    return (address.channel, address.account_id or DEFAULT_ACCOUNT, address.to, address.thread_id)


def _prepare(tx: Tx, delivery: Delivery, outlets: Outlets, now: int, *, asks: bool = True) -> Delivery:
    """Split a delivery for its channel; one that cannot or may not go there is settled with the reason."""
    channel, text = delivery.channel or "", delivery.text or ""
    limit = outlets.limit(channel)
    if limit is None:
        return settle(tx, delivery.id, DeliveryState.NO_CHANNEL, _no_channel(channel, outlets), now)
    if asks:
        session = sessions.find(tx, delivery.session_key)
        decision = outlets.decide(delivery.session_key, session.send_policy if session else None, channel)
        if not decision.allowed:
            return settle(tx, delivery.id, DeliveryState.SUPPRESSED, decision.reason, now)
    taken = max((part.n for part in parts_of(tx, delivery.id)), default=0)
    for part in make_parts(delivery.id, text, limit, after=taken):
        tx.run(
            "INSERT INTO delivery_parts (delivery_id, n, text, state) VALUES (?, ?, ?, ?)",
            part.delivery_id,
            part.n,
            part.text,
            part.state.value,
        )
    return delivery


def _no_channel(channel: str, outlets: Outlets) -> str:
    return f"no channel {channel[:64]!r} is configured (there are: {', '.join(outlets.names) or 'none'})"


def post_reply(tx: Tx, run: Run, now: int) -> None:
    """Make the receipt of a run's reply, in the commit that ends the run, if its reply is to leave the gateway.

    On webchat the transcript's message is the delivery. What says nothing to anyone has no receipt.
    """
    if not run.deliver or run.state is not RunState.OK or is_silent(run.reply):
        return
    address = None if run.reply_to is None else read_address(run.reply_to)
    if address is None or address.channel != WEBCHAT.channel:
        post(tx, Post(session_key=run.session_key, address=address, text=run.reply or "", run_id=run.id), now)


def post_call(tx: Tx, run: Run, call: ToolCall, now: int) -> None:
    """Tell the chat that a run answers to of a tool call, in the commit of its result, if its session wants that.

    Webchat sees the call in the transcript.
    """
    address = None if run.reply_to is None or not run.deliver else read_address(run.reply_to)
    if address is None or address.channel == WEBCHAT.channel:
        return
    session = sessions.find(tx, run.session_key)
    if session is not None and session.verbose_level == verbosity.ON:
        line = verbosity.tool_line(call)
        post(tx, Post(session_key=run.session_key, address=address, text=line, run_id=run.id), now)


# Sending


def _in(lane: DeliveryLane) -> tuple[str, list[str]]:
    """Say which rows stand in a lane, so that their index is entered at it."""
    where, values = "channel = ? AND account_id = ? AND target = ?", [lane.channel, lane.account_id, lane.to]
    if lane.thread_id is None:
        return f"{where} AND thread_id IS NULL AND {IN_LINE}", values
    return f"{where} AND thread_id = ? AND {IN_LINE}", [*values, lane.thread_id]


def claim(tx: Tx, lane: DeliveryLane, outlets: Outlets, now: int) -> Claimed | None:
    """Mark the next part of a lane as being sent, unless it waits for its time or another is on its way.

    A delivery whose turn comes first is judged by its real destination, and split for it. Those for webchat are settled
    here.
    """
    where, values = _in(lane)
    while row := tx.one(f"SELECT {FIELDS} FROM deliveries WHERE {where} ORDER BY position LIMIT 1", *values):
        head = _delivery(row)
        if head.state is DeliveryState.SENDING or (head.due_at is not None and head.due_at > now):
            return None
        if not _has_parts(tx, head.id):
            head = _prepare(tx, head, outlets, now)
        elif outlets.limit(lane.channel) is None:
            head = _fail(tx, head.id, _no_channel(lane.channel, outlets), now)
        if head.state is DeliveryState.PENDING:
            claimed = _begin(tx, head, now)
            if lane.channel != WEBCHAT.channel:
                return claimed
            # The message is in the transcript, and this commit is told as a `chat` event: nobody else has to take it.
            _write(tx, claimed.part, Attempted(state=DeliveryState.SENT), now)
    return None


def _has_parts(tx: Tx, delivery_id: str) -> bool:
    row = tx.one("SELECT 1 FROM delivery_parts WHERE delivery_id = ? AND state NOT IN ('sent', 'dropped')", delivery_id)
    return row is not None


def _begin(tx: Tx, head: Delivery, now: int) -> Claimed:
    part = tx.one(
        "UPDATE delivery_parts SET state = 'sending', attempts = attempts + 1, error = NULL, "
        "first_attempt_at = coalesce(first_attempt_at, ?) WHERE delivery_id = ? AND n = "
        "(SELECT min(n) FROM delivery_parts WHERE delivery_id = ? AND state NOT IN ('sent', 'dropped')) "
        f"RETURNING {PART_FIELDS}",
        now,
        head.id,
        head.id,
    )
    sending = update(
        tx, head.id, state=DeliveryState.SENDING.value, attempts=head.attempts + 1, due_at=None, updated_at=now
    )
    return Claimed(sending, _part(required(part)))


def _fail(tx: Tx, delivery_id: str, error: str, now: int) -> Delivery:
    tx.run(
        "UPDATE delivery_parts SET state = 'failed', error = ? WHERE delivery_id = ? AND state = 'pending'",
        error,
        delivery_id,
    )
    return settle(tx, delivery_id, DeliveryState.FAILED, error, now)


def attempted(tx: Tx, claimed: Part, answer: Sent | ChannelError, *, takes_key: bool, now: int) -> Delivery:
    """Write what an attempt came to; one that is not the part's last any more changes nothing."""
    row = tx.one(
        f"SELECT {PART_FIELDS} FROM delivery_parts WHERE delivery_id = ? AND n = ?", claimed.delivery_id, claimed.n
    )
    part = None if row is None else _part(row)
    if part is None or part.state is not DeliveryState.SENDING or part.attempts != claimed.attempts:
        return need(tx, claimed.delivery_id)
    tries = Tries(part.attempts, part.first_attempt_at or now)
    return _write(tx, part, after_attempt(answer, tries, takes_key=takes_key, now_ms=now), now)


def _write(tx: Tx, part: Part, made: Attempted, now: int) -> Delivery:
    tx.run(
        "UPDATE delivery_parts SET state = ?, message_id = ?, error = ? WHERE delivery_id = ? AND n = ?",
        made.state.value,
        made.message_id,
        made.error,
        part.delivery_id,
        part.n,
    )
    rows = tx.all(
        "SELECT state FROM delivery_parts WHERE delivery_id = ? AND state <> 'dropped' ORDER BY n", part.delivery_id
    )
    state = state_of([DeliveryState(state) for (state,) in rows])
    return update(tx, part.delivery_id, state=state.value, due_at=made.due_at, error=made.error, updated_at=now)


def any_sending(tx: Tx) -> bool:
    """Whether a process ended while it was sending something."""
    return tx.one("SELECT 1 FROM deliveries WHERE state = 'sending' LIMIT 1") is not None


def recover(tx: Tx, takes_key: Callable[[str], bool], now: int) -> None:
    """Decide on every part that was being sent when its process ended."""
    rows = tx.all("SELECT id, channel FROM deliveries WHERE state = 'sending' ORDER BY id")
    for delivery_id, channel in rows:
        for part in parts_of(tx, delivery_id):
            made = after_crash(part.state, part.attempts, takes_key=takes_key(channel))
            if made is not None:
                _write(tx, part, made, now)


def lanes_in_line(tx: Tx) -> list[DeliveryLane]:
    """Name the lanes that have something to send, now or later."""
    rows = tx.all(f"SELECT DISTINCT channel, account_id, target, thread_id FROM deliveries WHERE {IN_LINE}")
    return [DeliveryLane(*row) for row in rows]


def lanes_due(tx: Tx, now: int) -> list[DeliveryLane]:
    """Name the lanes whose retry has come."""
    rows = tx.all(
        "SELECT channel, account_id, target, thread_id FROM deliveries "
        "WHERE due_at IS NOT NULL AND due_at <= ? ORDER BY due_at",
        now,
    )
    return [DeliveryLane(*row) for row in rows]


def next_due(tx: Tx, now: int) -> int | None:
    """Tell when the next retry is due, after those that are."""
    row = tx.one("SELECT min(due_at) FROM deliveries WHERE due_at IS NOT NULL AND due_at > ?", now)
    return None if row is None else row[0]


# What a person does


def retry(tx: Tx, delivery_id: str, outlets: Outlets, now: int) -> Receipt:
    """Put a delivery back in line, as if its parts that did not arrive had never been tried."""
    delivery = need(tx, delivery_id)
    act(Action.RETRY, delivery)
    if delivery.text is None or delivery.channel is None:
        works = "retry the run that was to write it: runs.retry"
        raise InvalidRequest(f"cannot retry delivery {delivery_id}: it has no text ({works})", deliveryId=delivery_id)
    if outlets.limit(delivery.channel) is None:
        message = f"{_no_channel(delivery.channel, outlets)}; re-route it, or configure the channel"
        raise UnknownChannel(message, deliveryId=delivery_id)
    tx.run(
        "UPDATE delivery_parts SET state = 'pending', attempts = 0, error = NULL, first_attempt_at = NULL "
        "WHERE delivery_id = ? AND state NOT IN ('sent', 'dropped')",
        delivery_id,
    )
    return _back_in_line(tx, delivery_id, now)


def reroute(tx: Tx, delivery_id: str, address: Address, outlets: Outlets, now: int) -> Receipt:
    """Send a delivery's whole text elsewhere; what did not arrive at the old place is dropped there.

    Raises:
        UnknownChannel, PolicyDenied: it cannot go there.
        InvalidRequest: it cannot be re-routed any more, or not yet.
    """
    delivery = need(tx, delivery_id)
    act(Action.REROUTE, delivery)
    if outlets.limit(address.channel) is None or address.to is None:
        raise UnknownChannel(_no_channel(address.channel, outlets), channel=address.channel[:64])
    session = sessions.find(tx, delivery.session_key)
    decision = outlets.decide(delivery.session_key, session.send_policy if session else None, address.channel)
    if not decision.allowed:
        raise PolicyDenied(f"not sent: {decision.reason}", rule=decision.rule, deliveryId=delivery_id)
    tx.run("UPDATE delivery_parts SET state = 'dropped' WHERE delivery_id = ? AND state <> 'sent'", delivery_id)
    moved = hand_over(tx, delivery_id, delivery.text or "", address, now, outlets)
    return Receipt(moved, parts_of(tx, delivery_id))


def drop(tx: Tx, delivery_id: str, now: int) -> Receipt:
    """Settle a delivery as given up; its parts tell how far it came."""
    act(Action.DROP, need(tx, delivery_id))
    dropped = update(tx, delivery_id, state=DeliveryState.DROPPED.value, due_at=None, updated_at=now)
    return Receipt(dropped, parts_of(tx, delivery_id))


def _back_in_line(tx: Tx, delivery_id: str, now: int) -> Receipt:
    _to_the_end(tx, delivery_id)
    pending = DeliveryState.PENDING.value
    changed = update(tx, delivery_id, state=pending, due_at=None, error=None, updated_at=now)
    return Receipt(changed, parts_of(tx, delivery_id))


# Looking


def page(
    tx: Tx, *, session_key: str | None, state: DeliveryState | None, limit: int, before: int | None
) -> list[Receipt]:
    """List receipts, newest first."""
    conditions: list[str] = ["1 = 1"]
    values: list[Any] = []
    if session_key is not None:
        conditions.append("session_key = ?")
        values.append(session_key)
    if state is not None:
        conditions.append("state = ?")
        values.append(state.value)
    if before is not None:
        conditions.append("number < ?")
        values.append(before)
    where = " AND ".join(conditions)
    rows = tx.all(f"SELECT {FIELDS} FROM deliveries WHERE {where} ORDER BY number DESC LIMIT ?", *values, limit)
    return [Receipt(delivery, parts_of(tx, delivery.id)) for delivery in map(_delivery, rows)]
