"""Deliveries: a receipt made with the step that caused it, and put in line to be sent.

What follows what is decided in `core/delivery.py`; here it is written down. A row takes its place in line when its
text is written and again with each retry, so that within a lane the row that is being sent is always the first. How
its parts are sent is in `sending.py`, and what a person does with one that did not arrive in `mending.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from backchannel.core.channels import DEFAULT_ACCOUNT
from backchannel.core.control_words import is_silent
from backchannel.core.decisions import Decision
from backchannel.core.delivery import (
    VERBOSE,
    Delivery,
    DeliveryState,
    Part,
    make_parts,
    notice_address,
    notice_text,
    tool_line,
)
from backchannel.core.facts import DeliveryChanged
from backchannel.core.runs import Run, RunState, ToolCall
from backchannel.core.sessions import WEBCHAT, Address, read_address
from backchannel.core.text import quoted
from backchannel.errors import DeliveryNotFound
from backchannel.storage.ids import new_id
from backchannel.storage.transactions import sessions, spawns
from backchannel.storage.tx import Row, Tx, columns, required

FIELDS = columns(Delivery.__struct_fields__)
PART_FIELDS = columns(Part.__struct_fields__)


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


class Receipt(msgspec.Struct, frozen=True):
    """A delivery with its parts."""

    delivery: Delivery
    parts: list[Part]


def of_row(row: Row) -> Delivery:
    return msgspec.convert(row, Delivery, strict=False)


def part_of_row(row: Row) -> Part:
    return msgspec.convert(row, Part, strict=False)


def find(tx: Tx, delivery_id: str) -> Delivery | None:
    row = tx.one(f"SELECT {FIELDS} FROM deliveries WHERE id = ?", delivery_id)
    return None if row is None else of_row(row)


def need(tx: Tx, delivery_id: str) -> Delivery:
    """Load a delivery that must be there."""
    delivery = find(tx, delivery_id)
    if delivery is None:
        raise DeliveryNotFound(
            f"no delivery {quoted(delivery_id)} (deliveries.list shows those there are)", deliveryId=delivery_id[:80]
        )
    return delivery


def parts_of(tx: Tx, delivery_id: str) -> list[Part]:
    rows = tx.all(f"SELECT {PART_FIELDS} FROM delivery_parts WHERE delivery_id = ? ORDER BY n", delivery_id)
    return [part_of_row(row) for row in rows]


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
    delivery = of_row(required(row))
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
    to_the_end(tx, delivery_id)
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
        return prepare(tx, delivery, outlets, now, asks=not always)
    return delivery


def settle(tx: Tx, delivery_id: str, state: str, reason: str | None, now: int) -> Delivery:
    """Settle a receipt for which nothing is sent."""
    return update(tx, delivery_id, state=DeliveryState(state).value, error=reason, due_at=None, updated_at=now)


def to_the_end(tx: Tx, delivery_id: str) -> None:
    tx.run(
        "UPDATE deliveries SET position = (SELECT coalesce(max(position), 0) + 1 FROM deliveries) WHERE id = ?",
        delivery_id,
    )


def _columns(address: Address | None) -> tuple[str | None, ...]:
    if address is None:
        return (None, None, None, None)
    return (address.channel, address.account_id or DEFAULT_ACCOUNT, address.to, address.thread_id)


def prepare(tx: Tx, delivery: Delivery, outlets: Outlets, now: int, *, asks: bool = True) -> Delivery:
    """Split a delivery for its channel; one that cannot or may not go there is settled with the reason."""
    channel, text = delivery.channel or "", delivery.text or ""
    limit = outlets.limit(channel)
    if limit is None:
        return settle(tx, delivery.id, DeliveryState.NO_CHANNEL, no_channel(channel, outlets), now)
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


def no_channel(channel: str, outlets: Outlets) -> str:
    return f"no channel {quoted(channel, 64)} is configured (there are: {', '.join(outlets.names) or 'none'})"


def post_reply(tx: Tx, run: Run, now: int) -> None:
    """Make the receipt of a run's reply, in the commit that ends the run, if its reply is to leave the gateway.

    On webchat the transcript's message is the delivery. What says nothing to anyone has no receipt.
    """
    if not run.deliver or run.state is not RunState.OK or is_silent(run.reply):
        return
    address = None if run.reply_to is None else read_address(run.reply_to)
    if address is None or address.channel != WEBCHAT.channel:
        post(tx, Post(session_key=run.session_key, address=address, text=run.reply or "", run_id=run.id), now)


def post_notice(tx: Tx, run: Run, now: int) -> None:
    """Tell the person who was owed an answer that there is none, once, in the commit that ends the run."""
    address = notice_address(run)
    if address is not None:
        notice = Post(session_key=run.session_key, address=address, text=notice_text(run.id), run_id=run.id)
        post(tx, notice, now)
        tx.run("UPDATE runs SET failure_told = 1 WHERE id = ?", run.id)


def post_call(tx: Tx, run: Run, call: ToolCall, now: int) -> None:
    """Tell the chat that a run answers to of a tool call, in the commit of its result, if its session wants that.

    Webchat sees the call in the transcript.
    """
    address = None if run.reply_to is None or not run.deliver else read_address(run.reply_to)
    if address is None or address.channel == WEBCHAT.channel:
        return
    session = sessions.find(tx, run.session_key)
    if session is not None and session.verbose_level == VERBOSE:
        line = tool_line(call)
        post(tx, Post(session_key=run.session_key, address=address, text=line, run_id=run.id), now)


# Looking


def oldest(tx: Tx, state: DeliveryState, limit: int, after: int) -> list[Delivery]:
    """List the deliveries in a state, oldest first, from behind a number on."""
    rows = tx.all(
        f"SELECT {FIELDS} FROM deliveries WHERE state = ? AND number > ? ORDER BY number LIMIT ?",
        state.value,
        after,
        limit,
    )
    return [of_row(row) for row in rows]


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
    return [Receipt(delivery, parts_of(tx, delivery.id)) for delivery in map(of_row, rows)]
