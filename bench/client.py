"""A WebSocket client that costs next to nothing.

It shares the machine with the gateway, so what it takes is missing there. It knows just what the bench needs: text
frames in one piece, a mask of zeros (which leaves the text as it is), pings.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA


class _Frame(msgspec.Struct, frozen=True):
    type: str
    id: str | None = None
    ok: bool = True
    payload: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None


_decode_frame = msgspec.json.Decoder(_Frame).decode
_encode = msgspec.json.Encoder().encode


S = TypeVar("S", bound="Socket")


class Failed(Exception):
    """The server refused, or went away."""


class Socket(asyncio.Protocol):
    """The frames of one connection."""

    def __init__(self) -> None:
        self.upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.upgraded.done():
            self.upgraded.set_exception(Failed("the connection was closed"))
        self.lost.set_result(None)

    def upgrade(self, host: str, path: str) -> None:
        """Ask for a WebSocket; `upgraded` is done when it is one."""
        key = base64.b64encode(os.urandom(16)).decode()
        self._transport.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.upgraded.done() and not self._read_upgrade():
            return
        at = 0
        while (end := self._read_frame(at)) is not None:
            at = end
        del self._buffer[:at]

    def _read_upgrade(self) -> bool:
        head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not found:
            return False
        self._buffer = bytearray(rest)
        if head.startswith(b"HTTP/1.1 101"):
            self.upgraded.set_result(None)
        else:
            self.upgraded.set_exception(Failed(head.decode(errors="replace")))
        return True

    def _read_frame(self, at: int) -> int | None:
        """Take the frame that begins here, if all of it has come, and tell where it ends."""
        buffer = self._buffer
        if len(buffer) < at + 2:
            return None
        size, start = buffer[at + 1], at + 2
        if size >= 126:
            start += 2 if size == 126 else 8
            if len(buffer) < start:
                return None
            size = int.from_bytes(buffer[at + 2 : start], "big")
        end = start + size
        if len(buffer) < end:
            return None
        self._take(buffer[at] & 0x0F, bytes(buffer[start:end]))
        return end

    def _take(self, kind: int, data: bytes) -> None:
        if kind == _TEXT:
            self.text_received(data)
        elif kind == _PING:
            self._send(_PONG, data)
        elif kind == _CLOSE:
            self._transport.close()

    def text_received(self, data: bytes) -> None:
        """Take a text frame."""

    def send(self, data: bytes) -> None:
        self._send(_TEXT, data)

    def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = bytes((0x80 | kind, 0x80 | size))
        elif size < 65536:
            head = bytes((0x80 | kind, 0xFE)) + size.to_bytes(2, "big")
        else:
            head = bytes((0x80 | kind, 0xFF)) + size.to_bytes(8, "big")
        self._transport.write(head + b"\0\0\0\0" + data)

    def close(self) -> None:
        self._transport.close()


class Echo(Socket):
    """A client of the bare server, which sends back what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[asyncio.Future[bytes]] = []

    def text_received(self, data: bytes) -> None:
        self._waiting.pop(0).set_result(data)

    def ask(self, data: bytes) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.send(data)
        return future


class Client(Socket):
    """A client of the gateway."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._waiting: dict[str, list[asyncio.Future[bytes]]] = {}

    def text_received(self, data: bytes) -> None:
        frame = _decode_frame(data)
        if frame.id is None or not (waiting := self._waiting.get(frame.id)):
            return  # an event
        future = waiting.pop(0)
        if not waiting or not frame.ok:
            del self._waiting[frame.id]
        if future.done():
            return
        if frame.ok:
            future.set_result(bytes(frame.payload))
        else:
            future.set_exception(Failed(str(frame.error)))
            for other in waiting:
                other.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for future in itertools.chain.from_iterable(self._waiting.values()):
            if not future.done():
                future.set_exception(Failed("the gateway closed the connection"))

    def ask(self, method: str, params: Mapping[str, Any]) -> asyncio.Future[bytes]:
        """Send a request that has one answer."""
        return self._begin(method, params, 1)[0]

    def agent(self, session: str, text: str, **more: Any) -> tuple[asyncio.Future[bytes], asyncio.Future[bytes]]:
        """Start a run: it is answered when it is accepted and when it has ended."""
        accepted, ended = self._begin("agent", {"sessionKey": session, "message": text, **more}, 2)
        return accepted, ended

    def _begin(self, method: str, params: Mapping[str, Any], answers: int) -> list[asyncio.Future[bytes]]:
        id = f"r{next(self._numbers)}"
        create = asyncio.get_running_loop().create_future
        futures: list[asyncio.Future[bytes]] = [create() for _ in range(answers)]
        self._waiting[id] = list(futures)
        self.send(_encode({"type": "req", "id": id, "method": method, "params": params}))
        return futures


@asynccontextmanager
async def connected(url: str, token: str) -> AsyncIterator[Client]:
    """Connect to a gateway as its operator."""
    async with _opened(url, Client) as client:
        connect = {"minProtocol": 4, "maxProtocol": 4, "client": {"id": "bench", "mode": "cli"}}
        await client.ask("connect", connect | {"auth": {"token": token}})
        yield client


@asynccontextmanager
async def echoing(url: str) -> AsyncIterator[Echo]:
    """Connect to the bare server."""
    async with _opened(url, Echo) as echo:
        yield echo


@asynccontextmanager
async def _opened(url: str, make: type[S]) -> AsyncIterator[S]:
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    _, socket = await loop.create_connection(make, place.hostname or "127.0.0.1", place.port or 80)
    socket.upgrade(place.netloc, place.path or "/")
    await socket.upgraded
    try:
        yield socket
    finally:
        socket.close()
        await socket.lost
