"""Replies on the wire of OpenAI's responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from backchannel.agents.wires.chat_decoder import read_usage
from backchannel.agents.wires.draft import ReplyDraft, decode_event, words
from backchannel.agents.wires.events import BadAnswer
from backchannel.agents.wires.failures import ProviderError
from backchannel.core.contracts import ModelEvent

_STOP_REASONS = {
    "max_output_tokens": "length",
    "content_filter": "contentFilter",
    "cancelled": "error",
    "failed": "error",
}
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class _Response(msgspec.Struct):
    status: Any = None
    model: Any = None
    usage: dict[str, Any] | None = None
    error: Any = None
    incomplete_details: dict[str, Any] | None = None
    output: list[dict[str, Any]] | None = None


class _Event(msgspec.Struct):
    type: Any = None
    item_id: Any = None
    item: dict[str, Any] | None = None
    delta: Any = None
    content_index: Any = 0
    summary_index: Any = 0
    part: dict[str, Any] | None = None
    arguments: Any = None
    refusal: Any = None
    response: _Response | None = None
    code: Any = None
    message: Any = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)
_RESPONSE = msgspec.json.Decoder(_Response)


class ResponsesDecoder:
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
        if data == b"[DONE]":
            self.is_done = True
            return
        event = decode_event(data, _EVENT)
        match words(event.type):
            case "response.output_text.delta":
                if shown := self.draft.text((event.item_id, event.content_index), words(event.delta)):
                    yield shown
            case "response.reasoning_summary_part.added" | "response.reasoning_summary_text.delta":
                yield from self._think(event)
            case "response.output_item.added" | "response.output_item.done" if event.item is not None:
                yield from self._item(event.item, is_done=event.type.endswith("done"))
            case "response.function_call_arguments.delta" if self.draft.has(("call", event.item_id)):
                self.draft.call(("call", event.item_id), arguments=words(event.delta))
            case "response.function_call_arguments.done" if self.draft.has(("call", event.item_id)):
                self._complete(event.item_id, words(event.arguments))
            case "response.refusal.delta":
                self.draft.refuse(words(event.delta))
            case "response.refusal.done":
                self.draft.refusal = words(event.refusal) or self.draft.refusal
            case "error":
                raise ProviderError(_error_of(event))
            case kind if event.response is not None:
                self._response(event.response, is_end=kind in _ENDS)
            case "":
                if event.error:
                    raise ProviderError(event.error)
                raise BadAnswer("an event has no type")

    def take_whole(self, data: bytes) -> Iterator[ModelEvent]:
        """Read an answer that is no stream."""
        response = decode_event(data, _RESPONSE)
        for item in response.output or ():
            yield from self._item(item, is_done=True)
            if words(item.get("type")) == "message":
                yield from self._said(item)
        self._response(response, is_end=response.status is not None)

    def _said(self, item: dict[str, Any]) -> Iterator[ModelEvent]:
        for at, part in enumerate(_dicts(item.get("content"))):
            self.draft.refuse(words(part.get("refusal")))
            if shown := self.draft.text((item.get("id"), at), words(part.get("text"))):
                yield shown

    def _think(self, event: _Event) -> Iterator[ModelEvent]:
        more = words(event.delta) if event.part is None else words(event.part.get("text"))
        item_id = words(event.item_id)
        if shown := self.draft.think(("thinking", item_id, event.summary_index), more, id=item_id):
            yield shown

    def _item(self, item: dict[str, Any], *, is_done: bool) -> Iterator[ModelEvent]:
        item_id = words(item.get("id"))
        match words(item.get("type")):
            case "function_call":
                key = ("call", item_id)
                if not self.draft.has(key):
                    arguments = words(item.get("arguments"))
                    self.draft.call(key, name=words(item.get("name")), id=item_id, arguments=arguments)
                elif is_done:
                    self._complete(item_id, words(item.get("arguments")))
            case "reasoning" if is_done:
                yield from self._reasoned(item, item_id)

    def _reasoned(self, item: dict[str, Any], item_id: str) -> Iterator[ModelEvent]:
        for at, part in enumerate(_dicts(item.get("summary"))):
            key = ("thinking", item_id, at)
            more = "" if self.draft.has(key) else words(part.get("text"))
            if shown := self.draft.think(key, more, id=item_id):
                yield shown
        # The signature goes with the first summary, or stands alone.
        signature = words(item.get("encrypted_content"))
        self.draft.think(("thinking", item_id, 0), "", id=item_id, signature=signature)

    def _complete(self, item_id: Any, arguments: str) -> None:
        """Add what only the whole arguments have; what differs from the pieces is not believed."""
        key = ("call", item_id)
        length = self.draft.length(key)
        if len(arguments) > length and arguments.startswith(self.draft.arguments(key)):
            self.draft.call(key, arguments=arguments[length:])

    def _response(self, response: _Response, *, is_end: bool) -> None:
        if response.usage is not None:
            self.draft.usage = read_usage(response.usage)
        if not is_end:
            return
        self.draft.model = words(response.model) or self.draft.model
        self.is_done = True
        if response.error:
            raise ProviderError(response.error)
        reason = words((response.incomplete_details or {}).get("reason"))
        if status := reason or words(response.status).replace("incomplete", ""):
            self.draft.stop_reason = _STOP_REASONS.get(status, "stop")


def _error_of(event: _Event) -> Any:
    return event.error or {"code": event.code, "message": event.message}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
