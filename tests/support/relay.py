"""A proxy in front of a gateway that may be away for a while: it holds a connection until the gateway is back."""

from __future__ import annotations

import asyncio
from typing import Self

from tests.support.servers import LocalServer


class Relay(LocalServer):
    """Passes bytes on to whatever port it is told, and breaks off when that does."""

    def __init__(self) -> None:
        super().__init__()
        self.port = 0
        self.connections = 0
        """How many came."""
        self._target: int | None = None
        self._has_target = asyncio.Event()

    def opened(self, port: int) -> None:
        self.port = port

    def to(self, port: int | None) -> Self:
        """Pass connections on to this port; None holds those that come until there is one again."""
        self._target = port
        (self._has_target.clear if port is None else self._has_target.set)()
        return self

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self._has_target.wait()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        ways = asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        try:
            await ways
        finally:
            far_writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass everything on; when nothing more comes, the other way is closed too, which ends it."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
