"""The far end of a bridge: a real HTTP server that takes each key once, and can be told to misbehave.

    async with FarEnd() as far_end:
        far_end.then(Fault(500), Hang(), Break())
        … a gateway whose channel has the url `far_end.url` …
        await far_end.took(3)

A key that comes again is answered as the first time and not taken again, as the bridge asks of its far ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from backchannel.channels.signing import SIGNATURE, is_signed, sign
from tests.support.servers import Break, Hang, LocalServer

SECRET = "a secret of the tests, long enough"


@dataclass(frozen=True)
class Fault:
    """An answer with this status, by a far end that has not taken the message, unless it says so."""

    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = '{"error": "not now"}'
    takes: bool = False


Told = Fault | Hang | Break


@dataclass(frozen=True)
class Message:
    """A message that the far end took."""

    key: str
    to: str
    text: str
    account_id: str | None
    thread_id: str | None
    message_id: str
    file: tuple[str, str, bytes] | None = None
    """Its file: name, type and content."""
    buttons: Mapping[str, str] = field(default_factory=dict)
    """The values of its buttons, by their labels."""


class FarEnd(LocalServer):
    """The stand-in for a platform and its bridge."""

    def __init__(self, secret: str = SECRET) -> None:
        super().__init__()
        self.secret = secret
        self.url = ""
        self.posts: list[str] = []
        """The keys of everything that was posted, in order, repetitions included."""
        self.messages: list[Message] = []
        self._taken: dict[str, Message] = {}
        self._told: deque[Told | None] = deque()
        self._came = asyncio.Condition()

    def opened(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/out"

    def settings(self, **more: Any) -> dict[str, Any]:
        """Make the settings of a channel that leads here."""
        return {"adapter": "bridge", "url": self.url, "secret": self.secret, "allowFrom": ["*"], **more}

    def then(self, *told: Told | None) -> None:
        """Say what becomes of the next posts; None, and all others, are taken and answered."""
        self._told.extend(told)

    def clear(self) -> None:
        """Begin anew: nothing was posted."""
        self.messages.clear()
        self.posts.clear()
        self._taken.clear()

    async def took(self, count: int) -> list[Message]:
        """Wait until so many messages were taken in all."""
        async with asyncio.timeout(20), self._came:
            await self._came.wait_for(lambda: len(self.messages) >= count)
        return self.messages

    async def posted(self, count: int) -> None:
        """Wait until so much was posted in all, taken or not."""
        async with asyncio.timeout(20), self._came:
            await self._came.wait_for(lambda: len(self.posts) >= count)

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]

    @property
    def counts(self) -> Counter[str]:
        """How often each key was taken: once, or somebody reads it twice."""
        return Counter(message.key for message in self.messages)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._one(reader, writer):
            pass

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        if not is_signed(self.secret, body, headers.get(SIGNATURE.lower())):
            await _answer(writer, 401, {}, '{"error": "bad signature"}')
            return True
        key, told = headers["idempotency-key"], self._told.popleft() if self._told else None
        if told is None or told.takes:
            self._take(key, json.loads(body))
        self.posts.append(key)
        async with self._came:
            self._came.notify_all()
        match told:
            case Fault(status, extra, text):
                await _answer(writer, status, extra, text)
            case Hang():
                await reader.read()  # until the other side goes away
                return False
            case Break():
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
                await writer.drain()
                return False
            case None:
                await _answer(writer, 200, {}, json.dumps({"messageId": self._taken[key].message_id}))
        return True

    def _take(self, key: str, body: dict[str, Any]) -> None:
        if key in self._taken:
            return
        buttons = {button["label"]: button["value"] for button in body.get("buttons", [])}
        for at, old in enumerate(self.messages):
            if old.message_id == body.get("replaces"):
                self.messages[at] = self._taken[key] = replace(old, text=body["text"], buttons=buttons)
                return
        message = Message(
            key=key,
            to=body["to"],
            text=body["text"],
            account_id=body.get("accountId"),
            thread_id=body.get("threadId"),
            message_id=f"m{len(self.messages) + 1}",
            buttons=buttons,
            file=_file(body.get("file")),
        )
        assert body["deliveryId"] == key.removesuffix("/instead").rpartition("/")[0]
        self.messages.append(message)
        self._taken[key] = message


def _file(given: dict[str, Any] | None) -> tuple[str, str, bytes] | None:
    if given is None:
        return None
    content = base64.b64decode(given["content"], validate=True)
    assert len(content) == given["size"]
    return given["name"], given["mimeType"], content


async def _answer(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], body: str) -> None:
    lines = [f"HTTP/1.1 {status} told", f"Content-Length: {len(body.encode())}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
    await writer.drain()


def event(**changed: Any) -> dict[str, Any]:
    """Make an inbound event: somebody writes directly."""
    return {
        "chatType": "direct",
        "chatId": "Chat-1",
        "senderId": "ann",
        "messageId": "in-1",
        "text": "hello",
        **changed,
    }


def signed(posted: dict[str, Any], secret: str = SECRET) -> tuple[bytes, dict[str, str]]:
    """Make the body and headers of a post of the far end."""
    body = json.dumps(posted).encode()
    return body, {SIGNATURE: sign(secret, body), "Content-Type": "application/json"}
