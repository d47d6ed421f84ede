"""A load balancer for trying things out: passes connections on to gateways that say at `/readyz` that they are ready.

In earnest use one that is looked after; `haproxy.cfg` beside this file does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

CHECK_EVERY_S = 0.5
CHECK_LIMIT_S = 2.0
HOST = "127.0.0.1"


class Balancer:
    """Gives each connection to the next gateway that is ready."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._ready: set[int] = set()
        self.has_ready = asyncio.Event()
        """Set when there was a gateway that is ready."""

    async def serve(self, port: int) -> None:
        """Listen until cancelled."""
        server = await asyncio.start_server(self._pass_on, HOST, port)
        async with server:
            await asyncio.gather(server.serve_forever(), *(self._watch(gateway) for gateway in self._ports))

    async def _watch(self, port: int) -> None:
        while True:
            if await is_ready(port):
                self._ready.add(port)
                self.has_ready.set()
            else:
                self._ready.discard(port)
            await asyncio.sleep(CHECK_EVERY_S)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
            try:
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
            finally:
                far_writer.close()
        except (OSError, asyncio.CancelledError):
            pass  # nobody is ready, one of both has gone, or this is the end
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the gateway whose turn it is; one that does not answer is left out until it is ready again."""
        for port in list(self._ports):
            self._ports.append(self._ports.pop(0))
            if port in self._ready:
                try:
                    return await asyncio.open_connection(HOST, port)
                except OSError:
                    self._ready.discard(port)
        raise ConnectionError("no gateway is ready")


async def is_ready(port: int) -> bool:
    """Ask a gateway whether it can accept messages."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CHECK_LIMIT_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
                return (await reader.readline()).split()[1:2] == [b"200"]
            finally:
                writer.close()
    return False


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
