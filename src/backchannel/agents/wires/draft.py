"""The reply of a model while it streams, whichever wire it comes over."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from backchannel.agents.translation import LONGEST_ARGUMENTS, read_arguments
from backchannel.agents.wires.events import BadAnswer
from backchannel.core.contracts import ModelFailed, ModelReply, TextDelta, ThinkingDelta, check_calls
from backchannel.core.messages import Block, TextBlock, ThinkingBlock, ToolCallBlock, Usage

MOST_KEPT = 16 * 1024 * 1024
"""Characters of one reply."""
_PIECE_COST = 8
"""What a piece costs beyond its characters: a stream may consist of empty ones."""
T = TypeVar("T")


@dataclass(slots=True)
class _Part:
    """A block that grows: `kind` is `text`, `thinking` or `call`."""

    kind: str
    pieces: list[str] = field(default_factory=list)
    name: str = ""
    id: str = ""
    signature: str = ""
    length: int = 0

    def block(self) -> Block | None:
        text = "".join(self.pieces)
        match self.kind:
            case "text":
                return TextBlock(text=text) if text else None
            case "thinking":
                signed = f"{self.id}:{self.signature}" if self.id and self.signature else self.signature or None
                return ThinkingBlock(thinking=text, signature=signed) if text or signed else None
        return ToolCallBlock(id="", name=self.name, arguments=read_arguments(text)) if self.name else None


class ReplyDraft:
    """The blocks, usage and end of a reply, as far as they have come."""

    def __init__(self, provider: str, model: str) -> None:
        self.provider = provider
        self._ref = f"{provider}/{model}"
        self.model = model
        """The model that answers, by the provider's name for it."""
        self.usage = Usage()
        self.stop_reason: str | None = None
        """Our word for why the reply ended; None before its end."""
        self.refusal = ""
        self._parts: dict[Hashable, _Part] = {}
        self._calls = 0
        self._kept = 0

    def has(self, key: Hashable) -> bool:
        return key in self._parts

    def text(self, key: Hashable, more: str) -> TextDelta | None:
        """Add to a text; each key is a block of its own."""
        if not more:
            return None
        self._grow(self._part(key, "text"), more)
        return TextDelta(more)

    def think(self, key: Hashable, more: str, *, id: str = "", signature: str = "") -> ThinkingDelta | None:
        """Add to what the model thinks, or sign it."""
        part = self._part(key, "thinking")
        part.id = id or part.id
        part.signature = signature or part.signature
        self._keep(len(signature))
        if not more:
            return None
        self._grow(part, more)
        return ThinkingDelta(more)

    def call(self, key: Hashable, *, name: str = "", id: str = "", arguments: str = "") -> None:
        """Add to a tool call."""
        if key not in self._parts:
            self._calls += 1
            check_calls(self._ref, self._calls)
        part = self._part(key, "call")
        part.name = part.name or name
        part.id = part.id or id
        if arguments and part.length <= LONGEST_ARGUMENTS:  # one piece more, so that its reader sees the excess
            self._grow(part, arguments)

    def call_id(self, key: Hashable) -> str:
        return self._parts[key].id if key in self._parts else ""

    def length(self, key: Hashable) -> int:
        return self._parts[key].length if key in self._parts else 0

    def arguments(self, key: Hashable) -> str:
        return "".join(self._parts[key].pieces) if key in self._parts else ""

    def refuse(self, more: str) -> None:
        """Add to the words with which the model refuses to answer."""
        self.refusal += more
        self._keep(len(more))

    def reply(self) -> ModelReply:
        """Give the whole reply.

        Raises:
            ModelFailed: the stream ended before the provider said that it is complete.
        """
        if self.stop_reason is None and not self.refusal:
            raise ModelFailed(f"{self.provider} broke off in the middle of its reply", retryable=True)
        if self.stop_reason == "error":
            raise ModelFailed(f"{self.provider} ended its reply with an error", retryable=True)
        content = tuple([block for part in self._parts.values() if (block := part.block()) is not None])
        if not content and self.refusal:
            content = (TextBlock(text=self.refusal),)
        stop_reason = "contentFilter" if self.refusal else self.stop_reason or "stop"
        if stop_reason == "stop" and any(isinstance(block, ToolCallBlock) for block in content):
            stop_reason = "toolUse"  # some endpoints say `stop` whatever was asked for
        model = f"{self.provider}/{self.model}"
        return ModelReply(content=content, usage=self.usage, model=model, stop_reason=stop_reason)

    def _part(self, key: Hashable, kind: str) -> _Part:
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = _Part(kind)
            self._keep(64)
        if part.kind != kind:
            raise BadAnswer("a part of the answer changed its kind")
        return part

    def _grow(self, part: _Part, more: str) -> None:
        part.pieces.append(more)
        part.length += len(more)
        self._keep(len(more) + _PIECE_COST)

    def _keep(self, more: int) -> None:
        self._kept += more
        if self._kept > MOST_KEPT:
            raise BadAnswer("the reply is longer than any that is meant")


def decode_event(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode an event; half of a surrogate pair is kept, because the other half may come with the next one.

    Raises:
        BadAnswer: it is not what the API promises.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise BadAnswer("an event is nested too deeply") from None
    try:
        return msgspec.convert(json.loads(data.decode("utf-8", "replace")), decoder.type)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(str(error)[:200]) from None


def count(value: Any) -> int:
    """Read a number of tokens; 0 if it is no number."""
    return value if type(value) is int and value > 0 else 0


def words(value: Any) -> str:
    """Read a text; empty if it is no text."""
    return value if isinstance(value, str) else ""
