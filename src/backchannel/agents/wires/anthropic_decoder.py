"""Replies on the wire of Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from backchannel.agents.wires.draft import ReplyDraft, count, decode_event, words
from backchannel.agents.wires.events import BadAnswer
from backchannel.agents.wires.failures import ProviderError
from backchannel.core.contracts import ModelEvent

_STOP_REASONS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "toolUse",
    "refusal": "contentFilter",
}
_COUNTS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_write",
}


class _Message(msgspec.Struct):
    model: Any = None
    usage: dict[str, Any] | None = None
    content: list[dict[str, Any]] | None = None
    stop_reason: Any = None
    stop_details: dict[str, Any] | None = None
    type: Any = None
    error: Any = None


class _Event(msgspec.Struct):
    type: Any = None
    index: Any = 0
    message: _Message | None = None
    content_block: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)
_MESSAGE = msgspec.json.Decoder(_Message)


class AnthropicDecoder:
    """Reads the events of one reply."""

    def __init__(self, draft: ReplyDraft) -> None:
        self.draft = draft
        self.is_done = False

    def take(self, data: bytes) -> Iterator[ModelEvent]:
        """Read an event.

        Raises:
            BadAnswer: it is none of this API.
            ProviderError: it is an error.
        """
        event = decode_event(data, _EVENT)
        match event.type:
            case "content_block_delta" if event.delta is not None:
                yield from self._delta(event.index, event.delta)
            case "content_block_start" if event.content_block is not None:
                yield from self._start(event.index, event.content_block)
            case "message_start" if event.message is not None:
                self.draft.model = words(event.message.model) or self.draft.model
                self._use(event.message.usage)
            case "message_delta":
                self._end(event.delta or {})
                self._use(event.usage)
            case "message_stop":
                self.is_done = True
            case "error":
                raise ProviderError(event.error)
            case kind if not words(kind):
                if event.error:
                    raise ProviderError(event.error)
                raise BadAnswer("an event has no type")

    def take_whole(self, data: bytes) -> Iterator[ModelEvent]:
        """Read an answer that is no stream."""
        message = decode_event(data, _MESSAGE)
        if message.error:
            raise ProviderError(message.error)
        for index, block in enumerate(message.content or ()):
            yield from self._start(index, block)
        self.draft.model = words(message.model) or self.draft.model
        self._use(message.usage)
        self._end({"stop_reason": message.stop_reason, "stop_details": message.stop_details})
        self.is_done = True

    def _start(self, index: Any, block: dict[str, Any]) -> Iterator[ModelEvent]:
        match words(block.get("type")):
            case "text":
                if said := self.draft.text(index, words(block.get("text"))):
                    yield said
            case "thinking":
                signature = words(block.get("signature"))
                if thought := self.draft.think(index, words(block.get("thinking")), signature=signature):
                    yield thought
            case "redacted_thinking":
                self.draft.think(index, "", id="redacted_thinking", signature=words(block.get("data")))
            case "tool_use":
                given = block.get("input")
                arguments = msgspec.json.encode(given).decode() if given else ""
                self.draft.call(index, name=words(block.get("name")), arguments=arguments)

    def _delta(self, index: Any, delta: dict[str, Any]) -> Iterator[ModelEvent]:
        match words(delta.get("type")):
            case "text_delta":
                if said := self.draft.text(index, words(delta.get("text"))):
                    yield said
            case "thinking_delta":
                if thought := self.draft.think(index, words(delta.get("thinking"))):
                    yield thought
            case "signature_delta":
                self.draft.think(index, "", signature=words(delta.get("signature")))
            case "input_json_delta" if self.draft.has(index):
                self.draft.call(index, arguments=words(delta.get("partial_json")))

    def _end(self, delta: dict[str, Any]) -> None:
        if reason := words(delta.get("stop_reason")):
            self.draft.stop_reason = _STOP_REASONS.get(reason, "stop")
        details = delta.get("stop_details")
        if isinstance(details, dict):
            self.draft.refusal = words(details.get("explanation"))

    def _use(self, usage: dict[str, Any] | None) -> None:
        """Take the newest counts: later events repeat some of them, and leave others out."""
        if usage is None:
            return
        told = {ours: count(usage[theirs]) for theirs, ours in _COUNTS.items() if usage.get(theirs) is not None}
        self.draft.usage = msgspec.structs.replace(self.draft.usage, **told)
