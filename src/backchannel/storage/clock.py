"""Timers: the work that is due, and times after the clock was set back.

Each kind of timer is one unit, which does the work and clears or moves its row. A new kind is one entry of `HANDLERS`.

A row with a future time also has the time when it was written. If that lies in the future, the clock was set back. The
row then gets the wait that it had, counted from now, so nothing waits longer than it should. A schedule computes its
next time again; a time that has come does not come again (`cron.fire`). All of it is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backchannel.core.contracts import DueTimers, Timer
from backchannel.storage.tx import Tx
from backchannel.storage.units import approvals, archiving, inbox, recovery, sending, timers
from backchannel.storage.units.flows import barriers, interruption
from backchannel.storage.units.jobs import checks, cron

Handler = Callable[[Tx, str], None]
"""Gets the timer's subject. The row is gone; a handler that needs it again sets it again."""

HANDLERS: Mapping[str, Handler] = {
    archiving.ARCHIVE_TIMER: archiving.look_at_child,
    barriers.BARRIER_TIMER: barriers.deadline,
    cron.CRON_TIMER: cron.fire,
    cron.CHECK_TIMER: checks.due,
    archiving.EXPIRY_TIMER: archiving.look_at_expired,
    timers.RESUME_TIMER: recovery.due,
    interruption.INTERRUPTION_TIMER: interruption.due,
    inbox.NOTES_TIMER: inbox.due,
    approvals.APPROVAL_TIMER: approvals.due,
}


def due(tx: Tx, limit: int) -> DueTimers:
    """List what is due, at most `limit` timers, and when the next timer comes."""
    nearest = [at for at in (timers.next_due(tx), sending.next_due(tx)) if at is not None]
    return DueTimers(timers.due(tx, limit), sending.lanes_due(tx), min(nearest, default=None))


def carry_out(tx: Tx, timer: Timer) -> None:
    """Run the handler of a timer, unless the timer was moved or cleared meanwhile."""
    if not timers.take(tx, timer):
        return
    HANDLERS[timer.kind](tx, timer.ref)


# The clock was set back

BELIEVED_FROM_MS = 1_767_225_600_000
"""The start of 2026. A machine without a battery starts in 1970: such a clock moves nothing."""

_TIMERS = "set_at > ?"
_RETRIES = "due_at IS NOT NULL AND updated_at > ?"
_SESSIONS = "archived_at IS NULL AND updated_at > ?"


def is_needed(tx: Tx) -> bool:
    """Whether a row was written by a clock that was ahead of this one."""
    if tx.now < BELIEVED_FROM_MS:
        return False
    row = tx.one(
        f"SELECT 1 FROM timers WHERE {_TIMERS} UNION ALL SELECT 1 FROM deliveries WHERE {_RETRIES} "
        f"UNION ALL SELECT 1 FROM sessions WHERE {_SESSIONS} LIMIT 1",
        tx.now,
        tx.now,
        tx.now,
    )
    return row is not None


def pull_in(tx: Tx) -> None:
    """Give each row its original wait, counted from now. The order of sessions stays."""
    if tx.now < BELIEVED_FROM_MS:
        return
    for kind, ref, wait_ms in tx.all(f"SELECT kind, ref, due_at - set_at FROM timers WHERE {_TIMERS}", tx.now):
        if kind == cron.CRON_TIMER:
            cron.reschedule(tx, ref)
        elif kind == timers.RESUME_TIMER:
            recovery.move(tx, ref, tx.now + wait_ms)
        else:
            timers.set_timer(tx, kind, ref, tx.now + wait_ms)
    tx.run(
        f"UPDATE deliveries SET due_at = due_at - updated_at + ?, updated_at = ? WHERE {_RETRIES}",
        tx.now,
        tx.now,
        tx.now,
    )
    tx.run(
        "UPDATE sessions SET updated_at = ?, used_at = CASE WHEN used_at > ? THEN ? ELSE used_at END "
        f"WHERE {_SESSIONS}",
        *[tx.now] * 4,
    )
