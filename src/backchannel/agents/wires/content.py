"""Content of messages as every wire shows it: texts, pictures and ids that providers take.

Providers are stricter than a transcript: no text is empty, and ids of tool calls are short and plain.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from backchannel.core.contracts import ModelFailed
from backchannel.core.delivery.received import decode_base64
from backchannel.core.messages import ImageBlock, Message, Role, TextBlock, ThinkingBlock, ToolCallBlock

EMPTY_MESSAGE = "(empty)"
UNREADABLE_IMAGE = "(an image that cannot be read)"
UNSEEN_IMAGE = "(an image, which this model cannot see)"
LARGE_IMAGE = "(an image, which is larger than this model takes)"
_INVALID_JSON = "INVALID_JSON"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that is shown: its base64, or where it is."""

    media_type: str
    data: str = ""
    url: str = ""
    mark: str = ""
    """Six digits by which a tool's result refers to it."""

    @property
    def address(self) -> str:
        return self.url or f"data:{self.media_type};base64,{self.data}"


Item = str | Picture


def wire_call_id(call_id: str) -> str:
    """Make the id of a tool call that every provider takes: nine letters and digits, always the same for one call."""
    digest = hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=8).digest()
    return base64.b32encode(digest)[:9].decode().lower()


def split_steps(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Split a conversation before each assistant message."""
    start = 0
    for at, message in enumerate(messages):
        if message.role is Role.ASSISTANT and at > start:
            yield messages[start:at]
            start = at
    if start < len(messages):
        yield messages[start:]


def has_images(messages: Sequence[Message]) -> bool:
    """Whether messages take long to write: images are megabytes."""
    return any(type(block) is ImageBlock for message in messages for block in message.content)


def shown_content(message: Message, image_limit: int) -> str | list[Item]:
    """Show what a person or a tool said: its text, or its text and images; never nothing.

    `image_limit` is how large an image may be, in characters of base64; 0 means that the model sees none.
    """
    content = message.content
    if len(content) == 1 and type(first := content[0]) is TextBlock and (only := first.text) and not only.isspace():
        return only
    text = "\n".join(block.text for block in content if isinstance(block, TextBlock) and block.text.strip())
    # One that the model cannot see would have every later request of the session refused, too.
    images = [_shown_image(block, image_limit) for block in content if isinstance(block, ImageBlock)]
    if not images:
        return text or EMPTY_MESSAGE
    return [text, *images] if text else images


def _shown_image(block: ImageBlock, limit: int) -> Item:
    if not limit:
        return UNSEEN_IMAGE
    if len(block.data or "") > limit:
        return LARGE_IMAGE
    try:
        if block.data:
            return Picture(block.mime_type, block.data, mark=_mark(decode_base64(block.data)))
        if block.url and block.url.startswith("data:"):
            return _from_data_url(block.url)
    except (binascii.Error, ValueError):
        return UNREADABLE_IMAGE
    if block.url:
        return Picture(block.mime_type, url=block.url, mark=_mark(block.url.encode("utf-8", "replace")))
    return UNREADABLE_IMAGE


def _from_data_url(url: str) -> Picture:
    media_type, marker, data = url.removeprefix("data:").partition(";base64,")
    if not marker:
        raise ValueError("not base64")
    content = base64.b64decode(unquote_to_bytes(data))
    return Picture(media_type, base64.b64encode(content).decode(), mark=_mark(content))


def _mark(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()[:6]


def step_parts(step: Sequence[Message]) -> tuple[Message | None, list[Message], list[Message]]:
    """Take a step apart: the reply, its results in the order of its calls, and what was said after.

    Raises:
        ModelFailed: a result answers no call of the reply.
    """
    reply = step[0] if step and step[0].role is Role.ASSISTANT else None
    rest = step[1:] if reply is not None else step
    results = [message for message in rest if message.role is Role.TOOL_RESULT]
    if not results:
        return reply, results, list(rest)
    places = {call.id: at for at, call in enumerate(reply.tool_calls if reply is not None else ())}
    for result in results:
        if result.tool_call_id not in places:
            raise ModelFailed(f"the tool result {result.id!r} answers no call of the request", retryable=False)
    results.sort(key=lambda result: places[result.tool_call_id or ""])
    return reply, results, [message for message in rest if message.role is not Role.TOOL_RESULT]


def signed_thinking(block: ThinkingBlock, message: Message, provider: str) -> tuple[str, str] | None:
    """Give the id and the signature of thinking that this provider signed; None for any other."""
    if not block.signature or (message.model or "").partition("/")[0] != provider:
        return None
    part_id, _, signature = block.signature.rpartition(":")
    return part_id, signature


def call_arguments(block: ToolCallBlock) -> dict[str, Any]:
    """Give the arguments of a call as the object that providers want; what is none is wrapped in one."""
    arguments = block.arguments
    if isinstance(arguments, dict):
        return arguments
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    if not raw:
        return {}
    try:
        read = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {_INVALID_JSON: raw}


def encode_json(value: Any) -> bytes:
    """Write JSON; numbers that `msgspec` does not take are written by Python's own encoder."""
    try:
        return msgspec.json.encode(value)
    except (OverflowError, ValueError):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
