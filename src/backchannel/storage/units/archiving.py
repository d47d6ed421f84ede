"""Archiving: ended sub-agents, and sessions made for one request.

`tidy` checks a sub-agent. It runs at the end of the sub-agent's flow, when its receipt is settled, and by a timer. It
archives the child, sets a timer, or waits for an open receipt. A child in use is never archived: one with a run, a
note, an open exchange or an open receipt.
"""

from __future__ import annotations

from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.flows.spawn_values import Spawn, SpawnState, read_spawn
from backchannel.core.sessions import Session
from backchannel.storage.events import ReceiptSettled
from backchannel.storage.tx import LIVE, Tx, required
from backchannel.storage.units import sessions, timers

ARCHIVE_TIMER = "archive"
EXPIRY_TIMER = "expiry"
LOOK_AGAIN_MS = 60_000
_UNSETTLED = ", ".join(f"'{state.value}'" for state in DeliveryState if not state.is_settled)


def look_at_child(tx: Tx, child_key: str) -> None:
    """Check a child that may be due to be archived."""
    row = tx.one("SELECT body FROM spawns WHERE child_key = ?", child_key)
    if row is not None:
        _tidy(tx, read_spawn(row[0]), at=tx.now)  # by the clock of its spawn it may be too early: that was set back


def receipt_settled(tx: Tx, event: ReceiptSettled) -> None:
    """Check a child whose receipt is settled."""
    row = tx.one("SELECT body FROM spawns WHERE delivery_id = ?", event.delivery.id)
    if row is not None:
        tidy(tx, read_spawn(row[0]))


def tidy(tx: Tx, spawn: Spawn) -> None:
    """Archive a child if it is due, else set a timer to check it again."""
    if (at := _archive_at(spawn, tx.now)) is not None:
        _tidy(tx, spawn, at=at)


def _tidy(tx: Tx, spawn: Spawn, *, at: int) -> None:
    child = sessions.find(tx, str(spawn.child))
    if child is None or child.archived_at is not None or child.deleting or not _is_settled(tx, spawn):
        return
    if at <= tx.now and not is_used(tx, child):
        # The post of a child that is archived at once names its file by the time of its end.
        sessions.archive(tx, child, as_of=spawn.ended_at if spawn.rules.deletes else None)
    else:
        timers.set_timer(tx, ARCHIVE_TIMER, child.key, tx.now + LOOK_AGAIN_MS if at <= tx.now else at)


def _archive_at(spawn: Spawn, now: int) -> int | None:
    if spawn.rules.deletes:
        return now
    if spawn.rules.archive_after_ms is None or spawn.ended_at is None:
        return None
    return spawn.ended_at + spawn.rules.archive_after_ms


def _is_settled(tx: Tx, spawn: Spawn) -> bool:
    if spawn.state is not SpawnState.DONE:
        return False
    (state,) = required(
        tx.one("SELECT d.state FROM spawns s JOIN deliveries d ON d.id = s.delivery_id WHERE s.id = ?", spawn.id)
    )
    return DeliveryState(state).is_settled


def is_used(tx: Tx, child: Session) -> bool:
    """Whether a session has a run, a note, an exchange or a receipt that is open."""
    if child.running_run is not None or child.queued or child.set_aside:
        return True
    row = tx.one(
        "SELECT 1 FROM inbox WHERE session_key = ? "
        f"UNION ALL SELECT 1 FROM runs WHERE session_key = ? AND {LIVE} "  # also one that was set aside
        "UNION ALL SELECT 1 FROM exchanges WHERE requester_key = ? AND state <> 'done' "
        "UNION ALL SELECT 1 FROM exchanges WHERE target_key = ? AND state <> 'done' "
        f"UNION ALL SELECT 1 FROM deliveries WHERE session_key = ? AND state IN ({_UNSETTLED}) LIMIT 1",
        *[child.key] * 5,
    )
    return row is not None


# Sessions for one request, which expire some time after their last use


def keep_for(tx: Tx, session: Session, lives_ms: int) -> Session:
    """Record how long a new session lives after its last use.

    The row has the time, so that any use prolongs it; the timer only says when to check.
    """
    timers.set_timer(tx, EXPIRY_TIMER, session.key, tx.now + lives_ms)
    return sessions.update(tx, session.key, "lives_ms = ?", lives_ms)


def look_at_expired(tx: Tx, key: str) -> None:
    """Archive an expired session, else set the timer again."""
    session = sessions.find(tx, key)
    if session is None or session.archived_at is not None or session.deleting or session.lives_ms is None:
        return
    over_at = session.updated_at + session.lives_ms
    if over_at <= tx.now and not is_used(tx, session) and not _has_children_at_work(tx, key):
        sessions.archive(tx, session)
    else:
        timers.set_timer(tx, EXPIRY_TIMER, key, max(over_at, tx.now + LOOK_AGAIN_MS))


def _has_children_at_work(tx: Tx, key: str) -> bool:
    row = tx.one(
        "SELECT 1 FROM spawns WHERE requester_key = ? AND state <> 'done' "
        "UNION ALL SELECT 1 FROM barriers WHERE session_key = ? AND state = 'open' LIMIT 1",
        key,
        key,
    )
    return row is not None
