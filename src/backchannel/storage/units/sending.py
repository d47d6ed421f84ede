"""Parts of deliveries: claimed, sent and settled, one commit each."""

from __future__ import annotations

from msgspec.structs import replace

from backchannel.core.delivery.attached import instead_line
from backchannel.core.delivery.attempts import (
    AttemptRules,
    DoubtMove,
    DoubtStays,
    account_hold_ms,
    after_attempt,
    after_crash,
    after_question,
)
from backchannel.core.delivery.channels import ChannelError, ChannelMoved, ChannelRefused, Sent, no_channel
from backchannel.core.delivery.delivery import (
    INSTEAD,
    Delivery,
    DeliveryLane,
    DeliveryState,
    Part,
    PartAttempted,
    PartClaimed,
    state_of,
)
from backchannel.core.delivery.drafts import LEFT_BEHIND, DraftBefore
from backchannel.core.delivery.outgoing import Button, FileCopy, read_buttons, read_file
from backchannel.core.sessions import WEBCHAT
from backchannel.storage.tables import DELIVERIES, DELIVERY_PARTS
from backchannel.storage.tx import ALIVE, Tx, required
from backchannel.storage.units import chats, deliveries, drafts, lines
from backchannel.storage.units.chats import ChatPlace


def claim(tx: Tx, lane: DeliveryLane) -> PartClaimed | None:
    """Mark the next part of a lane as being sent, unless it must wait or another is being sent.

    A delivery that becomes the first is checked for its real destination, and split for it. One for webchat is settled
    here.
    """
    if lane.channel != WEBCHAT.channel and (to := chats.moved_to(tx, _chat(lane))) is not None:
        _follow(tx, lane, to)
        return None
    where, values = lines.in_lane(lane)
    while row := tx.one(f"{DELIVERIES.select} WHERE {where} ORDER BY position LIMIT 1", *values):
        head = DELIVERIES.read(row)
        if head.state is DeliveryState.SENDING or (head.due_at is not None and head.due_at > tx.now):
            return None
        if head.edits is not None and _edited(tx, head) is None:
            deliveries.settle(tx, head.id, DeliveryState.SKIPPED, "the message that it replaces is not in the chat")
            continue
        if not _has_parts(tx, head.id):
            head = deliveries.prepare(tx, head)
        elif tx.outlets.limit(lane.channel) is None:
            head = _fail(tx, head.id, no_channel(lane.channel, tx.outlets.names))
        if head.state is DeliveryState.PENDING:
            before = drafts.claimed(tx, head)
            claimed = _begin(tx, head, before)
            if lane.channel == WEBCHAT.channel:
                # The message is in the transcript, and this commit becomes a `chat` event: nothing else is sent.
                write(tx, claimed.part, PartAttempted(state=DeliveryState.SENT))
            elif (doubt := before.doubt(claimed.part.text)) is not None:
                write(tx, claimed.part, PartAttempted(state=DeliveryState.UNCERTAIN, error=doubt))
            elif (move := _doubt_move(tx, claimed)) is DoubtMove.STOP:
                _give_up(tx, claimed.part)
            else:
                return replace(
                    claimed, asks=move is DoubtMove.ASK, buttons=_buttons(tx, claimed), file=_file(claimed.part)
                )
    return None


def _edited(tx: Tx, delivery: Delivery) -> str | None:
    """Return the platform's id of the message that a delivery replaces; None if it replaces none."""
    if delivery.edits is None:
        return None
    row = tx.one(
        "SELECT message_id FROM delivery_parts WHERE delivery_id = ? AND state = 'sent' ORDER BY n DESC LIMIT 1",
        delivery.edits,
    )
    return None if row is None else row[0]


def _file(part: Part) -> FileCopy | None:
    return None if part.file is None else read_file(part.file)


def _buttons(tx: Tx, claimed: PartClaimed) -> tuple[Button, ...]:
    """Return the buttons of a part: the last one of a delivery has them, where the channel has buttons."""
    delivery = claimed.delivery
    if delivery.buttons is None or not tx.outlets.has_buttons(delivery.channel or ""):
        return ()
    later = "SELECT 1 FROM delivery_parts WHERE delivery_id = ? AND n > ? AND state <> 'dropped' LIMIT 1"
    return () if tx.one(later, delivery.id, claimed.part.n) else read_buttons(delivery.buttons)


def _doubt_move(tx: Tx, claimed: PartClaimed) -> DoubtMove:
    """Decide how a part is tried again whose earlier attempt had no answer. A person's retry is sent in any case."""
    part = claimed.part
    if part.doubt_at is None or part.draft_id is not None:
        return DoubtMove.SEND
    move = tx.outlets.recourse(claimed.delivery.channel or "").move(tx.now - part.doubt_at)
    return DoubtMove.SEND if move is DoubtMove.STOP and part.attempts == 1 else move


