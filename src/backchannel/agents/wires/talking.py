"""One model on one wire: requests as bytes, replies as they stream."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Protocol

import httpx2
import msgspec

from backchannel.agents.endpoints import ANTHROPIC_WIRES, Endpoint
from backchannel.agents.turns import Turns
from backchannel.agents.wires.anthropic_decoder import AnthropicDecoder
from backchannel.agents.wires.anthropic_encoder import AnthropicEncoder, without_marks
from backchannel.agents.wires.chat_decoder import ChatDecoder
from backchannel.agents.wires.chat_encoder import ChatEncoder
from backchannel.agents.wires.content import has_images, split_steps
from backchannel.agents.wires.draft import ReplyDraft
from backchannel.agents.wires.events import LONGEST_EVENT, BadAnswer, EventLines, checked_json, slices, whole_body
from backchannel.agents.wires.failures import ProviderError, read_error_body, words_of
from backchannel.agents.wires.frames import Frame, FrameWriter
from backchannel.agents.wires.patience import Patience
from backchannel.agents.wires.responses_decoder import ResponsesDecoder
from backchannel.agents.wires.responses_encoder import ResponsesEncoder
from backchannel.core.contracts import MessageEncoder, ModelEvent, ModelRequest
from backchannel.core.messages import Message

MOST_FRAMES = 64
_LONGEST_ERROR = 1024 * 1024
_LARGE_BODY = 2 * 1024 * 1024
_SENT_AT_ONCE = 128 * 1024
_JOINED_AT_ONCE = 512
"""Elements, of some hundred bytes each."""
_ENDING = b"]}"
_MISSING_THOUGHT = "must start with a thinking block"
_PATIENCE_S = 0.05
"""How long the end of a stream may take after its last event, for its connection to be used again."""


class Decoder(Protocol):
    """Reads the reply of one wire into a draft."""

    draft: ReplyDraft
    is_done: bool

    def take(self, data: bytes) -> Iterator[ModelEvent]: ...
    def take_whole(self, data: bytes) -> Iterator[ModelEvent]: ...


class CacheHabits:
    """What an endpoint was found to refuse of our requests for caching; kept for all of its models."""

    def __init__(self) -> None:
        self.takes_key = True
        self.takes_marks = True


class WireModel:
    """A model that is asked without an SDK."""

    def __init__(self, endpoint: Endpoint, name: str, http: httpx2.AsyncClient, habits: CacheHabits) -> None:
        """Make the model, and write a first frame; this imports much."""
        self._endpoint = endpoint
        self._name = name
        self._http = http
        self._habits = habits
        self._writer = FrameWriter(endpoint, name)
        self._frames: OrderedDict[bytes, Frame] = OrderedDict()
        self._writer.write(ModelRequest(system="", messages=()), marks="off")  # loads the rest of the SDK

    @property
    def profile(self) -> Any:
        """What pydantic-ai knows of the model."""
        return self._writer.model.profile

    def encoder(self, image_limit: int) -> MessageEncoder:
        """Give the encoder of its messages."""
        provider = self._endpoint.provider
        if self._endpoint.kind in ANTHROPIC_WIRES:
            return AnthropicEncoder(provider, image_limit, self._marks)
        if self._endpoint.kind == "openai":
            takes_reasoning = bool(self.profile.get("openai_supports_encrypted_reasoning_content", False))
            return ResponsesEncoder(provider, image_limit, takes_reasoning)
        needs_field = self.profile.get("openai_chat_thinking_requires_field_on_tool_calls", False)
        return ChatEncoder(provider, image_limit, self._thinking_field if needs_field else None)

    async def stream(self, request: ModelRequest, image_limit: int) -> AsyncGenerator[ModelEvent, None]:
        """Ask the model; the last event is the reply, without its cost.

        Raises:
            ProviderError: the provider told an error.
            BadAnswer: what came is no answer of this API.
            httpx2.TransportError: the connection failed.
            ModelFailed: the request cannot be written, or the reply is not complete.
        """
        steps = request.encoded
        if steps is None:
            steps = await encode_steps(self.encoder(image_limit), request.messages)
        patience = Patience(self._endpoint.timeouts, self._endpoint.provider)
        response = await patience.opened(self._open(request, steps))
        try:
            decoder = self._decoder()
            async with aclosing(read_reply(patience.pieces(response.aiter_raw()), decoder)) as events:
                async for event in events:
                    yield event
        finally:
            await response.aclose()
        yield decoder.draft.reply()

    async def _open(self, request: ModelRequest, steps: tuple[bytes, ...]) -> httpx2.Response:
        """Send a request until its answer begins.

        Requests for caching that it refuses are left out from then on. Thinking that it refuses is left out once.
        """
        while True:
            # Another request may learn something meanwhile. What counts is what was sent with this one.
            marks, key = self._marks, self._cache_key(request)
            frame = await self._frame(request, marks)
            if marks == "off" and self._endpoint.cache != "off" and self._endpoint.kind in ANTHROPIC_WIRES:
                steps = (*steps[:-1], without_marks(steps[-1])) if steps else steps
            opening, elements = frame.fill(request.system, steps, key)
            response = await self._http.send(_request(frame, opening, elements), stream=True)
            try:
                if response.is_success:
                    if response.headers.get("content-encoding", "identity") != "identity":
                        raise BadAnswer("the answer is compressed, and that was not asked for")
                    return response
                body = read_error_body(await whole_body(response.aiter_raw(), _LONGEST_ERROR))
            except BaseException:  # a cancelled run too must give its connection back; the error goes on
                await response.aclose()
                raise
            await response.aclose()
            if request.thinking not in (None, "off") and self._wants_thought(response.status_code, body):
                request = msgspec.structs.replace(request, thinking="off")
            elif not self._learns(response.status_code, body, has_key=bool(key), has_marks=marks != "off"):
                raise ProviderError(body, response.status_code, response.headers)

    def _wants_thought(self, status: int, body: Any) -> bool:
        """Tell whether the tools of this turn were called by another model, whose thinking cannot be sent here.

        Anthropic's older models that think want their own thinking before such calls.
        """
        return status == 400 and self._endpoint.kind in ANTHROPIC_WIRES and _MISSING_THOUGHT in words_of(body)

    def _learns(self, status: int, body: Any, *, has_key: bool, has_marks: bool) -> bool:
        """Note that a compatible endpoint refuses a request for caching; false if that is not the reason."""
        words = words_of(body) if status in (400, 422) else ""
        if "prompt_cache_key" in words and self._endpoint.kind != "openai" and has_key:
            self._habits.takes_key = False
        elif "cache_control" in words and self._endpoint.kind == "anthropic-compatible" and has_marks:
            self._habits.takes_marks = False
        else:
            return False
        return True

    async def _frame(self, request: ModelRequest, marks: str) -> Frame:
        has_system = bool(request.system.strip())
        parts = (request.tools, request.thinking, request.uses_tools, request.max_tokens, has_system, marks)
        key = msgspec.json.encode(parts)
        frame = self._frames.get(key)
        if frame is None:
            frame = await asyncio.to_thread(partial(self._writer.write, request, marks=marks))
            self._frames[key] = frame
            while len(self._frames) > MOST_FRAMES:
                self._frames.popitem(last=False)
        self._frames.move_to_end(key)
        return frame

    @property
    def _marks(self) -> str:
        return self._endpoint.cache if self._habits.takes_marks else "off"

    def _cache_key(self, request: ModelRequest) -> str | None:
        takes_key = self._endpoint.kind in ("openai", "openai-compatible") and self._habits.takes_key
        return request.cache_key if takes_key and self._endpoint.cache != "off" else None

    @property
    def _thinking_field(self) -> str | None:
        field: str | None = self.profile.get("openai_chat_thinking_field")
        return field

    def _decoder(self) -> Decoder:
        draft = ReplyDraft(self._endpoint.provider, self._name)
        if self._endpoint.kind in ANTHROPIC_WIRES:
            return AnthropicDecoder(draft)
        if self._endpoint.kind == "openai":
            return ResponsesDecoder(draft)
        return ChatDecoder(
            draft,
            thinking_field=self._thinking_field,
            thinking_tags=self.profile.get("thinking_tags", ("<think>", "</think>")),
            drops_leading_space=self.profile.get("ignore_streamed_leading_whitespace", False),
        )


async def encode_steps(encoder: MessageEncoder, messages: Sequence[Message]) -> tuple[bytes, ...]:
    """Write a conversation; pictures are written beside the event loop."""
    written: list[bytes] = []
    turns, held = Turns(), None
    for step in split_steps(messages):
        if held is not None:
            written.append(await _encoded(encoder, held))
            await turns.next()
        held = step
    if held is not None:
        written.append(await _encoded(encoder, held, is_last=True))
        await turns.next()
    return tuple(written)


async def _encoded(encoder: MessageEncoder, step: Sequence[Message], *, is_last: bool = False) -> bytes:
    if has_images(step):
        return await asyncio.to_thread(partial(encoder.encode, step, is_last=is_last))
    return encoder.encode(step, is_last=is_last)


def _request(frame: Frame, opening: bytes, elements: list[bytes]) -> httpx2.Request:
    """Make the request; a large one is handed over piece by piece, so that it does not hold the event loop."""
    length = len(opening) + sum(map(len, elements)) + max(0, len(elements) - 1) + len(_ENDING)
    headers = [*frame.headers, (b"content-length", b"%d" % length)]
    is_large = length > _LARGE_BODY
    content = _parcels(opening, elements) if is_large else b"".join((opening, b",".join(elements), _ENDING))
    # The client notes in the extensions what it finds out on the way.
    return httpx2.Request("POST", frame.url, headers=headers, content=content, extensions=dict(frame.extensions))


async def _parcels(opening: bytes, elements: list[bytes]) -> AsyncIterator[bytes]:
    """Give a body in parcels: many small elements together, and a large one in parts."""
    yield opening
    for start in range(0, len(elements), _JOINED_AT_ONCE):
        group = elements[start : start + _JOINED_AT_ONCE]
        if start:
            yield b","
        if sum(map(len, group)) <= _LARGE_BODY:
            yield b",".join(group)
            continue
        for place, element in enumerate(group):
            if place:
                yield b","
            for at in range(0, len(element), _SENT_AT_ONCE):
                yield element[at : at + _SENT_AT_ONCE]
    yield _ENDING


async def read_reply(chunks: AsyncIterator[bytes], decoder: Decoder) -> AsyncGenerator[ModelEvent, None]:
    """Read an answer to its end: events, or one JSON text, whatever its content type says.

    Raises:
        BadAnswer: it is neither.
        ProviderError: the provider told an error in it.
    """
    lines, turns, has_begun = EventLines(), Turns(), False
    async with aclosing(slices(chunks)) as pieces:
        async for piece in pieces:
            if not has_begun and (start := piece.lstrip()):
                has_begun = True
                if start.startswith(b"{"):
                    body = start + await whole_body(pieces, LONGEST_EVENT)
                    for event in decoder.take_whole(await checked_json(body)):
                        yield event
                    return
                if start.startswith(b"<"):
                    raise BadAnswer("a page came in place of an answer")
            for data in lines.feed(piece):
                for event in decoder.take(await checked_json(data)):
                    yield event
                await turns.next()
            if decoder.is_done:
                break
        else:
            for data in lines.end():
                for event in decoder.take(await checked_json(data)):
                    yield event
    await _drain(chunks)


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read what is left of a stream that has told its end: only then its connection can be used again."""
    left = _SENT_AT_ONCE
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            async for chunk in chunks:
                left -= len(chunk)
                if left < 0:
                    return
