"""Messages on the wire of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import msgspec

from backchannel.agents.wires.content import (
    Item,
    Picture,
    call_arguments,
    encode_json,
    shown_content,
    step_parts,
    wire_call_id,
)
from backchannel.core.messages import Message, TextBlock, ToolCallBlock

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ChatEncoder:
    """Writes steps as messages of chat completions."""

    provider: str
    image_limit: int
    thinking_field: str | None = None
    """A field that a model of this profile wants on each reply with tool calls, even if it is empty."""

    @property
    def name(self) -> str:
        return f"chat/{self.provider}/{self.image_limit}/{self.thinking_field or ''}"

    def encode(self, step: Sequence[Message], *, is_last: bool = False) -> bytes:
        """Write a step: see `MessageEncoder`."""
        reply, results, said = step_parts(step)
        written = [] if reply is None else self._reply(reply)
        pictures: list[dict[str, Any]] = []
        for result in results:
            text, shown = tool_text(result, shown_content(result, self.image_limit))
            call_id = wire_call_id(result.tool_call_id or "")
            written.append(_encode({"role": "tool", "tool_call_id": call_id, "content": text}))
            pictures += [_part(item) for item in shown]
        for message in said:
            written.append(_user(shown_content(message, self.image_limit)))
        if pictures:
            written.append(_encode({"role": "user", "content": pictures}))
        return b",".join(written)

    def _reply(self, message: Message) -> list[bytes]:
        texts = [block.text for block in message.content if isinstance(block, TextBlock) and block.text.strip()]
        calls = [_call(block) for block in message.content if isinstance(block, ToolCallBlock)]
        if not calls:
            return [b'{"role":"assistant","content":%b}' % _encode("\n\n".join(texts))] if texts else []
        shown: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(texts) if texts else None}
        if self.thinking_field:
            shown[self.thinking_field] = ""
        return [_encode({**shown, "tool_calls": calls})]


def _call(block: ToolCallBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": encode_json(call_arguments(block)).decode()}
    return {"id": wire_call_id(block.id), "type": "function", "function": function}


def _user(content: str | list[Item]) -> bytes:
    if isinstance(content, str):
        return b'{"role":"user","content":%b}' % _encode(content)
    return _encode({"role": "user", "content": list(map(_part, content))})


def _part(item: Item) -> dict[str, Any]:
    if isinstance(item, Picture):
        return {"type": "image_url", "image_url": {"url": item.address}}
    return {"type": "text", "text": item}


def data_text(result: Message, content: str | list[Item]) -> str:
    """Give the text of a tool's result without its pictures; an error is marked as one."""
    if isinstance(content, str):
        text = content
    else:
        texts = [item for item in content if isinstance(item, str)]
        is_one = len(texts) <= 1 and len(texts) < len(content)
        text = "".join(texts) if is_one else _encode(texts).decode()
    return _encode({"error": text}).decode() if result.is_error else text


def tool_text(result: Message, content: str | list[Item]) -> tuple[str, list[Item]]:
    """Give a tool's result for a wire whose results are text: the text, and what to show in a message after it.

    Each picture stands between tags that name the call, so that it is not taken for one of the person's own.
    """
    pictures = [] if isinstance(content, str) else [item for item in content if isinstance(item, Picture)]
    if not pictures:
        return data_text(result, content), []
    shown: list[Any] = [f"See file {item.mark}." if isinstance(item, Picture) else item for item in content]
    if result.is_error:
        references = [f"See file {picture.mark}." for picture in pictures]
        shown = [msgspec.Raw(data_text(result, content).encode()), *references]
    framed: list[Item] = []
    for picture in pictures:
        framed += [_open_tag(result, picture), picture, "</tool_result>"]
    return _encode(shown).decode(), framed


def _open_tag(result: Message, picture: Picture) -> str:
    call_id = wire_call_id(result.tool_call_id or "")
    name = escape(result.tool_name or "unknown")
    return f'<tool_result tool_name="{name}" tool_call_id="{call_id}" file_id="{picture.mark}">'
