"""The real clock, and how it is noticed that it was set.

Inside a process, time is measured by the monotonic reading: sleeps, waits and limits keep to their length whatever
happens to the time of day. Rows carry times of day, because they outlive the process; what a clock that was set back
leaves too far ahead is pulled in (`storage/transactions/setting_back.py`), at each start and whenever it is noticed.
"""

from __future__ import annotations

import asyncio
import time

from backchannel.core.contracts import Clock

NOTICED_S = 0.5
"""Clocks that are kept right drift by less than this between two looks."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


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
