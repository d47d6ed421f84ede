"""What waits to be sent to a client.

Whoever sends only queues, so events never wait for a slow client. When too much waits, deltas are left out first (the
gap in `seq` shows it), and when that is not enough the connection is closed. A client that reads is not closed for much
that comes at once. What counts is the memory: that of the queue, and what the transport has not got rid of.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from starlette.types import Send

from backchannel.gateway.protocol import number_event

log = structlog.get_logger(__name__)

REFUSED = 1008
GOODBYE_S = 1.0
"""How long a close may take to get through."""
_ENTRY_BYTES = 80
"""What a frame's place in the queue takes."""


class Outgoing:
    """What waits to be sent to one client, in order, within a limit.

    `unsent` tells how much was sent and the client has not taken yet.
    """

    def __init__(self, send: Send, limit: int, unsent: Callable[[], int] = lambda: 0) -> None:
        self.done = asyncio.Event()
        self._send = send
        self._limit = limit
        self._unsent = unsent
        self._frames: deque[tuple[str, bool]] = deque()
        self._size = 0
        self._seq = 0
        self._wake = asyncio.Event()
        self._goodbye: tuple[int, str] | None = None
        self._is_stopped = False
        self._is_blocked = False
        self._writer: asyncio.Task[Any] | None = None

    @property
    def held_bytes(self) -> int:
        """How much memory waits for the client."""
        return self._size + self._unsent()

    def send(self, frame: str) -> None:
        """Queue an answer."""
        self._queue(frame, droppable=False)

    def send_event(self, head: str, *, droppable: bool) -> None:
        """Queue an event under its own number; one that is left out keeps its number, so that the gap shows."""
        self._seq += 1
        self._queue(number_event(head, self._seq), droppable=droppable)

    def close(self, code: int, reason: str) -> None:
        """Close after what is queued."""
        if self._goodbye is None:
            self._goodbye = (code, reason)
            self._wake.set()

    def stop(self) -> None:
        """Take nothing more: the connection has ended."""
        self._is_stopped = True
        self._frames.clear()
        self._size = 0

    async def write(self) -> None:
        """Send what is queued until the connection is to be closed."""
        self._writer = asyncio.current_task()
        try:
            while True:
                while self._frames:
                    frame, _ = self._frames.popleft()
                    self._is_blocked = True  # seen by others only while the send waits for the client
                    await self._send({"type": "websocket.send", "text": frame})
                    self._is_blocked = False
                    self._size -= _bytes_of(frame)
                if self._goodbye:
                    return
                self._wake.clear()
                await self._wake.wait()
        finally:
            self.stop()
            self.done.set()

    async def say_goodbye(self) -> None:
        """Close, if that was asked for; a client that does not read is not waited for."""
        if self._goodbye:
            code, reason = self._goodbye
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(GOODBYE_S):
                    await self._send({"type": "websocket.close", "code": code, "reason": _short(reason)})

    def _queue(self, frame: str, *, droppable: bool) -> None:
        if self._is_stopped or self._goodbye:
            return
        size, held = _bytes_of(frame), self.held_bytes
        if held and held + size > self._limit:
            if droppable:
                return
            self._drop_deltas()
            if self._is_blocked and self.held_bytes + size > self._limit:
                self._give_up()
                return
        self._frames.append((frame, droppable))
        self._size += size
        self._wake.set()

    def _drop_deltas(self) -> None:
        kept = [entry for entry in self._frames if not entry[1]]
        self._size -= sum(_bytes_of(frame) for frame, droppable in self._frames if droppable)
        self._frames = deque(kept)

    def _give_up(self) -> None:
        log.info("closing a connection that does not read", held=self.held_bytes)
        self.stop()
        self._goodbye = (REFUSED, "the client reads too slowly")
        if self._writer is not None:
            self._writer.cancel()  # it may be waiting for this client to read


def _bytes_of(frame: str) -> int:
    """Tell how much memory a frame takes in the queue; one with a single emoji takes four bytes for each character."""
    return sys.getsizeof(frame) + _ENTRY_BYTES


def _short(reason: str) -> str:
    """Cut a close reason to what a close frame can hold."""
    return reason.encode()[:120].decode(errors="ignore")
