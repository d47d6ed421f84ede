"""Drafts: replies shown while they grow, never posted twice or left behind.

`core/delivery/drafts.py` decides; this writes. While a row has no message id, this process is posting the draft. If an
earlier process left such a row, the draft is lost: `recover` marks it before anything is sent.
"""

from __future__ import annotations

from msgspec.structs import asdict, replace

from backchannel.core.commands.control_words import is_silent
from backchannel.core.delivery.delivery import Delivery, DeliveryLane, notice_address
from backchannel.core.delivery.drafts import (
    DraftBefore,
    DraftMove,
    DraftOpening,
    DraftState,
    ShownDraft,
    may_take_over,
    next_move,
)
from backchannel.core.facts import DraftChanged
from backchannel.core.runs import Fence, Run, RunState
from backchannel.core.sessions import WEBCHAT, Address, read_address
from backchannel.storage.events import ReceiptSettled, RunClosed, RunWaits
from backchannel.storage.tables import DRAFTS
from backchannel.storage.tx import ALIVE, Tx
from backchannel.storage.units import chats, lines, runs, sessions
from backchannel.storage.units.chats import ChatPlace


def find(tx: Tx, run_id: str) -> ShownDraft | None:
    row = tx.one(f"{DRAFTS.select} WHERE run_id = ?", run_id)
    return None if row is None else DRAFTS.read(row)


def all_drafts(tx: Tx) -> list[ShownDraft]:
    return [DRAFTS.read(row) for row in tx.all(f"{DRAFTS.select} ORDER BY run_id")]


_UNHELD = f"FROM drafts WHERE run_id NOT IN (SELECT id FROM runs WHERE fence IN ({ALIVE}))"
DRAFTS_LEFT = f"SELECT 1 {_UNHELD}"


def left_drafts(tx: Tx) -> list[ShownDraft]:
    """List the drafts without a process at work."""
    return [DRAFTS.read(row) for row in tx.all(f"SELECT {DRAFTS.fields} {_UNHELD} ORDER BY run_id")]


def open_(tx: Tx, fence: Fence, text: str) -> DraftOpening:
    """Decide how the reply of a run is shown. Before a draft is posted, its row and text are written."""
    run = runs.find(tx, fence.run_id)
    address = None if run is None else _replied_at(run)
    if run is None or address is None or not tx.outlets.streams(address.channel):
        return DraftOpening(DraftMove.STOP)
    if run.state is not RunState.RUNNING or run.fence != fence.number:
        return DraftOpening(DraftMove.STOP)
    lane = _current_lane(tx, address)
    known = find(tx, run.id)
    move = next_move(known, is_allowed=_is_allowed(tx, run, address), is_line_busy=lines.is_busy(tx, lane))
    if move is not DraftMove.POST:
        return DraftOpening(move, known)
    draft = ShownDraft(
        run_id=run.id,
        channel=lane.channel,
        account_id=lane.account_id,
        target=lane.to,
        thread_id=lane.thread_id,
        place=lines.last_place(tx, lane),
        text=text,
    )
    _insert(tx, draft)
    return DraftOpening(move, draft)


def _insert(tx: Tx, draft: ShownDraft) -> None:
    tx.insert(DRAFTS, **{**asdict(draft), "state": draft.state.value})


def _replied_at(run: Run) -> Address | None:
    """Return the chat that a run's reply goes to; None for no chat, and so no draft.

    The channel may have stopped streaming since: an earlier draft is settled all the same.
    """
    if not run.deliver or run.kind.is_internal or run.reply_to is None:
        return None
    address = read_address(run.reply_to)
    return None if address.to is None or address.channel == WEBCHAT.channel else address


def _current_lane(tx: Tx, address: Address) -> DeliveryLane:
    lane = DeliveryLane.of(address.channel, address.to or "", address.account_id, address.thread_id)
    moved_to = chats.moved_to(tx, ChatPlace(lane.channel, lane.account_id, lane.to))
    return lane if moved_to is None else lane._replace(to=moved_to)


def _is_allowed(tx: Tx, run: Run, address: Address) -> bool:
    session = sessions.find(tx, run.session_key)
    override = None if session is None else session.send_policy
    return tx.outlets.decide(run.session_key, override, address.channel).allowed


# Answers of the platform


def shown(tx: Tx, run_id: str, message_id: str) -> ShownDraft | None:
    """Store the platform's id of a posted draft. If its run has ended without a reply, the draft is removed."""
    row = tx.one(f"UPDATE drafts SET message_id = ? WHERE run_id = ? {DRAFTS.returning}", message_id, run_id)
    draft = None if row is None else DRAFTS.read(row)
    if draft is not None:
        tx.tell(DraftChanged(draft))
    return draft


def forget(tx: Tx, run_id: str) -> None:
    """Forget a draft: it was not taken, it is gone from its chat, or another row decides on it."""
    row = tx.one(f"DELETE FROM drafts WHERE run_id = ? {DRAFTS.returning}", run_id)
    if row is not None:
        tx.tell(DraftChanged(replace(DRAFTS.read(row), state=DraftState.REMOVED)))


