"""What a timer means: each kind is one unit, which does what is due and clears or moves its row.

A new kind is one entry of `HANDLERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backchannel.storage.transactions import barriers, cleanup, cron, expiry, inbox, interruption, recovery, timers
from backchannel.storage.transactions.timers import Timer
from backchannel.storage.tx import Tx

Handler = Callable[[Tx, str], None]
"""Gets what the timer is about. The row is gone: what shall happen again sets it again."""

HANDLERS: Mapping[str, Handler] = {
    cleanup.TIMER: cleanup.due,
    barriers.TIMER: barriers.deadline,
    cron.TIMER: cron.fire,
    expiry.TIMER: expiry.due,
    recovery.TIMER: recovery.due,
    interruption.TIMER: interruption.due,
    inbox.TIMER: inbox.due,
}


def carry_out(tx: Tx, timer: Timer) -> None:
    """Do what a timer is for; one that was moved or cleared since it was seen changes nothing."""
    if not timers.take(tx, timer):
        return
    HANDLERS[timer.kind](tx, timer.ref)
