"""The clocks of tests: `StageClock` with its modes, and `AheadClock` for a gateway that runs on real time."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Self

from backchannel.runtime.clocks import SystemClock

_AFTERWARDS = 3
"""For how many turns of the event loop those who fall asleep just after the clock was turned are woken."""
_MONOTONIC_START_S = 1000.0


class AheadClock(SystemClock):
    """The real clock, some time ahead: for what falls due long after it was set."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__()
        self.ahead_s = ahead_s

    def own_ms(self) -> int:
        return super().own_ms() + round(self.ahead_s * 1000)


class StageClock:
    """A clock with three modes.

    - `StageClock()` shows the real time. A sleep takes no time: it is written down, and moves the clock on.
    - `StageClock.still(ms)` stands at a time. A sleep takes no time here either.
    - `StageClock.held(at)` stands at a time, or shows the real time. Sleepers wake when the clock is turned, and look
      again. A sleeper that begins just after the turn is woken too.
    """

    def __init__(self, *, ticks_s: float = 0.0) -> None:
        self.slept: list[float] = []
        self.sleeping = asyncio.Event()
        self._stands_at_ms: int | None = None
        self._ahead_s = 0.0
        self._ticks_s = ticks_s
        self._holds = False
        self._turned = asyncio.Event()

    @classmethod
    def still(cls, ms: int) -> Self:
        clock = cls()
        clock._stands_at_ms = ms
        return clock

    @classmethod
    def held(cls, at: str | None = None) -> Self:
        clock = cls()
        clock._stands_at_ms = None if at is None else moment(at)
        clock._holds = True
        return clock

    @property
    def ms(self) -> int:
        base_ms = time.time_ns() // 1_000_000 if self._stands_at_ms is None else self._stands_at_ms
        return base_ms + round(self._ahead_s * 1000)

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        self._ahead_s += self._ticks_s
        base_s = time.monotonic() if self._stands_at_ms is None else _MONOTONIC_START_S
        return base_s + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self._holds:
            self._ahead_s += seconds
            await asyncio.sleep(0)
        elif seconds > 0:
            self.sleeping.set()
            await self._turned.wait()

    def tick(self, ms: int = 1) -> int:
        """Move the clock on by milliseconds; returns the time."""
        self.move_on(ms / 1000)
        return self.ms

    def move_on(self, seconds: float) -> None:
        """Say that it is so much later now."""
        self._ahead_s += seconds
        self.stir()

    def turn_to(self, at: str) -> None:
        """Say that it is this time now, which is later."""
        seconds = (moment(at) - self.ms) / 1000
        assert seconds >= 0, "time does not go back"
        self.move_on(seconds)

    def set_to(self, at: str) -> None:
        """Set the time of day, forward or back, as a person or a program does; no time passes."""
        self._stands_at_ms = moment(at) - round(self._ahead_s * 1000)
        self.stir()

    def release(self) -> None:
        """Let sleeps take no time from now on."""
        self._holds = False
        self.stir()

    def stir(self) -> None:
        """Wake all sleepers without turning the clock."""
        self._wake(_AFTERWARDS)

    def _wake(self, again: int) -> None:
        self._turned.set()
        self._turned = asyncio.Event()
        with suppress(RuntimeError):  # no loop is running, so nobody sleeps
            if again:
                asyncio.get_running_loop().call_soon(self._wake, again - 1)


def moment(at: str) -> int:
    """Read an ISO time, in UTC unless it says otherwise, as milliseconds since 1970."""
    read = datetime.fromisoformat(at)
    return round((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() * 1000)
