"""The two protocols under uvicorn: HTTP with limits, WebSocket with fewer writes.

What comes before a request has been read is looked at by nobody else: uvicorn keeps however many headers there are, and
waits for their end for ever. So a client that sends too many, or does not finish, is let go here.

On WebSocket, what is written in one turn of the event loop is sent in one piece. Each write is a system call, and each
system call lets the threads of the database take over for a moment. A run sends some five frames to its client, most of
them together with those of other runs; joined, they cost a sixth of the calls.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

HEAD_BYTES = 64 * 1024
"""How much may come before the body of a request; what is read at once may be more."""
_JOINED_BYTES = 64 * 1024


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's own protocol, for requests that come to their end in time."""

    _overdue: asyncio.TimerHandle | None = None
    _ends = 0
    """How often the headers or the body of a request have come to their end."""
    _is_in_head = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        ends = self._ends
        super().data_received(data)
        is_all_head = self._is_in_head and self._ends == ends
        self._head_bytes = self._head_bytes + len(data) if is_all_head else 0
        if self._head_bytes > HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect()

    def on_headers_complete(self) -> None:
        self._ends, self._is_in_head = self._ends + 1, False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._ends, self._is_in_head = self._ends + 1, True
        self._came()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._came()
        super().handle_websocket_upgrade()

    def _expect(self) -> None:
        if self._overdue is None:
            self._overdue = self.loop.call_later(self.config.app.limits.request_s, self.transport.abort)  # type: ignore[union-attr]  # it is ours

    def _came(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


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