def _give_up(tx: Tx, part: Part) -> None:
    """Settle a part whose key the platform has forgotten by now."""
    error = "the answer to it was lost, and by now the platform does not know its key any more"
    write(tx, part, after_question(error, part.tries, is_final=True, retry_after_s=None))


def _has_parts(tx: Tx, delivery_id: str) -> bool:
    row = tx.one("SELECT 1 FROM delivery_parts WHERE delivery_id = ? AND state NOT IN ('sent', 'dropped')", delivery_id)
    return row is not None


def _begin(tx: Tx, head: Delivery, before: DraftBefore) -> PartClaimed:
    part = tx.one(
        "UPDATE delivery_parts SET state = 'sending', attempts = attempts + 1, error = NULL, "
        "draft_id = coalesce(CASE WHEN attempts = 0 AND n = 1 THEN ? END, draft_id), note = coalesce(?, note) "
        "WHERE delivery_id = ? AND n = "
        "(SELECT min(n) FROM delivery_parts WHERE delivery_id = ? AND state NOT IN ('sent', 'dropped')) "
        f"{DELIVERY_PARTS.returning}",
        before.draft_id or _edited(tx, head),
        before.note,
        head.id,
        head.id,
    )
    sending = deliveries.update(
        tx,
        head.id,
        state=DeliveryState.SENDING.value,
        attempts=head.attempts + 1,
        due_at=None,
        updated_at=tx.now,
        sender=tx.number,
    )
    return PartClaimed(sending, DELIVERY_PARTS.read(required(part)))


def _fail(tx: Tx, delivery_id: str, error: str) -> Delivery:
    tx.run(
        "UPDATE delivery_parts SET state = 'failed', error = ? WHERE delivery_id = ? AND state = 'pending'",
        error,
        delivery_id,
    )
    return deliveries.settle(tx, delivery_id, DeliveryState.FAILED, error)


def attempted(tx: Tx, claimed: Part, answer: Sent | ChannelError) -> Delivery:
    """Write the outcome of an attempt. An attempt that is not the part's latest changes nothing."""
    row = tx.one(f"{DELIVERY_PARTS.select} WHERE delivery_id = ? AND n = ?", claimed.delivery_id, claimed.n)
    part = None if row is None else DELIVERY_PARTS.read(row)
    if part is None or part.state is not DeliveryState.SENDING or part.attempts != claimed.attempts:
        _add_message_id(tx, part, answer)
        return deliveries.need(tx, claimed.delivery_id)
    sending = deliveries.need(tx, part.delivery_id) if isinstance(answer, ChannelError) else None
    lane = None if sending is None else sending.lane
    if isinstance(answer, ChannelMoved) and (lane is None or answer.to in ("", lane.to)):
        answer = ChannelRefused(f"{answer.reason} (the platform names no other chat)")
    if isinstance(answer, DoubtStays):
        made = after_question(answer.reason, part.tries, is_final=answer.is_final, retry_after_s=answer.retry_after_s)
    else:
        rules = AttemptRules() if sending is None else _rules(tx, sending, part)
        made = after_attempt(answer, part.tries, rules)
    if made.leaves_draft:
        drafts.abandon(tx, deliveries.need(tx, part.delivery_id))
    delivery = write(tx, part, made)
    if lane is not None and isinstance(answer, ChannelMoved):
        chats.move(tx, *_chat(lane), answer.to)
        _follow(tx, lane, answer.to)
    elif lane is not None and (hold_ms := account_hold_ms(answer)) is not None:
        chats.hold(tx, lane.channel, lane.account_id, hold_ms)
    return delivery


def _rules(tx: Tx, delivery: Delivery, part: Part) -> AttemptRules:
    """Say what may be done about a part whose attempt began with the last change of its delivery."""
    recourse = tx.outlets.recourse(delivery.channel or "")
    doubt_ms = tx.now - (part.doubt_at or delivery.updated_at)
    return AttemptRules(
        takes_key=recourse.holds_key(doubt_ms),
        ask_after_ms=recourse.find_after_ms if recourse.can_find else None,
        edits=part.draft_id is not None,
        has_file=part.file is not None,
        is_in_doubt=part.doubt_at is not None,
    )


def _add_message_id(tx: Tx, part: Part | None, answer: Sent | ChannelError) -> None:
    """Store the id of a message whose arrival was proved before the answer came."""
    is_known = part is None or part.state is not DeliveryState.SENT or part.message_id is not None
    if part is not None and not is_known and isinstance(answer, Sent):
        where = "WHERE delivery_id = ? AND n = ?"
        tx.run(f"UPDATE delivery_parts SET message_id = ? {where}", answer.message_id, part.delivery_id, part.n)


def _chat(lane: DeliveryLane) -> ChatPlace:
    return ChatPlace(lane.channel, lane.account_id, lane.to)


