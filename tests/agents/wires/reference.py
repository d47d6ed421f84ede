"""The same question asked twice: through pydantic-ai, and over our own wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import httpx2
import msgspec

from backchannel.agents.endpoints import Endpoint, image_limit
from backchannel.agents.providers import ask_by_library, build_failure
from backchannel.agents.sdks import open_http, open_model, open_provider
from backchannel.agents.wires.talking import CacheHabits, WireModel
from backchannel.core.contracts import ModelEvent, ModelFailed, ModelReply, ModelRequest

PROVIDER = "acme"
KEY = "sk-test-0123456789abcdefghij"
MODELS = {
    "openai-compatible": "some-model",
    "ollama": "qwen3",
    "openai": "gpt-5.4",
    "anthropic": "claude-sonnet-4-6",
    "anthropic-compatible": "some-claude",
}
KINDS = list(MODELS)
Outcome = tuple[list[ModelEvent], ModelReply] | ModelFailed


class Chunks(httpx2.AsyncByteStream):
    """The body of an answer, in the pieces in which it comes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


Answering = Callable[[httpx2.Request], httpx2.Response]


@dataclass
class Recorder(httpx2.AsyncBaseTransport):
    """A transport that keeps what is sent, and answers as it is told, or refuses the connection."""

    answer: Answering | None = None
    requests: list[httpx2.Request] = field(default_factory=list)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        self.requests.append(request)
        if self.answer is None:
            raise httpx2.ConnectError("nobody is there")
        return self.answer(request)

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = msgspec.json.decode(self.requests[-1].content)
        return body


@dataclass
class Pair:
    """One model of one endpoint, reached in both ways."""

    endpoint: Endpoint
    name: str

    def __post_init__(self) -> None:
        self.by_library, self.by_wire = Recorder(), Recorder()
        provider = open_provider(self.endpoint, open_http(self.endpoint, self.by_library))
        self.library = open_model(self.endpoint, provider, self.name)
        self.wire = WireModel(self.endpoint, self.name, open_http(self.endpoint, self.by_wire), CacheHabits())

    async def ask_library(self, request: ModelRequest, limit: int | None = None) -> Outcome:
        limit = image_limit(self.endpoint.kind) if limit is None else limit
        return await self._outcome(ask_by_library(self.library, request, self.endpoint, limit))

    async def ask_wire(self, request: ModelRequest, limit: int | None = None) -> Outcome:
        limit = image_limit(self.endpoint.kind) if limit is None else limit
        return await self._outcome(self.wire.stream(request, limit))

    async def _outcome(self, events: AsyncIterator[ModelEvent]) -> Outcome:
        try:
            got = [event async for event in events]
        except Exception as error:  # noqa: BLE001  # as in ProviderModel.stream
            return build_failure(error, self.endpoint)
        reply = got.pop()
        assert isinstance(reply, ModelReply)
        return got, reply

    def answers(self, make: Answering) -> None:
        self.by_library.answer = self.by_wire.answer = make


@cache
def pair(kind: str, name: str | None = None, cached: str = "off") -> Pair:
    """Give the pair of a kind; it is made once, since making it takes long."""
    endpoint = Endpoint(PROVIDER, kind, "http://127.0.0.1:9/v1", KEY, cached)
    with ThreadPoolExecutor(1) as elsewhere:  # writing a frame takes a loop of its own
        return elsewhere.submit(Pair, endpoint, name or MODELS[kind]).result()


def streaming(body: bytes, *, cuts: list[int] | None = None, content_type: str = "text/event-stream") -> Answering:
    """Answer with a stream, cut at these places."""
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts or ())})
    pieces = [body[a:b] for a, b in pairwise(places)]

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": content_type}, stream=Chunks(pieces), request=request)

    return answer
