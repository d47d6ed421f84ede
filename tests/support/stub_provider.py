"""A provider of models that answers as it is told, over a real socket, and takes nothing that a real one refuses.

    async with StubProvider() as stub:
        stub.then(Answer(text="hello"), Fault(429, headers={"retry-after": "2"}))
        … ask a model whose endpoint is `stub.base_url` …
    assert stub.refused == []

It speaks OpenAI's chat completions and Responses (`stub_openai`) and Anthropic's messages (`stub_anthropic`), each
under its own path of the one address. Requests are answered in order by what `then` was given, else by `reply`, else
by "ok".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.servers import LocalServer
from tests.support.stub_anthropic import Messages
from tests.support.stub_openai import ChatCompletions, Responses
from tests.support.stub_wires import Answer, Call, Wire

__all__ = ["Answer", "Asked", "Call", "Drop", "Fault", "Hang", "StubProvider"]

WIRES: dict[str, Wire] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


@dataclass(frozen=True)
class Fault:
    """An answer that is none: a status with the provider's kind of error, or a body that makes no sense."""

    status: int = 500
    message: str = "something went wrong"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    """Sent as it is, in place of an error."""
    content_type: str = "application/json"


@dataclass(frozen=True)
class Hang:
    """No answer at all, until it is told to go away."""

    until: asyncio.Event | None = None


@dataclass(frozen=True)
class Drop:
    """The connection is closed without a word."""


@dataclass
class Asked:
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client closed the connection."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation, by whatever name its wire has for it."""
        found: list[dict[str, Any]] = self.body.get("messages") or self.body.get("input") or []
        return found


Told = Answer | Fault | Hang | Drop


class StubProvider(LocalServer):
    """The stand-in; `key` is the only key it takes, when one is given."""

    def __init__(self, *, key: str | None = None, reply: Callable[[Asked], Told] | None = None) -> None:
        super().__init__()
        self.key = key
        self.reply = reply
        self.requests: list[Asked] = []
        self.refused: list[str] = []
        """What was wrong with the requests it refused by itself."""
        self.base_url = ""
        self._told: deque[Told] = deque()
        self._arrived = asyncio.Event()

    def opened(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"

    def then(self, *told: Told) -> None:
        """Say how the next requests are answered."""
        self._told.extend(told)

    def forget(self) -> None:
        """Forget what was said about the next requests."""
        self._told.clear()

    async def asked(self, count: int = 1) -> Asked:
        """Wait until so many requests have come in all, and give the last of them."""
        while len(self.requests) < count:
            await self._arrived.wait()
        return self.requests[count - 1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await _read_request(reader)
        watcher = asyncio.create_task(_watch(reader, asked))
        try:
            await self._answer(asked, writer)
        finally:
            watcher.cancel()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        wire = WIRES.get(asked.path)
        if wire is None:
            await _send(writer, 404, "no such path", "text/plain")
            return
        self.requests.append(asked)
        self._arrived.set()
        self._arrived = asyncio.Event()
        match self._refuse(asked, wire) or self._next(asked):
            case Fault() as fault:
                body = wire.error(fault.status, fault.message) if fault.body is None else fault.body
                await _send(writer, fault.status, body, fault.content_type, fault.headers)
            case Hang() as hang:
                await _hold(asked, hang.until or asyncio.Event())
            case Drop():
                pass
            case answer if asked.body.get("stream"):
                await _stream(asked, writer, wire, answer)
            case answer:
                assert isinstance(wire, ChatCompletions), "the others refuse what is not streamed"
                await _send(writer, 200, wire.whole(asked.body, answer))

    def _refuse(self, asked: Asked, wire: Wire) -> Fault | None:
        if self.key is not None and (given := wire.key(asked.headers)) != self.key:
            return Fault(401, wire.wrong_key(given))
        if (problem := wire.check(asked.body)) is not None:
            self.refused.append(problem)
            return Fault(400, problem)
        return None

    def _next(self, asked: Asked) -> Told:
        if self._told:
            return self._told.popleft()
        return self.reply(asked) if self.reply is not None else Answer(text="ok")


async def _read_request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(first.split(" ")[1].partition("?")[0], headers, json.loads(body or b"{}"))


async def _watch(reader: asyncio.StreamReader, asked: Asked) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read()  # a client sends nothing more on this connection: it ends when the client does
    asked.gone.set()


async def _hold(asked: Asked, gate: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in (gate, asked.gone)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if asked.gone.is_set():
        raise ConnectionResetError


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: str,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> None:
    data = body.encode()
    _write_head(writer, status, {"content-type": content_type, "content-length": str(len(data)), **(headers or {})})
    writer.write(data)
    await writer.drain()


async def _stream(asked: Asked, writer: asyncio.StreamWriter, wire: Wire, answer: Answer) -> None:
    _write_head(writer, 200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
    if answer.breaks_at is not None:
        writer.write(whole_stream(wire, asked.body, answer)[: answer.breaks_at])
        await writer.drain()
        return
    for frame in wire.frames(asked.body, answer):
        if frame.is_end and answer.ends != "whole":
            break
        if answer.gate is not None and frame.place == answer.held_at:
            if answer.reached is not None:
                answer.reached.set()
            await _hold(asked, answer.gate)
        writer.write(_chunk(frame.data))
        await writer.drain()
    if answer.ends != "broken":
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def whole_stream(wire: Wire, body: dict[str, Any], answer: Answer) -> bytes:
    """Give all bytes of a streamed answer."""
    return b"".join([*(_chunk(frame.data) for frame in wire.frames(body, answer)), b"0\r\n\r\n"])


def _chunk(text: str) -> bytes:
    data = text.encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _write_head(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
    lines = [f"{name}: {value}" for name, value in {**headers, "connection": "close"}.items()]
    writer.write("\r\n".join([f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}", *lines, "", ""]).encode())
