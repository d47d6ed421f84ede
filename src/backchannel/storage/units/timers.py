"""Timers: rows for everything that must happen later.

A row also has the time when it was set. So its wait is known even if the clock was set meanwhile.
"""

from __future__ import annotations

from backchannel.core.contracts import Timer
from backchannel.core.facts import TimerSet
from backchannel.storage.tables import TIMERS
from backchannel.storage.tx import Tx

RESUME_TIMER = "resume"
"""Queues a set-aside run again, or lets one go on that waits for a model."""


def set_timer(tx: Tx, kind: str, ref: str, due_at: int) -> None:
    """Create or move a timer."""
    tx.insert(TIMERS, TIMERS.or_replace, kind=kind, ref=ref, due_at=due_at, set_at=tx.now)
    tx.tell(TimerSet(due_at))


def postpone(tx: Tx, timer: Timer, by_ms: int) -> None:
    """Move a timer whose work could not be done."""
    set_timer(tx, timer.kind, timer.ref, tx.now + by_ms)


def clear_timer(tx: Tx, kind: str, ref: str) -> None:
    tx.run("DELETE FROM timers WHERE kind = ? AND ref = ?", kind, ref)


def take(tx: Tx, timer: Timer) -> bool:
    """Clear a due timer; False if it was moved or cleared meanwhile."""
    cleared = "DELETE FROM timers WHERE kind = ? AND ref = ? AND due_at = ? RETURNING ref"
    return tx.one(cleared, timer.kind, timer.ref, timer.due_at) is not None


def due(tx: Tx, limit: int) -> list[Timer]:
    """List the due timers, oldest first. The unit that does the work clears or moves the timer."""
    rows = tx.all("SELECT kind, ref, due_at FROM timers WHERE due_at <= ? ORDER BY due_at LIMIT ?", tx.now, limit)
    return [Timer(*row) for row in rows]


def next_due(tx: Tx) -> int | None:
    """Return when the next timer comes that is not due yet."""
    row = tx.one("SELECT min(due_at) FROM timers WHERE due_at > ?", tx.now)
    return None if row is None else row[0]
