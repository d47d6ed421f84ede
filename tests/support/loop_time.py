"""The time that the event loop is held, in processor time of its thread. A busy machine does not count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_S = 0.001


class LoopTime:
    """The most that was done between two looks."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._used_s = time.thread_time()
        self._handle: asyncio.TimerHandle | None = None

    def look(self) -> None:
        used_s = time.thread_time()
        self.longest_s = max(self.longest_s, used_s - self._used_s)
        self._used_s = used_s
        self._handle = asyncio.get_running_loop().call_later(LOOK_S, self.look)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


@contextmanager
def loop_time() -> Iterator[LoopTime]:
    """Look at the running loop until the context ends."""
    looking = LoopTime()
    looking.look()
    try:
        yield looking
    finally:
        looking.stop()
