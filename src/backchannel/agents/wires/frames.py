"""Frames: what surrounds the messages of a request, as pydantic-ai writes it.

pydantic-ai's profiles know which fields, headers and limits a model wants. So its model writes one request,
with placeholders for the system prompt and the conversation, to a transport that sends nothing. The frame is that
request with holes. It is kept for as long as the tools and settings stay the same. The messages come last in the body,
so each request of a conversation begins with the bytes of the one before.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from backchannel.agents.endpoints import ANTHROPIC_WIRES, Endpoint
from backchannel.agents.sdks import build_settings, open_http, open_model, open_provider
from backchannel.agents.translation import build_parameters
from backchannel.agents.wires.anthropic_encoder import cache_mark
from backchannel.core.contracts import ModelRequest

if TYPE_CHECKING:
    from pydantic_ai.models import Model as PydanticModel

_SYSTEM = "7d9f the place of the system prompt 41c2"
_SAID = "7d9f the place of the conversation 41c2"
_HOLE = msgspec.json.encode(_SYSTEM)
_OWN_HEADERS = frozenset({"host", "content-length", "accept-encoding", "connection"})
"""Headers that belong to a single request, or to the client."""
_PLAIN = (b"accept-encoding", b"identity")
"""What is compressed may be a thousand times as long as it came."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A request without its system prompt and messages."""

    url: httpx2.URL
    headers: tuple[tuple[bytes, bytes], ...]
    extensions: dict[str, Any]
    fields: bytes
    """The body up to its messages; it may have the hole of the system prompt."""
    array: bytes
    """The name of the messages, and the bracket before them."""
    head: bytes
    """What stands before the first message, such as the system prompt on some wires."""

    def fill(self, system: str, steps: tuple[bytes, ...], cache_key: str | None) -> tuple[bytes, list[bytes]]:
        """Give a body: what stands before its array, and the elements of the array. `]}` ends it."""
        shown = msgspec.json.encode(system)
        key = b"" if cache_key is None else b',"prompt_cache_key":%b' % msgspec.json.encode(cache_key)
        opening = b"".join((self.fields.replace(_HOLE, shown, 1), key, self.array))
        return opening, list(filter(None, (self.head.replace(_HOLE, shown, 1), *steps)))


class FrameWriter:
    """A model of pydantic-ai whose requests go nowhere but into frames."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        """Make the model; this imports much."""
        self._endpoint = endpoint
        self._transport = _Nowhere()
        provider = open_provider(endpoint, open_http(endpoint, self._transport))
        self.model: PydanticModel[Any] = open_model(endpoint, provider, name)
        self._lock = threading.Lock()

    def write(self, request: ModelRequest, *, marks: str) -> Frame:
        """Write the frame of a request; this takes a thread. `marks` is how long cache marks hold, or `off`.

        Raises:
            ModelFailed: the thinking level is none.
        """
        settings = build_settings(request, self.model, self._endpoint.kind)
        parameters = build_parameters(
            msgspec.structs.replace(request, system=_SYSTEM if request.system.strip() else "")
        )
        with self._lock:
            self._transport.taken = None
            try:
                asyncio.run(self._ask(settings, parameters))
            except Exception:  # the transport raises on purpose, and each SDK wraps that in a type of its own
                if self._transport.taken is None:
                    raise
            written = self._transport.give()
        return _frame_of(written, marks if self._endpoint.kind in ANTHROPIC_WIRES else "off")

    async def _ask(self, settings: Any, parameters: Any) -> None:
        from pydantic_ai import messages as pai
        from pydantic_ai.direct import model_request_stream

        said = pai.ModelRequest(parts=[pai.UserPromptPart(content=_SAID)])
        async with model_request_stream(
            self.model,
            [said],
            model_settings=settings,
            model_request_parameters=parameters,
            instrument=False,
        ):
            pass


class _Nowhere(httpx2.AsyncBaseTransport):
    """A transport that keeps a request and sends nothing."""

    def __init__(self) -> None:
        self.taken: httpx2.Request | None = None

    def give(self) -> httpx2.Request:
        assert self.taken is not None, "pydantic-ai sent its request"
        return self.taken

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        self.taken = request
        raise httpx2.ConnectError("kept, not sent")


def _frame_of(written: httpx2.Request, marks: str) -> Frame:
    body: dict[str, Any] = msgspec.json.decode(written.content)
    name = "input" if "input" in body else "messages"
    *head, last = body.pop(name)
    assert _SAID in str(last), "the conversation is the last element of the request"
    if marks != "off":
        for marked in (body.get("tools"), body.get("system")):
            if marked:
                marked[-1]["cache_control"] = cache_mark(marks)
    headers = [(key, value) for key, value in written.headers.raw if key.decode().lower() not in _OWN_HEADERS]
    return Frame(
        url=written.url,
        headers=(*headers, _PLAIN),
        extensions={"timeout": written.extensions.get("timeout", {})},
        fields=msgspec.json.encode(body)[:-1],
        array=b',"%b":[' % name.encode(),
        head=b",".join(map(msgspec.json.encode, head)),
    )
