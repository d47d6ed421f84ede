"""The real clock, and the check that notices a clock that was set back.

On a shared database all gateways use the clock of its server: what one writes is compared with what another reads. The
driver reports that clock again and again. Between two readings the monotonic clock of this machine counts on. So
neither a wrong time of day here, nor setting it, moves anything.
"""

from __future__ import annotations

import asyncio
import time

from backchannel.core.contracts import Clock

NOTICED_S = 0.5
"""Clocks that are kept right drift by less than this between two looks."""


class SystemClock:
    """This machine's clock, until it follows another."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._zero_ms: float | None = None
        """The other clock's time when the monotonic one showed zero."""
        self._last_ms = 0

    def now_ms(self) -> int:
        """Tell the time of day; a small correction makes it stand for a moment, and never run backwards."""
        if self._zero_ms is None:
            return self.own_ms()
        now = int(self._zero_ms + self.monotonic() * 1000)
        if not now < self._last_ms < now + NOTICED_S * 1000:
            self._last_ms = now
        return self._last_ms

    def own_ms(self) -> int:
        """Tell the time of day by this machine."""
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def follow(self, shown_ms: int, asked: float, answered: float) -> None:
        """Take note of what the other clock showed, at some moment between two readings of the monotonic one.

        What is known already is moved only as far as it must be: an answer that took long changes nothing.
        """
        lowest, highest = shown_ms - answered * 1000, shown_ms + 1 - asked * 1000
        known = (lowest + highest) / 2 if self._zero_ms is None else self._zero_ms
        self._zero_ms = min(max(known, lowest), highest)

    @property
    def ahead_ms(self) -> int | None:
        """How far this machine's clock is ahead of the one that is followed; None if it follows none."""
        return None if self._zero_ms is None else self.own_ms() - int(self._zero_ms + self.monotonic() * 1000)


class ClockWatch:
    """Notices that a clock was set back: its time of day has fallen behind its monotonic time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s = self._read()

    def was_set_back(self) -> bool:
        """Whether the clock was set back since it was last asked."""
        before, self._ahead_s = self._ahead_s, self._read()
        return self._ahead_s < before - NOTICED_S

    def _read(self) -> float:
        return self._clock.now_ms() / 1000 - self._clock.monotonic()


async def sleep_or_event(clock: Clock, wait_s: float, event: asyncio.Event) -> None:
    """Sleep, unless the event is set first."""
    sleeping = asyncio.create_task(clock.sleep(wait_s))
    called = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((sleeping, called), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sleeping, called):
            task.cancel()
        await asyncio.gather(sleeping, called, return_exceptions=True)
