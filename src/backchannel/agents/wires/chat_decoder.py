"""Replies on the wire of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from backchannel.agents.wires.draft import ReplyDraft, count, decode_event, words
from backchannel.agents.wires.failures import ProviderError
from backchannel.core.contracts import ModelEvent
from backchannel.core.messages import Usage

_STOP_REASONS = {"length": "length", "tool_calls": "toolUse", "function_call": "toolUse"} | {
    "content_filter": "contentFilter",
    "error": "error",
}
_THINKING_FIELDS = ("reasoning", "reasoning_content")


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    """In place of the delta, in an answer that is no stream."""
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    model: Any = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class ChatDecoder:
    """Reads the chunks of one reply."""

    def __init__(
        self,
        draft: ReplyDraft,
        *,
        thinking_field: str | None = None,
        thinking_tags: tuple[str, str] = ("<think>", "</think>"),
        drops_leading_space: bool = False,
    ) -> None:
        """Make a reader.

        Some models think in a field of their own, and some between tags in the text, each of which is a chunk alone.
        Some send blank text before anything else.
        """
        self.draft = draft
        self.is_done = False
        self._fields = (thinking_field, *_THINKING_FIELDS) if thinking_field else _THINKING_FIELDS
        self._tags = thinking_tags
        self._drops_leading_space = drops_leading_space
        self._number = 0
        """Counts the blocks. A text that goes on after thinking or a call is a new one."""
        self._open = ""
        """The kind of the newest block: `text`, `tagged` (thinking between tags), `thinking` or `call`."""
        self._held_space = ""

    def take(self, data: bytes) -> Iterator[ModelEvent]:
        """Read an event.

        Raises:
            BadAnswer: it is none of this API.
            ProviderError: it is an error.
        """
        if data == b"[DONE]":
            self.is_done = True
            return
        chunk = decode_event(data, _CHUNK)
        if chunk.error:
            raise ProviderError(chunk.error)
        if chunk.usage is not None:
            self.draft.usage = read_usage(chunk.usage)
        self.draft.model = words(chunk.model) or self.draft.model
        if chunk.choices:
            yield from self._choice(chunk.choices[0])

    def take_whole(self, data: bytes) -> Iterator[ModelEvent]:
        """Read an answer that is no stream."""
        yield from self.take(data)
        self.is_done = True

    def _choice(self, choice: _Choice) -> Iterator[ModelEvent]:
        if reason := words(choice.finish_reason):
            self.draft.stop_reason = _STOP_REASONS.get(reason, "stop")
        said = choice.delta if choice.delta is not None else choice.message
        if said is None:
            return
        if refusal := words(said.get("refusal")):
            self.draft.refuse(refusal)
            return
        if thought := next((text for name in self._fields if (text := words(said.get(name)))), ""):
            self._begin("thinking")
            if event := self.draft.think(self._number, thought):
                yield event
        if (text := _joined(said.get("content"))) and (shown := self._text(text)) is not None:
            yield shown
        for at, call in enumerate(said.get("tool_calls") or ()):
            self._call(at, call)

    def _text(self, text: str) -> ModelEvent | None:
        opening, closing = self._tags
        if self._open == "tagged":
            if text == closing:
                self._open = ""
                return None
            return self.draft.think(self._number, text)
        if text == opening:
            self._open = ""
            self._begin("tagged")
            return None
        if self._open != "text" and self._drops_leading_space and text.isspace():
            self._held_space += text if self._open == "thinking" and self._number > 1 else ""
            return None
        self._begin("text")
        text, self._held_space = self._held_space + text, ""
        return self.draft.text(self._number, text)

    def _begin(self, kind: str) -> None:
        if self._open != kind:
            self._number += 1
            self._open = kind

    def _call(self, at: int, call: Any) -> None:
        if not isinstance(call, dict):
            return
        index = call.get("index")
        key: Any = ("call", index if isinstance(index, int) else at)
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        name, call_id = words(function.get("name")), words(call.get("id"))
        while name and call_id and self.draft.call_id(key) not in ("", call_id):
            key = (*key, "next")  # some endpoints give every call of a reply the same index
        self._open = "call"
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else "" if arguments is None else _plain(arguments)
        self.draft.call(key, name=name, id=call_id, arguments=text)


def _plain(arguments: Any) -> str:
    return msgspec.json.encode(arguments).decode()


def _joined(content: Any) -> str:
    """Join the text of a message; some endpoints send it as a list of parts."""
    if isinstance(content, list):
        return "".join(words(part.get("text")) for part in content if isinstance(part, dict))
    return words(content)


def read_usage(usage: dict[str, Any]) -> Usage:
    """Read what was used, on either of OpenAI's wires; cached tokens are part of their input."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    details = details if isinstance(details, dict) else {}
    sent = count(usage.get("prompt_tokens")) or count(usage.get("input_tokens"))
    read = min(sent, count(details.get("cached_tokens")) or count(usage.get("prompt_cache_hit_tokens")))
    written = min(sent - read, count(details.get("cache_write_tokens")))
    output = count(usage.get("completion_tokens")) or count(usage.get("output_tokens"))
    return Usage(input=sent - read - written, output=output, cache_read=read, cache_write=written)
