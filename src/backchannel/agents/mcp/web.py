"""MCP servers at an address: the HTTP transport of the SDK, with bounded answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from backchannel.agents.mcp.mending import MendingStream
from backchannel.agents.mcp.pipes import LONGEST_MESSAGE
from backchannel.agents.turns import Turns
from backchannel.config.schema_agents import McpServerSettings
from backchannel.core.incoming_json import MOST_WORK, IncomingJson, TooMuchJson

CONNECT_S = 10.0
SILENT_S = 900.0
"""How long a stream may be silent: longer than any call."""
MOST_WIDE = 6 * 1024 * 1024
"""How many bytes of letters beyond ASCII a message may have: the SDK's decoder takes 6 ns for each."""
_PIECE = 8 * 1024
_PLAIN = {"accept-encoding": "identity"}
"""What is compressed may be a thousand times as long as it came."""
_ASCII = bytes(range(128))
_DATA = b"data:"


class HttpAnswers:
    """Looks at each answer of a server before the SDK does: notes what it refuses, and gives it an end."""

    def __init__(self) -> None:
        self.refused: int | None = None
        """The status of the last answer, if it was an error: the SDK does not tell it."""

    async def look(self, response: httpx2.Response) -> None:
        self.refused = response.status_code if response.status_code >= 400 else None
        are_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.StreamError("the answer is compressed, and that was not asked for")
        response.stream = _BoundedStream(response.stream, _Events() if are_events else _Body())


@asynccontextmanager
async def web_transport(settings: McpServerSettings, answers: HttpAnswers) -> AsyncIterator[TransportStreams]:
    """Speak to a server at an address while the context is open."""
    assert settings.url is not None
    timeout = httpx2.Timeout(CONNECT_S, read=SILENT_S)
    hooks = {"response": [answers.look]}
    async with (
        httpx2.AsyncClient(headers=_PLAIN | settings.headers, timeout=timeout, event_hooks=hooks) as http,
        streamable_http_client(settings.url, http_client=http, max_sse_event_size=LONGEST_MESSAGE) as (read, write),
    ):
        yield MendingStream(read), write


class _BoundedStream(httpx2.AsyncByteStream):
    """An answer, in pieces that are fit for the SDK: it decodes a message, or reads the lines of a piece, in one go."""

    def __init__(self, inner: httpx2.AsyncByteStream, body: _Body) -> None:
        self._inner = inner
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        turns = Turns()
        try:
            async for chunk in self._inner:
                for start in range(0, len(chunk), _PIECE):
                    yield self._body.take(chunk[start : start + _PIECE])
                    await turns.next()
            yield self._body.end()
        except TooMuchJson as error:
            raise self._body.refusal("the answer is too long, or has too many parts") from error

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Body:
    """An answer that is one message."""

    refusal: type[httpx2.StreamError] | type[httpx2.SSEError] = httpx2.StreamError
    """Of this the SDK makes the error of the one request that it is the answer of."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._json = IncomingJson(MOST_WORK // 2)  # the SDK's decoder takes more than twice as long as ours
        self._length = self._wide = 0

    def take(self, piece: bytes) -> bytes:
        piece = self._json.take(piece)
        self._length += len(piece)
        self._wide += 0 if piece.isascii() else len(piece.translate(None, _ASCII))
        if self._length > LONGEST_MESSAGE or self._wide > MOST_WIDE:
            raise TooMuchJson
        return piece

    def end(self) -> bytes:
        return self._json.end()


class _Events(_Body):
    """An answer of many events, each of which is a message; there may be any number of them."""

    refusal = httpx2.SSEError

    def __init__(self) -> None:
        super().__init__()
        self._start = b""
        """Of a line: as long as it may be one of data."""
        self._is_data: bool | None = None
        self._was_return = False

    def take(self, piece: bytes) -> bytes:
        first, *others = self._with_plain_ends(piece).split(b"\n")
        shown = [self._more(first)]
        for part in others:
            shown += (self._end_line(), self._more(part))
        return b"".join(shown)

    def _with_plain_ends(self, piece: bytes) -> bytes:
        if self._was_return:
            piece = piece.removeprefix(b"\n")
        self._was_return = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _more(self, part: bytes) -> bytes:
        if self._is_data is None:
            self._start += part
            if len(self._start) < len(_DATA):
                return b""
            part, self._start = self._start, b""
            self._is_data = part.startswith(_DATA)
            if self._is_data:
                return _DATA + super().take(part.removeprefix(_DATA))
        return super().take(part) if self._is_data else part

    def _end_line(self) -> bytes:
        rest = self._json.end() if self._is_data else self._start
        if self._is_data is None and not rest:
            self._begin()  # an empty line ends an event
        self._start, self._is_data = b"", None
        return rest + b"\n"

    def end(self) -> bytes:
        return self._json.end() if self._is_data else self._start
