"""Clocks for what happens at a certain time of a certain day, or long after."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

from backchannel.runtime.clocks import SystemClock


class AheadClock(SystemClock):
    """The real clock, some time ahead: for what falls due long after it was set."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__()
        self.ahead_s = ahead_s

    def own_ms(self) -> int:
        return super().own_ms() + round(self.ahead_s * 1000)


AFTERWARDS = 3
"""For how many turns of the event loop those who fall asleep just after the clock was turned are woken."""


class HandClock:
    """Stands still until it is turned. Whoever sleeps wakes at each turn and each `stir`, to look again.

    Somebody may have looked at the clock before it was turned and go to sleep only a moment after: they are woken too.
    """

    def __init__(self, at: str) -> None:
        self.ms = moment(at)
        self._lived_ms = 0
        self._turned = asyncio.Event()

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self._lived_ms / 1000

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            await self._turned.wait()

    def turn_to(self, at: str) -> None:
        """Say that it is later now."""
        later = moment(at)
        assert later >= self.ms, "time does not go back"
        self._lived_ms += later - self.ms
        self.ms = later
        self.stir()

    def turn_on(self, seconds: float) -> None:
        """Say that it is so much later now."""
        self.ms += round(seconds * 1000)
        self._lived_ms += round(seconds * 1000)
        self.stir()

    def set_to(self, at: str) -> None:
        """Set the time of day, forward or back, as a person or a program does; no time passes."""
        self.ms = moment(at)
        self.stir()

    def stir(self) -> None:
        """Wake all sleepers without turning the clock."""
        self._wake(AFTERWARDS)

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
