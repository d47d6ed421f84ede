"""Messages on the wire of OpenAI's responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from backchannel.agents.wires.chat_encoder import data_text
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
from backchannel.core.messages import Message, TextBlock, ThinkingBlock, ToolCallBlock

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ResponsesEncoder:
    """Writes steps as items of the Responses API."""

    provider: str
    image_limit: int
    takes_reasoning: bool
    """Whether the model takes encrypted reasoning back."""

    @property
    def name(self) -> str:
        return f"responses/{self.provider}/{self.image_limit}/{'reasoning' if self.takes_reasoning else ''}"

    def encode(self, step: Sequence[Message], *, is_last: bool = False) -> bytes:
        """Write a step: see `MessageEncoder`."""
        reply, results, said = step_parts(step)
        written = [] if reply is None else [_encode(item) for item in self._reply(reply)]
        for result in results:
            output = _output(result, shown_content(result, self.image_limit))
            call_id = wire_call_id(result.tool_call_id or "")
            written.append(_encode({"type": "function_call_output", "call_id": call_id, "output": output}))
        for message in said:
            content = shown_content(message, self.image_limit)
            shown = content if isinstance(content, str) else list(map(_part, content))
            written.append(b'{"role":"user","content":%b}' % _encode(shown))
        return b",".join(written)

    def _reply(self, message: Message) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        reasoning: dict[str, Any] = {}
        for block in message.content:
            match block:
                case TextBlock(text=text) if text.strip():
                    items.append({"role": "assistant", "content": text})
                case ToolCallBlock():
                    items.append(_call(block))
                case ThinkingBlock() if self.takes_reasoning:
                    # Several summaries of one item come as several blocks.
                    if (item := self._reasoning(block, message)) is None:
                        continue
                    if item["id"] == reasoning.get("id"):
                        reasoning["summary"] += item["summary"]
                    else:
                        reasoning = item
                        items.append(item)
        return items

    def _reasoning(self, block: ThinkingBlock, message: Message) -> dict[str, Any] | None:
        signed = signed_thinking(block, message, self.provider)
        if signed is None or not signed[0]:
            return None
        summary = [{"type": "summary_text", "text": block.thinking}] if block.thinking else []
        return {"type": "reasoning", "id": signed[0], "summary": summary, "encrypted_content": signed[1]}


def _call(block: ToolCallBlock) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": wire_call_id(block.id),
        "name": block.name,
        "arguments": encode_json(call_arguments(block)).decode(),
    }


def _output(result: Message, content: str | list[Item]) -> str | list[dict[str, Any]]:
    if isinstance(content, str) or all(isinstance(item, str) for item in content):
        return data_text(result, content)
    if not result.is_error:
        return list(map(_part, content))
    pictures: list[Item] = [item for item in content if isinstance(item, Picture)]
    return [_part(item) for item in (data_text(result, content), *pictures)]


def _part(item: Item) -> dict[str, Any]:
    if isinstance(item, Picture):
        return {"type": "input_image", "image_url": item.address, "detail": "auto"}
    return {"type": "input_text", "text": item}
