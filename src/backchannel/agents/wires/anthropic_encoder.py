"""Messages on the wire of Anthropic's messages, with its cache marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from backchannel.agents.wires.content import (
    Item,
    Picture,
    call_arguments,
    encode_json,
    shown_content,
    signed_thinking,
    step_parts,
    wire_call_id,
)
from backchannel.core.messages import Block, Message, TextBlock, ThinkingBlock, ToolCallBlock

Body = dict[str, Any]

_REDACTED = frozenset({"redacted_thinking", "redacted_content"})
_MARKED = frozenset({"text", "tool_use", "tool_result", "image"})
"""Kinds of blocks that take a cache mark; thinking takes none."""
_encode = msgspec.json.Encoder().encode


def cache_mark(ttl: str) -> Body:
    """Make the mark up to which the provider keeps a request, for `5m` or `1h`."""
    return {"type": "ephemeral", "ttl": ttl} if ttl == "1h" else {"type": "ephemeral"}


@dataclass(frozen=True, slots=True)
class AnthropicEncoder:
    """Writes steps as messages of Anthropic's API.

    The last step is marked in two places. The end of the reply is where the last request of the same run ended, or
    near it. The very end is where the next request will look.
    """

    provider: str
    image_limit: int
    cache: str = "off"
    """`5m`, `1h` or `off`."""

    @property
    def name(self) -> str:
        return f"anthropic/{self.provider}/{self.image_limit}/{self.cache}"

    def encode(self, step: Sequence[Message], *, is_last: bool = False) -> bytes:
        """Write a step: see `MessageEncoder`."""
        reply, results, said = step_parts(step)
        if len(said) == 1 and reply is None and not is_last and isinstance(only := self._shown(said[0]), str):
            return b'{"role":"user","content":[{"type":"text","text":%b}]}' % _encode(only)
        answered = [] if reply is None else self._reply(reply)
        asked = [self._result(result) for result in results]
        for message in said:
            content = self._shown(message)
            asked += [_block(item) for item in ([content] if isinstance(content, str) else content)]
        if is_last and self.cache != "off":
            _mark_last(answered, self.cache)
            _mark_last(asked, self.cache)
        turns = (("assistant", answered), ("user", asked))
        return b",".join(encode_json({"role": role, "content": blocks}) for role, blocks in turns if blocks)

    def _shown(self, message: Message) -> str | list[Item]:
        return shown_content(message, self.image_limit)

    def _reply(self, message: Message) -> list[Body]:
        return [shown for block in message.content if (shown := self._reply_block(block, message)) is not None]

    def _reply_block(self, block: Block, message: Message) -> Body | None:
        match block:
            case TextBlock(text=text) if text.strip():
                return {"type": "text", "text": text}
            case ToolCallBlock():
                call_id = wire_call_id(block.id)
                return {"type": "tool_use", "id": call_id, "name": block.name, "input": call_arguments(block)}
            case ThinkingBlock():
                return self._thinking(block, message)
        return None

    def _thinking(self, block: ThinkingBlock, message: Message) -> Body | None:
        signed = signed_thinking(block, message, self.provider)
        if signed is None or not signed[1]:
            return None
        if signed[0] in _REDACTED:
            return {"type": "redacted_thinking", "data": signed[1]}
        return {"type": "thinking", "thinking": block.thinking, "signature": signed[1]}

    def _result(self, result: Message) -> Body:
        content = self._shown(result)
        return {
            "type": "tool_result",
            "tool_use_id": wire_call_id(result.tool_call_id or ""),
            "content": [_block(item) for item in ([content] if isinstance(content, str) else content)],
            "is_error": bool(result.is_error),
        }


def _block(item: Item) -> Body:
    if not isinstance(item, Picture):
        return {"type": "text", "text": item}
    if item.url:
        return {"type": "image", "source": {"type": "url", "url": item.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": item.media_type, "data": item.data}}


def _mark_last(blocks: list[Body], ttl: str) -> None:
    for block in reversed(blocks):
        if block["type"] in _MARKED:
            block["cache_control"] = cache_mark(ttl)
            return


def without_marks(step: bytes) -> bytes:
    """Give an encoded step without its cache marks, for an endpoint that does not know them."""
    turns = msgspec.json.decode(b"[%b]" % step)
    for turn in turns:
        for block in turn["content"]:
            block.pop("cache_control", None)
    return b",".join(map(encode_json, turns))