def _follow(tx: Tx, lane: DeliveryLane, to: str) -> None:
    """Move the queue of a chat behind that of its new id, in order.

    Message ids belong to the old chat: nothing is quoted or edited in the new one, and a draft stays behind.
    """
    moved_on = lines.take_places_of(tx, lane._replace(to=to), lane)
    where, values = lines.in_lane(lane)
    row = tx.one(f"SELECT id FROM deliveries WHERE {where} ORDER BY position LIMIT 1", *values)
    tx.run(
        "UPDATE delivery_parts SET draft_id = NULL, note = ? WHERE draft_id IS NOT NULL AND state <> 'sent' "
        f"AND delivery_id IN (SELECT id FROM deliveries WHERE {where})",
        LEFT_BEHIND,
        *values,
    )
    tx.run(
        f"UPDATE deliveries SET target = ?, position = position + ?, quotes = NULL, edits = NULL WHERE {where}",
        to,
        moved_on,
        *values,
    )
    if row is not None:
        deliveries.update(tx, row[0], target=to)  # told of one, the lane looks for all


def write(tx: Tx, part: Part, made: PartAttempted) -> Delivery:
    """Write the state of a part, and with it that of its delivery."""
    is_sent = made.state is DeliveryState.SENT
    began = "(SELECT updated_at FROM deliveries WHERE id = delivery_id)" if made.doubts else "NULL"
    tx.run(
        "UPDATE delivery_parts SET state = ?, message_id = ?, error = ?, waited_ms = waited_ms + ?, draft_id = ?, "
        f"crashes = crashes + ?, doubt_at = coalesce(doubt_at, {began}) WHERE delivery_id = ? AND n = ?",
        made.state.value,
        made.message_id,
        part.note if is_sent else made.error,
        made.wait_ms or 0,
        None if made.drops_draft else part.draft_id,
        int(made.is_crash),
        part.delivery_id,
        part.n,
    )
    if made.drops_file and (copy := _file(part)) is not None:
        tx.run(
            "UPDATE delivery_parts SET file = NULL, purpose = ?, text = ?, doubt_at = NULL "
            "WHERE delivery_id = ? AND n = ?",
            INSTEAD,
            instead_line(copy, made.error or "refused"),
            part.delivery_id,
            part.n,
        )
    rows = tx.all(
        "SELECT state, note FROM delivery_parts WHERE delivery_id = ? AND state <> 'dropped' ORDER BY n",
        part.delivery_id,
    )
    state = state_of([DeliveryState(state) for state, _ in rows])
    note = next((note for _, note in rows if note), None) if is_sent else None
    due_at = None if made.wait_ms is None else tx.now + made.wait_ms
    return deliveries.update(
        tx, part.delivery_id, state=state.value, due_at=due_at, error=made.error or note, updated_at=tx.now
    )


# Parts whose process ended while they were being sent.
_IS_LEFT = f"state = 'sending' AND NOT EXISTS ({ALIVE} AND number = deliveries.sender)"


DELIVERIES_LEFT = f"SELECT 1 FROM deliveries WHERE {_IS_LEFT}"


def any_sending(tx: Tx) -> bool:
    """Whether a process ended while it was sending something."""
    return tx.one(f"{DELIVERIES_LEFT} LIMIT 1") is not None


def recover(tx: Tx) -> None:
    """Decide on every part whose process ended while it was being sent."""
    rows = tx.all(f"{DELIVERIES.select} WHERE {_IS_LEFT} ORDER BY id")
    for delivery in map(DELIVERIES.read, rows):
        for part in deliveries.parts_of(tx, delivery.id):
            made = after_crash(part, _rules(tx, delivery, part))
            if made is not None:
                write(tx, part, made)


def lanes_in_line(tx: Tx) -> list[DeliveryLane]:
    """List the lanes with something to send, now or later."""
    rows = tx.all(f"SELECT DISTINCT channel, account_id, target, thread_id FROM deliveries WHERE {lines.IN_LINE}")
    return [DeliveryLane(*row) for row in rows]


_WAITING = (
    f"FROM deliveries WHERE {lines.IN_LINE} AND state = 'pending' AND coalesce(due_at, 0) <= ? AND updated_at < ?"
)
WAITING = f"SELECT 1 {_WAITING}"


def lanes_left(tx: Tx, since_ms: int) -> list[DeliveryLane]:
    """List the lanes with something so old that maybe no process will send it."""
    rows = tx.all(f"SELECT DISTINCT channel, account_id, target, thread_id {_WAITING}", tx.now, tx.now - since_ms)
    return [DeliveryLane(*row) for row in rows]


def lanes_due(tx: Tx) -> list[DeliveryLane]:
    """List the lanes whose retry is due."""
    rows = tx.all(
        "SELECT channel, account_id, target, thread_id FROM deliveries "
        "WHERE due_at IS NOT NULL AND due_at <= ? ORDER BY due_at",
        tx.now,
    )
    return [DeliveryLane(*row) for row in rows]


def next_due(tx: Tx) -> int | None:
    """Return when the next retry comes that is not due yet."""
    row = tx.one("SELECT min(due_at) FROM deliveries WHERE due_at IS NOT NULL AND due_at > ?", tx.now)
    return None if row is None else row[0]
