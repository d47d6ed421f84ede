"""Deliveries: receipts made with the step that causes them, and queued.

`core/delivery/delivery.py` decides; this writes. A row takes its place in the line when its text is written, and again
with each retry. So the row being sent is always the first of its lane. `sending.py` sends the parts.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from backchannel.core.commands.control_words import is_silent
from backchannel.core.delivery.attached import file_parts
from backchannel.core.delivery.channels import DEFAULT_ACCOUNT, no_channel
from backchannel.core.delivery.delivery import (
    CONFIRMED,
    VERBOSE,
    Delivery,
    DeliveryAction,
    DeliveryState,
    Part,
    Post,
    Receipt,
    act,
    make_parts,
    notice_address,
    notice_text,
    owed_address,
    tool_line,
    wait_text,
)
from backchannel.core.delivery.outgoing import read_files, write_buttons, write_files
from backchannel.core.facts import DeliveryChanged
from backchannel.core.runs import Run, RunState, ToolCall
from backchannel.core.sessions import WEBCHAT, Address, read_address
from backchannel.core.text import quoted
from backchannel.errors import DeliveryNotFound, InvalidRequest, PolicyDenied, UnknownChannel
from backchannel.storage.events import ReceiptSettled, RunClosed, RunUnanswered, RunWaits
from backchannel.storage.ids import new_id
from backchannel.storage.tables import DELIVERIES, DELIVERY_PARTS
from backchannel.storage.tx import Tx, assignments, filters, required, tell_shadowed
from backchannel.storage.units import drafts, idempotency, lines, sessions
from backchannel.storage.units.contact import attachments


def find(tx: Tx, delivery_id: str) -> Delivery | None:
    row = tx.one(f"{DELIVERIES.select} WHERE id = ?", delivery_id)
    return None if row is None else DELIVERIES.read(row)


def need(tx: Tx, delivery_id: str) -> Delivery:
    """Load a delivery that must exist."""
    delivery = find(tx, delivery_id)
    if delivery is None:
        raise DeliveryNotFound(
            f"no delivery {quoted(delivery_id)} (list shows those there are)", deliveryId=delivery_id[:80]
        )
    return delivery


def parts_of(tx: Tx, delivery_id: str) -> list[Part]:
    rows = tx.all(f"{DELIVERY_PARTS.select} WHERE delivery_id = ? ORDER BY n", delivery_id)
    return [DELIVERY_PARTS.read(row) for row in rows]


def receipt(tx: Tx, delivery_id: str) -> Receipt:
    """Load a delivery with its parts.

    Raises:
        DeliveryNotFound: there is none of this id.
    """
    return Receipt(need(tx, delivery_id), parts_of(tx, delivery_id))


def update(tx: Tx, delivery_id: str, **changed: Any) -> Delivery:
    """Change columns of a delivery, and record the change."""
    sets = assignments(changed)
    row = tx.one(f"UPDATE deliveries SET {sets} WHERE id = ? {DELIVERIES.returning}", *changed.values(), delivery_id)
    delivery = DELIVERIES.read(required(row))
    tx.tell(DeliveryChanged(delivery))
    if delivery.state.is_settled:
        tx.happened(ReceiptSettled(delivery))
    return delivery


# Creating a delivery


def post(tx: Tx, text: Post, *, at_once: bool = False) -> Delivery:
    """Create the receipt of a text, and queue it. With `at_once` it is checked and split now."""
    delivery_id = new_id()
    given = {
        "quotes": text.quotes,
        "buttons": write_buttons(text.buttons),
        "question": text.question,
        "edits": text.edits,
        "files": write_files(text.files),
    }
    asked = {name: value for name, value in given.items() if value is not None}
    _insert(tx, delivery_id, text.session_key, text.exchange_id, text.run_id, **asked)
    has_files = bool(text.files)
    return hand_over(tx, delivery_id, text.text, text.address, at_once=at_once, always=text.always, has_files=has_files)


def _insert(tx: Tx, id: str, session_key: str, exchange_id: str | None, run_id: str | None, **asked: str) -> None:
    tx.insert(
        DELIVERIES,
        id=id,
        session_key=session_key,
        exchange_id=exchange_id,
        run_id=run_id,
        state=DeliveryState.PENDING.value,
        created_at=tx.now,
        updated_at=tx.now,
        **asked,
    )


def post_once(
    tx: Tx,
    text: Post,
    *,
    expected_session_id: str | None = None,
    idempotency_key: str | None = None,
    digest: str | None = None,
) -> Receipt:
    """Queue a text; the same key again returns the first receipt.

    Raises:
        IdempotencyConflict: the key stands for something else.
        SessionIdReplaced: its session has another transcript than the one expected, or none.
    """

    def do() -> str:
        if expected_session_id is not None:
            sessions.need(tx, text.session_key, expected_session_id)
        return post(tx, text, at_once=True).id

    return receipt(tx, idempotency.once(tx, idempotency_key, digest, do))


def hand_over(
    tx: Tx,
    delivery_id: str,
    text: str,
    address: Address | None,
    *,
    run_id: str | None = None,
    at_once: bool = False,
    always: bool = False,
    has_files: bool = False,
) -> Delivery:
    """Write a receipt's text and address, and queue it. An empty text, or one without an address, is settled.

    `run_id` is the run that wrote the text, if it was not known before. With `at_once` the text is checked and split
    now, else when its turn comes. On webchat a session is its own chat.
    """
    if address is not None and address.channel == WEBCHAT.channel:
        address = Address(channel=WEBCHAT.channel, to=need(tx, delivery_id).session_key)
    state, error = DeliveryState.PENDING, None
    if is_silent(text) and not has_files:
        state = DeliveryState.SKIPPED
    elif address is None:
        state, error = DeliveryState.NO_CHANNEL, "the session has no return address, and none was named"
    elif address.to is None:
        state, error = DeliveryState.NO_CHANNEL, f"the address on {address.channel[:64]} names no chat"
    channel, account_id, target, thread_id = _columns(address)
    if run_id is not None:
        tx.run("UPDATE deliveries SET run_id = ? WHERE id = ?", run_id, delivery_id)
    delivery = update(
        tx,
        delivery_id,
        position=lines.take_place(tx, channel, account_id, target, thread_id),
        state=state.value,
        channel=channel,
        account_id=account_id,
        target=target,
        thread_id=thread_id,
        text=text,
        error=error,
        due_at=None,
        updated_at=tx.now,
    )
    if at_once and state is DeliveryState.PENDING:
        return prepare(tx, delivery, asks=not always)
    return delivery


def settle(tx: Tx, delivery_id: str, state: str, reason: str | None) -> Delivery:
    """Settle a receipt without sending anything."""
    return update(tx, delivery_id, state=DeliveryState(state).value, error=reason, due_at=None, updated_at=tx.now)


def _columns(address: Address | None) -> tuple[str | None, ...]:
    if address is None:
        return (None, None, None, None)
    return (address.channel, address.account_id or DEFAULT_ACCOUNT, address.to, address.thread_id)


def prepare(tx: Tx, delivery: Delivery, *, asks: bool = True) -> Delivery:
    """Split a delivery for its channel. If it cannot or may not go there, it is settled with the reason."""
    channel, text = delivery.channel or "", delivery.text or ""
    limit = tx.outlets.limit(channel)
    if limit is None:
        return settle(tx, delivery.id, DeliveryState.NO_CHANNEL, no_channel(channel, tx.outlets.names))
    if asks:
        session = sessions.find(tx, delivery.session_key)
        decision = tx.outlets.decide(delivery.session_key, session.send_policy if session else None, channel)
        tell_shadowed(tx, delivery.session_key, decision)
        if not decision.allowed:
            return settle(tx, delivery.id, DeliveryState.SUPPRESSED, decision.reason)
    taken = max((part.n for part in parts_of(tx, delivery.id)), default=0)
    measure = tx.outlets.measure(channel)
    parts = [] if is_silent(text) else make_parts(delivery.id, text, limit, measure, after=taken)
    files = file_parts(
        delivery.id, read_files(delivery.files), tx.outlets.file_limit(channel), after=taken + len(parts)
    )
    for part in parts:
        tx.insert(DELIVERY_PARTS, delivery_id=delivery.id, n=part.n, text=part.text, state=part.state.value)
    for part in files:
        of_file = {"file": part.file, "purpose": part.purpose}
        tx.insert(DELIVERY_PARTS, delivery_id=delivery.id, n=part.n, text=part.text, state=part.state.value, **of_file)
    return delivery


def post_reply(tx: Tx, event: RunClosed) -> None:
    """Create the receipt of a run's reply in the commit that ends the run, if the reply goes to a chat.

    On webchat the message in the transcript is the delivery. An empty reply or a control word has no receipt.
    """
    run = event.run
    if not run.deliver or run.state is not RunState.OK:
        return
    files = attachments.of_run(tx, run.id) if run.step != 1 else ()  # a run of one step has called no tool
    if is_silent(run.reply) and not files:
        return
    address = None if run.reply_to is None else read_address(run.reply_to)
    if address is None or address.channel != WEBCHAT.channel:
        text = "" if is_silent(run.reply) else run.reply or ""
        drafts.take_over(tx, run, post(tx, replace(_of_run(run, address, text), files=files)))


def post_notice(tx: Tx, event: RunUnanswered) -> None:
    """Tell a person once that there is no answer, in the commit that ends the run."""
    run = event.run
    address = notice_address(run)
    if address is not None:
        drafts.take_over(tx, run, post(tx, _of_run(run, address, notice_text(run.id))))
        tx.run("UPDATE runs SET failure_told = 1 WHERE id = ?", run.id)


def post_wait_notice(tx: Tx, event: RunWaits) -> None:
    """Tell a person once that the answer waits for a model, in the commit that sets the run aside."""
    run = event.run
    address = owed_address(run)
    if address is not None and tx.rules.tells_failures and not run.wait_told:
        drafts.take_over(tx, run, post(tx, _of_run(run, address, wait_text(run.id))))
        tx.run("UPDATE runs SET wait_told = 1 WHERE id = ?", run.id)


def _of_run(run: Run, address: Address | None, text: str) -> Post:
    return Post(session_key=run.session_key, address=address, text=text, run_id=run.id, quotes=run.quotes)


def post_call(tx: Tx, run: Run, call: ToolCall) -> None:
    """Post a tool call to the run's chat in the commit of its result, if the session wants that.

    Webchat sees the call in the transcript.
    """
    address = None if run.reply_to is None or not run.deliver else read_address(run.reply_to)
    if address is None or address.channel == WEBCHAT.channel:
        return
    session = sessions.find(tx, run.session_key)
    if session is not None and session.verbose_level == VERBOSE:
        line = tool_line(call)
        post(tx, Post(session_key=run.session_key, address=address, text=line, run_id=run.id))


# Reading


def oldest(tx: Tx, state: DeliveryState, limit: int, after: int) -> list[Delivery]:
    """List the deliveries in a state after a number, oldest first."""
    rows = tx.all(
        f"{DELIVERIES.select} WHERE state = ? AND number > ? ORDER BY number LIMIT ?", state.value, after, limit
    )
    return [DELIVERIES.read(row) for row in rows]


def page(
    tx: Tx, *, session_key: str | None = None, state: DeliveryState | None = None, limit: int, before: int | None = None
) -> list[Receipt]:
    """List receipts, newest first; `before` is the number of the last one seen."""
    where, values = filters(("session_key = ?", session_key), ("state = ?", state), ("number < ?", before))
    rows = tx.all(f"{DELIVERIES.select} WHERE {where} ORDER BY number DESC LIMIT ?", *values, limit)
    return [Receipt(delivery, parts_of(tx, delivery.id)) for delivery in map(DELIVERIES.read, rows)]


# The receipt of an announce: created with its send or spawn, and settled once.


def open_receipt(
    tx: Tx, delivery_id: str, session_key: str, exchange_id: str | None, *, run_id: str | None = None
) -> None:
    """Create the receipt of a text that is not written yet. It is in no line."""
    _insert(tx, delivery_id, session_key, exchange_id, run_id)
    tx.tell(DeliveryChanged(need(tx, delivery_id)))


def reopen(tx: Tx, delivery_id: str) -> None:
    """Make a failed receipt pending again, for another announce run."""
    update(tx, delivery_id, state=DeliveryState.PENDING.value, error=None, updated_at=tx.now)


# A person's actions on a delivery that did not arrive.


def retry(tx: Tx, delivery_id: str) -> Receipt:
    """Queue a delivery again, as if its missing parts had never been tried."""
    delivery = need(tx, delivery_id)
    _act(tx, DeliveryAction.RETRY, delivery)
    if delivery.text is None or delivery.channel is None:
        works = "retry the run that was to write it: runs.retry"
        raise InvalidRequest(f"cannot retry delivery {delivery_id}: it has no text ({works})", deliveryId=delivery_id)
    if tx.outlets.limit(delivery.channel) is None:
        message = f"{no_channel(delivery.channel, tx.outlets.names)}; re-route it, or configure the channel"
        raise UnknownChannel(message, deliveryId=delivery_id)
    tx.run(
        "UPDATE delivery_parts SET state = 'pending', attempts = 0, error = NULL, waited_ms = 0, crashes = 0 "
        "WHERE delivery_id = ? AND state NOT IN ('sent', 'dropped')",
        delivery_id,
    )
    return back_in_line(tx, delivery)


def reroute(tx: Tx, delivery_id: str, address: Address) -> Receipt:
    """Send a delivery's whole text elsewhere. What did not arrive at the old place is dropped there.

    Raises:
        UnknownChannel, PolicyDenied: it cannot go there.
        InvalidRequest: it cannot be re-routed any more, or not yet.
    """
    delivery = need(tx, delivery_id)
    _act(tx, DeliveryAction.REROUTE, delivery)
    if tx.outlets.limit(address.channel) is None or address.to is None:
        raise UnknownChannel(no_channel(address.channel, tx.outlets.names), channel=address.channel[:64])
    session = sessions.find(tx, delivery.session_key)
    decision = tx.outlets.decide(delivery.session_key, session.send_policy if session else None, address.channel)
    tell_shadowed(tx, delivery.session_key, decision)
    if not decision.allowed:
        raise PolicyDenied(f"not sent: {decision.reason}", rule=decision.rule, deliveryId=delivery_id)
    drafts.abandon(tx, delivery)
    tx.run("UPDATE delivery_parts SET state = 'dropped' WHERE delivery_id = ? AND state <> 'sent'", delivery_id)
    tx.run("UPDATE deliveries SET quotes = NULL WHERE id = ?", delivery_id)  # another chat does not have the message
    has_files = delivery.files is not None
    moved = hand_over(tx, delivery_id, delivery.text or "", address, at_once=True, has_files=has_files)
    return Receipt(moved, parts_of(tx, delivery_id))


def drop(tx: Tx, delivery_id: str) -> Receipt:
    """Settle a delivery as dropped. Its parts show how far it came."""
    _act(tx, DeliveryAction.DROP, need(tx, delivery_id))
    tx.run("UPDATE delivery_parts SET state = 'dropped' WHERE delivery_id = ? AND state = 'pending'", delivery_id)
    dropped = update(tx, delivery_id, state=DeliveryState.DROPPED.value, due_at=None, updated_at=tx.now)
    return Receipt(dropped, parts_of(tx, delivery_id))


def confirm(tx: Tx, delivery_id: str) -> Receipt:
    """Settle an uncertain part as sent, because a person saw it in the chat, and send the rest."""
    delivery = need(tx, delivery_id)
    _act(tx, DeliveryAction.CONFIRM, delivery)
    tx.run(
        "UPDATE delivery_parts SET state = 'sent', error = ?, note = coalesce(note, ?) "
        "WHERE delivery_id = ? AND state = 'uncertain'",
        CONFIRMED,
        CONFIRMED,
        delivery_id,
    )
    if any(part.state is DeliveryState.PENDING for part in parts_of(tx, delivery_id)):
        return back_in_line(tx, delivery)
    sent = update(tx, delivery_id, state=DeliveryState.SENT.value, due_at=None, error=CONFIRMED, updated_at=tx.now)
    return Receipt(sent, parts_of(tx, delivery_id))


def _act(tx: Tx, action: DeliveryAction, delivery: Delivery) -> None:
    act(action, delivery, has_channel=delivery.channel is None or tx.outlets.limit(delivery.channel) is not None)


def back_in_line(tx: Tx, delivery: Delivery) -> Receipt:
    """Queue what is left of a delivery behind all that waits for its chat."""
    place = lines.take_place(tx, delivery.channel, delivery.account_id, delivery.target, delivery.thread_id)
    pending = DeliveryState.PENDING.value
    changed = update(tx, delivery.id, position=place, state=pending, due_at=None, error=None, updated_at=tx.now)
    return Receipt(changed, parts_of(tx, delivery.id))