def lose(tx: Tx, run_id: str) -> None:
    """Record that a draft is lost: it may have been taken. No other is posted for its run."""
    row = tx.one(
        f"UPDATE drafts SET state = 'lost' WHERE run_id = ? AND state IN ('growing', 'final') {DRAFTS.returning}",
        run_id,
    )
    if row is None:
        forget(tx, run_id)  # its run has ended without a reply, and does not ask any more
    else:
        tx.tell(DraftChanged(DRAFTS.read(row)))


# The end of a draft


def run_closed(tx: Tx, event: RunClosed) -> None:
    """Decide on the draft of an ended run. If a delivery follows, that takes the draft over.

    The draft of a stopped reply stays: the same text is in the transcript.
    """
    run = event.run
    if _replied_at(run) is None or (draft := find(tx, run.id)) is None or draft.delivery_id is not None:
        return
    if draft.state is DraftState.REMOVING:
        return
    if tx.rules.tells_failures and notice_address(run) is not None:
        return  # the notice takes it over, in the same commit
    is_kept = run.state is RunState.ABORTED and not is_silent(run.reply)
    if is_kept:
        forget(tx, run.id)
    else:
        _remove(tx, draft)


def run_waits(tx: Tx, event: RunWaits) -> None:
    """Remove the draft of a run that waits for a model: its text does not count. A notice takes it over instead."""
    draft = find(tx, event.run.id)
    if draft is not None and draft.delivery_id is None and draft.state is not DraftState.REMOVING:
        _remove(tx, draft)


def take_over(tx: Tx, run: Run, delivery: Delivery) -> None:
    """Let the last delivery of a run replace its draft, if there is one."""
    if _replied_at(run) is None or (draft := find(tx, run.id)) is None:
        return
    if draft.state in (DraftState.GROWING, DraftState.LOST):
        state = DraftState.LOST if draft.state is DraftState.LOST else DraftState.FINAL
        tx.run("UPDATE drafts SET state = ?, delivery_id = ? WHERE run_id = ?", state.value, delivery.id, run.id)


def claimed(tx: Tx, delivery: Delivery) -> DraftBefore:
    """Return the draft that the first part of a delivery edits, or a lost one, and forget it: the part keeps its id."""
    if delivery.run_id is None or delivery.channel == WEBCHAT.channel:
        return DraftBefore()
    draft = _of_delivery(tx, delivery)
    if draft is None:
        return DraftBefore()
    if draft.state is DraftState.LOST:
        forget(tx, draft.run_id)
        return DraftBefore(lost=draft)
    if may_take_over(draft, delivery):
        forget(tx, draft.run_id)
        return DraftBefore(draft_id=draft.message_id)
    _remove(tx, draft)
    has_moved = chats.moved_to(tx, ChatPlace(draft.channel, draft.account_id, draft.target)) is not None
    return DraftBefore(is_left_behind=has_moved and draft.message_id is not None)


def receipt_settled(tx: Tx, event: ReceiptSettled) -> None:
    """Remove the draft of a reply that is not sent: the send policy forbids it, or the channel is gone."""
    delivery = event.delivery
    if delivery.run_id is None or delivery.channel in (None, WEBCHAT.channel):
        return
    if (draft := _of_delivery(tx, delivery)) is not None:
        _remove(tx, draft)


def abandon(tx: Tx, delivery: Delivery) -> None:
    """Remove the draft that a part was to edit: the part is posted instead, here or elsewhere."""
    row = tx.one(
        "SELECT draft_id FROM delivery_parts WHERE delivery_id = ? AND draft_id IS NOT NULL AND state <> 'sent'",
        delivery.id,
    )
    lane = delivery.lane
    if row is None or lane is None or delivery.run_id is None or find(tx, delivery.run_id) is not None:
        return
    draft = ShownDraft(
        run_id=delivery.run_id,
        channel=lane.channel,
        account_id=lane.account_id,
        target=lane.to,
        thread_id=lane.thread_id,
        place=0,
        message_id=row[0],
    )
    _insert(tx, draft)
    _remove(tx, draft)


def _of_delivery(tx: Tx, delivery: Delivery) -> ShownDraft | None:
    row = tx.one(f"{DRAFTS.select} WHERE delivery_id = ?", delivery.id)
    return None if row is None else DRAFTS.read(row)


def _remove(tx: Tx, draft: ShownDraft) -> None:
    """Remove a draft. One that is being posted is removed when its id is known; a lost one cannot be."""
    if draft.state is DraftState.LOST:
        forget(tx, draft.run_id)
        return
    row = tx.one(
        f"UPDATE drafts SET state = 'removing', delivery_id = NULL WHERE run_id = ? {DRAFTS.returning}", draft.run_id
    )
    if row is not None and draft.message_id is not None:
        tx.tell(DraftChanged(DRAFTS.read(row)))


# After a crash


def recover(tx: Tx) -> list[ShownDraft]:
    """Decide on the drafts that an earlier process left, and return those that are lost.

    Drafts of a channel that does not stream any more are removed: nothing will replace them. A lost draft is kept until
    its run has ended and its reply was sent.
    """
    left = left_drafts(tx)
    lost = [draft for draft in left if draft.message_id is None and draft.state is not DraftState.LOST]
    for draft in lost:
        lose(tx, draft.run_id)
    for draft in left:
        if draft.message_id is not None and not tx.outlets.streams(draft.channel):
            _remove(tx, draft)
    return lost
