"""Turns: long work on the event loop pauses to let everything else go on."""

from __future__ import annotations

import asyncio
import time

TURN_S = 0.005
"""How long one may work at a stretch."""


class Turns:
    """The turns of one task that works through much that came from outside."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def next(self) -> None:
        """End this turn if it has lasted long enough; the next one comes when everybody else has had theirs."""
        if time.perf_counter() - self._since > TURN_S:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
