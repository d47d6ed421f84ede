"""WebSocket under uvicorn, with what is written in one turn of the event loop sent in one piece.

Each write is a system call, and each system call lets the threads of the database take over for a moment. A run sends
some five frames to its client, most of them together with those of other runs; joined, they cost a sixth of the calls.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_JOINED_BYTES = 64 * 1024


class JoinedWrites:
    """A transport whose writes are sent together at the end of the turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > _JOINED_BYTES:  # so that a client that does not read is noticed at once
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._waiting:
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._size = 0
            self._transport.write(data)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's own protocol on such a transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]  # it is one by its methods
