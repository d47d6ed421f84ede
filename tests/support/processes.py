"""Processes that tests watch: whether they live, and waiting for their end without looking again and again."""

from __future__ import annotations

import os
import select
from pathlib import Path


class Watched:
    """A process that somebody else started; waiting for its end needs no child of ours, and no number is reused."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    def has_ended(self, limit_s: float = 10.0) -> bool:
        """Wait for its end, and tell whether it came."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(limit_s * 1000))

    def close(self) -> None:
        os.close(self._handle)


def watched_in(folder: Path) -> list[Watched]:
    """Watch the processes that have written their number as the name of a file in a folder."""
    return [Watched(int(path.name)) for path in folder.iterdir()]


def all_ended(processes: list[Watched], limit_s: float = 10.0) -> bool:
    """Wait for the end of all of them."""
    try:
        return all(process.has_ended(limit_s) for process in processes)
    finally:
        for process in processes:
            process.close()
