"""The longest hold of an event loop, measured inside its process and read from outside.

The loop's thread notes each millisecond how much processor time it has used since the last note. So other processes do
not count, but for what they evict from the caches. SIGUSR1 writes the longest hold since the last signal to a file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

_TICK_S = 0.001
_PATIENCE_S = 10.0


class LoopHolds:
    """Notes how long the running loop is held."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._longest_s = 0.0
        self._used_s = time.thread_time()
        self._loop.add_signal_handler(signal.SIGUSR1, self._write)
        self._tick()

    def _tick(self) -> None:
        used_s = time.thread_time()
        self._longest_s = max(self._longest_s, used_s - self._used_s)
        self._used_s = used_s
        self._loop.call_later(_TICK_S, self._tick)

    def _write(self) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(self._longest_s * 1000))
        fresh.replace(self._file)
        self._longest_s = 0.0


def take_longest_hold(pid: int, file: Path) -> float:
    """Ask a process for the longest hold of its loop since the last time, in milliseconds.

    Raises:
        RuntimeError: it does not tell.
    """
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    until = time.monotonic() + _PATIENCE_S
    while not file.exists():
        if time.monotonic() > until:
            raise RuntimeError("the gateway does not tell how long its loop was held")
        time.sleep(_TICK_S)
    return float(file.read_text())
