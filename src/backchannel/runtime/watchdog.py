"""The watchdog: notices that the event loop was held, and by what.

While the loop is held, no request is answered. A timer that fires late shows for how long. If a unit of the store held
it, the unit is named: only units do much at a time. A machine that was busy or asleep looks the same, but took no
processor time here.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from backchannel.service import Service
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

LOOK_S = 0.05
BOUND_S = 0.05
"""How late the timer may come before the loop counts as held."""
LONG_S = 5.0
"""A stall of this length is shown by `status` too."""
WARN_USED_S, WARN_LATE_S = 0.25, 2.0
"""From when on it is a warning: so much work at a time, or nothing at all for so long. A busy machine is no reason."""
QUIET_S = 5.0
"""There is at most one line in so much time."""


class Watchdog(Service):
    """Counts how often the loop was held, and for how long at most."""

    name = "watchdog"

    def __init__(self, store: Store) -> None:
        self.stalls = 0
        self.longest_s = 0.0
        self.long_stall: tuple[float, float] | None = None
        """When, by the loop's time, the last long stall ended, and how long it was."""
        self._store = store
        self._handle: asyncio.TimerHandle | None = None
        self._used_s = 0.0
        self._quiet_until = 0.0

    async def start(self) -> None:
        if self._handle is None:
            self._look_later(asyncio.get_running_loop())

    async def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._used_s = time.thread_time()
        at = loop.time() + LOOK_S
        self._handle = loop.call_at(at, self._look, loop, at)

    def _look(self, loop: asyncio.AbstractEventLoop, expected: float) -> None:
        late_s = loop.time() - expected
        slowest = self._store.take_slowest()
        if late_s > BOUND_S:
            self.stalls += 1
            self.longest_s = max(self.longest_s, late_s)
            if late_s >= LONG_S:
                self.long_stall = (loop.time(), late_s)
            if loop.time() >= self._quiet_until:
                self._quiet_until = loop.time() + QUIET_S
                self._log(late_s, time.thread_time() - self._used_s, slowest)
        self._look_later(loop)

    def _log(self, late_s: float, used_s: float, slowest: tuple[float, str]) -> None:
        is_bad = used_s > WARN_USED_S or late_s > WARN_LATE_S
        tell = log.warning if is_bad else log.debug
        tell("the event loop was held", **_facts(late_s, used_s, slowest), stalls=self.stalls)


def _facts(late_s: float, used_s: float, slowest: tuple[float, str]) -> dict[str, float | str]:
    unit_s, unit = slowest
    facts: dict[str, float | str] = {"held_ms": round(late_s * 1000), "processor_ms": round(used_s * 1000)}
    return facts | {"unit": unit, "unit_ms": round(unit_s * 1000)} if unit_s > BOUND_S / 2 else facts
