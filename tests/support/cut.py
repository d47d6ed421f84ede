"""A way to a PostgreSQL server that can be cut: for a while, or at the answer to a commit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

_SYNC = b"S\0\0\0\4"
"""By what a pipeline ends: only then are its statements answered."""


class CutLine:
    """Passes bytes on to a server's socket, until it is told to break off."""

    def __init__(self, folder: Path, target: Path) -> None:
        self._own = folder / target.name
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.is_down = False
        self.loses_next_commit = False
        """Whether the answer to the next commit is lost, after the server has made it."""
        self.is_lost_before = False
        """Whether that commit is lost itself, on its way to the server."""
        self.is_last = False
        """Whether nothing gets through any more after that."""
        self.cuts = 0

    @property
    def url_part(self) -> str:
        """Where a client finds it."""
        return f"host={self._own.parent}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self._own)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self.is_down:
                await self._pass_both(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # it was cut
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        back = asyncio.create_task(self._pass_back(far_reader, writer))
        try:
            while data := await reader.read(65536):
                if self.loses_next_commit and b"COMMIT\0" in data:  # not READ COMMITTED, by which one begins
                    self.loses_next_commit = False
                    self.cuts += 1
                    self.is_down = self.is_last
                    while not data.startswith(b"Q") and _SYNC not in data:
                        data += await reader.read(65536)
                    await _ended(back)
                    if not self.is_lost_before:
                        far_writer.write(data)
                        await far_reader.read(1)  # it has answered: the commit is made
                    return
                far_writer.write(data)
        finally:
            await _ended(back)
            far_writer.close()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            writer.close()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
