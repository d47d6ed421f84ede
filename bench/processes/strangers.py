"""Strangers at the door, in a process of their own, until it is stopped. Takes a `Siege` as JSON.

Half of the idle ones say nothing, half ask for a WebSocket and never connect. One that is closed comes again, a few
seconds later. Wrong tokens come one after the other at all doors. When all have come once, and a second has passed, it
says `{}` in one line.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from contextlib import suppress
from typing import cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from backchannel.gateway.ws.peers import raise_descriptor_limit

AGAIN_S = (1.0, 5.0)
"""How soon the first and the last of them come again: not all at the same moment."""
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_TEMPTED = (
    "GET /metrics",
    "POST /tools/invoke",
    "POST /mcp",
    "GET /v1/models",
    "POST /hooks/agent",
    "POST /channels/desk/inbound",
)


class Siege(msgspec.Struct, frozen=True, kw_only=True):
    """How many come to which gateway."""

    url: str
    idle: int
    wrong_per_second: float


class _Idle(asyncio.Protocol):
    def __init__(self, said: bytes) -> None:
        self._said = said
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._said)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


async def stand(host: str, port: int, said: bytes, again_s: float, came: asyncio.Semaphore) -> None:
    """Come, say no more than this, and come again when sent away."""
    while True:
        try:
            _, idle = await asyncio.get_running_loop().create_connection(lambda: _Idle(said), host, port)
            came.release()
            await idle.lost
        except OSError:
            came.release()
        await asyncio.sleep(again_s)


async def guess(host: str, port: int, per_second: float) -> None:
    """Bring wrong tokens at this pace, whether they are answered or not."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for number in itertools.count():
            await asyncio.sleep(began + number / per_second - loop.time())
            tasks.create_task(bring(host, port, number))


async def bring(host: str, port: int, number: int) -> None:
    """Bring a wrong token: every other time the same old one, else one that never came before."""
    token = f"guess-{number}" if number % 2 else "an old token"
    request = (
        f"{_TEMPTED[number % len(_TEMPTED)]} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"X-Backchannel-Signature: sha256={number:064x}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
    ).encode()
    with suppress(OSError):  # nobody promised a stranger an answer
        _, asking = await asyncio.get_running_loop().create_connection(lambda: _Idle(request), host, port)
        await asking.lost


async def main() -> None:
    siege = msgspec.json.decode(sys.argv[1], type=Siege)
    place = urlsplit(siege.url)
    host, port = place.hostname or "127.0.0.1", place.port or 80
    came = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as tasks:
        for number in range(siege.idle):
            again_s = AGAIN_S[0] + (AGAIN_S[1] - AGAIN_S[0]) * number / siege.idle
            tasks.create_task(stand(host, port, UPGRADE if number % 2 else b"", again_s, came))
        for _ in range(siege.idle):
            await came.acquire()
        tasks.create_task(guess(host, port, siege.wrong_per_second))
        await asyncio.sleep(1)
        print("{}", flush=True)


if __name__ == "__main__":
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
