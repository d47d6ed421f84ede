"""Timers: the loop that does at its time what a row says must happen later.

Inside a process the monotonic clock measures time: sleeps, waits and limits keep their length whatever happens to the
time of day. Rows carry times of day, because they outlive the process. Rows that a set-back clock leaves too far ahead
are pulled in (`storage/clock.py`), at each start and whenever it is noticed.

One loop does all of it; `storage/clock.py` says what is due. A timer is one unit that does the work and clears or moves
the row. So a crash at any point leaves it to be done, once. A retry of a delivery has its time in the row of the
delivery, and the loop only wakes the chat's line. In memory there is only the sleep until the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from backchannel.core.contracts import Clock, Timer
from backchannel.core.delivery.delivery import DeliveryLane
from backchannel.core.facts import DeliveryChanged, TimerSet
from backchannel.core.seldom import Seldom
from backchannel.errors import DatabaseLocked, Unavailable
from backchannel.runtime.clocks import ClockWatch, sleep_or_event
from backchannel.runtime.cluster.duties import Duties
from backchannel.runtime.supervisor import RESTART, DatabaseWait
from backchannel.service import Reactions, Service, SupervisedLoop
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

LONGEST_SLEEP_S = 60.0
"""The clock may be set: the rows are looked at again after this long."""
_BATCH = 100
POSTPONED_MS = 60_000
"""When a timer is tried again whose work failed."""
LOCKED_MS = 2000
"""When a timer is tried again whose session another program has locked in the database."""


class ClockCheck(Service):
    """Looks, at a start, for times that a clock wrote which was set back since."""

    def __init__(self, store: Store, duties: Duties) -> None:
        self._store = store
        self._duties = duties

    async def start(self) -> None:
        if self._duties.is_alone:  # others may have work under way by the times that their rows have
            await self._store.reschedule_after_clock_set_back()


class Timers(Service):
    """Does what is due, then sleeps until more is; what fell due while no gateway ran is done at the start.

    It goes on after failures, until the store is closed.
    """

    name = "timers"

    def __init__(
        self, store: Store, clock: Clock, wake_lane: Callable[[DeliveryLane], None], wait: DatabaseWait, duties: Duties
    ) -> None:
        """Make it; `wake_lane` has a chat looked at, one of whose retries is due."""
        self._wait = wait
        self._kept = SupervisedLoop(self.name, clock, RESTART)
        self.kept = (self._kept,)
        self.set_back_at: float | None = None
        """When the clock was last seen to be set back, on the monotonic clock."""
        self._store = store
        self._clock = clock
        self._wake_lane = wake_lane
        self._watch = ClockWatch(clock)
        self._told = Seldom()
        self._sooner = asyncio.Event()
        self._duties = duties
        duties.listen(self._sooner.set)
        self._sleeps_until: float | None = None
        """When its sleep ends, on the monotonic clock; None while it looks at rows."""
        self._task: asyncio.Task[None] | None = None

    def reactions(self) -> Reactions:
        return {DeliveryChanged: self.on_delivery, TimerSet: self.on_timer}

    async def start(self) -> None:
        self._task = asyncio.create_task(self._kept.keep(self._run), name="timers")

    def on_timer(self, fact: TimerSet) -> None:
        """React to a commit: a time was written that may come before the sleep ends."""
        wait_s = (fact.due_at - self._clock.now_ms()) / 1000
        if self._sleeps_until is None or self._clock.monotonic() + wait_s < self._sleeps_until:
            self._sooner.set()

    def on_delivery(self, fact: DeliveryChanged) -> None:
        """React to a commit: a delivery may have a time at which it is tried again."""
        if fact.delivery.due_at is not None:
            self._sooner.set()

    async def halt(self) -> None:
        await self.close()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._wait.durably(self._pass)

    async def _pass(self) -> None:
        self._sooner.clear()
        if self._watch.was_set_back():
            log.warning("the clock was set back")
            self.set_back_at = self._clock.monotonic()
            await self._store.reschedule_after_clock_set_back()
        next_at = await self._do_due() if self._duties.has_timers else None
        self._kept.recovered()
        if next_at is None and not (self._duties.is_shared and self._duties.has_timers):
            await self._sooner.wait()
            return
        # Another gateway says nothing of a timer that it sets for much later: the next look finds it.
        wait_s = LONGEST_SLEEP_S if next_at is None else max(0, next_at - self._clock.now_ms()) / 1000
        wait_s = min(wait_s, LONGEST_SLEEP_S)
        self._sleeps_until = self._clock.monotonic() + wait_s
        try:
            await sleep_or_event(self._clock, wait_s, self._sooner)
        finally:
            self._sleeps_until = None

    async def _do_due(self) -> int | None:
        """Do what is due; returns when the next is, or None when nothing waits."""
        while True:
            due = await self._store.due(_BATCH)
            for lane in due.lanes:
                self._wake_lane(lane)
            for timer in due.timers:
                await self._carry_out(timer)
            if not due.timers:
                return due.next_at

    async def _carry_out(self, timer: Timer) -> None:
        try:
            await self._store.carry_out_timer(timer)
        except DatabaseLocked as error:  # by another program: the other timers go on
            if self._told.lets(error.message, self._clock.monotonic()):
                log.warning("a timer waits", kind=timer.kind, ref=timer.ref, error=error.message)
            await self._store.postpone_timer(timer, LOCKED_MS)
        except Unavailable:
            raise
        except Exception:  # the edge that keeps the other timers going: this one is tried again later
            log.exception("a timer failed", kind=timer.kind, ref=timer.ref)
            await self._store.postpone_timer(timer, POSTPONED_MS)
