"""A server at an address: the HTTP transport of the SDK, with bounds on what comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from backchannel.agents.mcp.mending import MendingStream
from backchannel.agents.mcp.pipes import LONGEST_MESSAGE, MOST_PARTS
from backchannel.config.schema_agents import McpServerSettings

CONNECT_S = 10.0
SILENT_S = 900.0
"""How long a stream may be silent: longer than any call."""


class HttpAnswers:
    """Looks at each answer of a server before the SDK does: notes what it refuses, and gives it an end."""

    def __init__(self) -> None:
        self.refused: int | None = None
        """The status of the last answer, if it was an error: the SDK does not tell it."""

    async def look(self, response: httpx2.Response) -> None:
        self.refused = response.status_code if response.status_code >= 400 else None
        is_endless = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, is_endless=is_endless)


@asynccontextmanager
async def web_transport(settings: McpServerSettings, answers: HttpAnswers) -> AsyncIterator[TransportStreams]:
    """Speak to a server at an address while the context is open."""
    assert settings.url is not None
    timeout = httpx2.Timeout(CONNECT_S, read=SILENT_S)
    hooks = {"response": [answers.look]}
    async with (
        httpx2.AsyncClient(headers=settings.headers, timeout=timeout, event_hooks=hooks) as http,
        streamable_http_client(settings.url, http_client=http, max_sse_event_size=LONGEST_MESSAGE) as (read, write),
    ):
        yield MendingStream(read), write


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, *, is_endless: bool) -> None:
        self._inner = inner
        self._is_endless = is_endless
        """It may be as long as it likes; only one line may not."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = parts = 0
        async for chunk in self._inner:
            if self._is_endless and b"\n" in chunk:
                length = parts = 0
            length += len(chunk)
            parts += chunk.count(b"{")
            if length > LONGEST_MESSAGE or parts > MOST_PARTS:
                # Of this family the SDK makes the error of the one request that it is the answer of.
                raise httpx2.StreamError("the answer is too long")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
