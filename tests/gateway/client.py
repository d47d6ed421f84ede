"""A plain client of the gateway, for tests that speak through a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection

OPERATOR = "the-operator-token-of-the-tests"


class Refused(Exception):
    """The gateway answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error

    @property
    def code(self) -> str:
        return str(self.error["details"]["code"])


class Client:
    """Sends requests and sorts what comes back into answers and events."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.hello: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self._answers: dict[str, asyncio.Queue[dict[str, Any]]] = {}
        self.unasked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.came = asyncio.Condition()
        self._next = 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for text in self.socket:
            frame = json.loads(text)
            if frame["type"] == "event":
                self.events.append(frame)
            else:
                self._answers.get(frame["id"], self.unasked).put_nowait(frame)
            async with self.came:
                self.came.notify_all()

    async def close(self) -> None:
        await self.socket.close()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def connect(self, token: str | None = OPERATOR, **params: Any) -> dict[str, Any]:
        given: dict[str, Any] = {"minProtocol": 4, "maxProtocol": 4, "client": {"id": "test", "mode": "cli"}}
        if token is not None:
            given["auth"] = {"token": token}
        self.hello = await self.ask("connect", **{**given, **params})
        return self.hello

    async def begin(self, method: str, params: Any = None) -> asyncio.Queue[dict[str, Any]]:
        """Send a request; its answers come in the queue."""
        self._next += 1
        id = f"r{self._next}"
        queue = self._answers[id] = asyncio.Queue()
        await self.socket.send(json.dumps({"type": "req", "id": id, "method": method, "params": params}))
        return queue

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and take its first answer."""
        queue = await self.begin(method, params)
        return await self.take(queue)

    async def take(self, queue: asyncio.Queue[dict[str, Any]]) -> dict[str, Any]:
        async with asyncio.timeout(20):
            frame = await queue.get()
        if not frame["ok"]:
            raise Refused(frame["error"])
        payload: dict[str, Any] = frame["payload"]
        return payload

    async def run(self, **params: Any) -> dict[str, Any]:
        """Call `agent` and take its last answer."""
        queue = await self.begin("agent", params)
        assert (await self.take(queue))["status"] == "accepted"
        return await self.take(queue)

    async def refused(self, method: str, params: Any = None) -> dict[str, Any]:
        """Send a request that must fail, and take its error."""
        try:
            answer = await self.take(await self.begin(method, params))
        except Refused as refused:
            return refused.error
        raise AssertionError(f"{method} was not refused: {answer}")

    async def event(self, name: str, **wanted: Any) -> dict[str, Any]:
        """Wait for an event whose payload has these values; returns the payload."""
        return await self._until(lambda: self.seen(name), wanted)

    async def said(self, **wanted: Any) -> dict[str, Any]:
        """Wait for a `chat` event that says something; the end of an internal run says nothing."""
        return await self._until(self.all_said, wanted)

    def all_said(self) -> list[dict[str, Any]]:
        return [payload for payload in self.seen("chat") if "message" in payload]

    async def _until(self, found: Callable[[], list[dict[str, Any]]], wanted: dict[str, Any]) -> dict[str, Any]:
        async with asyncio.timeout(20), self.came:
            while True:
                for payload in found():
                    if wanted.items() <= payload.items():
                        return payload
                await self.came.wait()

    def seen(self, name: str) -> list[dict[str, Any]]:
        return [frame["payload"] for frame in self.events if frame["event"] == name]

    async def closed(self) -> int:
        """Wait for the gateway to close the connection; returns the code."""
        async with asyncio.timeout(20):
            await self.socket.wait_closed()
        return self.socket.close_code or 0


@asynccontextmanager
async def connected(url: str, token: str | None = OPERATOR, **params: Any) -> AsyncIterator[Client]:
    """Open a connection and go through the handshake."""
    async with opened(url) as client:
        await client.connect(token, **params)
        yield client


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Client]:
    """Open a connection, and do nothing more."""
    socket = await websockets.connect(url, compression=None, max_size=None, **options)
    client = Client(socket)
    try:
        yield client
    finally:
        await client.close()
