"""Cutting: no message that a tool returns is longer than a reader can use.

Each string over the limit is cut, with a marker that says how much is left out and how to read on. An offset counts
in the message's *reading text*: its blocks one after the other, a tool call as its name and its arguments in JSON.
Redaction comes first, always: a secret that was cut in half would no longer be recognised, and offsets of the
redacted text are the only ones that a caller ever sees.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from backchannel.core.messages import (
    Block,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    decode_message,
    encode_message,
)
from backchannel.core.redaction import redact_message

TEXT_LIMIT = 4000
LABEL_LIMIT = 256
_SHORT_LINE = 2048
"""Longer lines are not kept, so that what is kept stays small."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message's reading text."""

    text: str
    offset: int
    next_offset: int | None
    """Where to read on; None at the end."""
    total: int


def present(message: Message, *, limit: int = TEXT_LIMIT) -> tuple[Message, bool]:
    """Make a message fit to be returned by a tool, and tell whether anything was redacted."""
    redacted, is_redacted = redact_message(message)
    return cut_message(redacted, limit=limit), is_redacted


def present_line(line: str) -> tuple[msgspec.Raw, bool]:
    """Make a line of a transcript fit as `present` does, and write it again."""
    return _present_short(line) if len(line) <= _SHORT_LINE else _present_line(line)


def _present_line(line: str) -> tuple[msgspec.Raw, bool]:
    message, is_redacted = present(decode_message(line))
    return msgspec.Raw(encode_message(message)), is_redacted


# A list that is asked for again and again shows the same messages, and to read and redact them is most of its work.
_present_short = lru_cache(maxsize=4096)(_present_line)


def cut_message(message: Message, *, limit: int = TEXT_LIMIT) -> Message:
    """Cut every string over the limit, tool arguments included; pass a redacted message."""
    content = message.content
    if any(_is_long(block, limit) for block in content):
        sizes = (len(_text_of(block)) + 1 for block in content)
        starts = itertools.accumulate(sizes, initial=0)
        cut = (_cut_block(block, message.id, start, limit) for block, start in zip(content, starts, strict=False))
        message = replace(message, content=tuple(cut))
    return _cut_names(message)


def _cut_names(message: Message) -> Message:
    """Cut the names beside the content: a model may have called a tool that never was by any name."""
    label, tool = message.label or "", message.tool_name or ""
    if len(label) <= LABEL_LIMIT and len(tool) <= LABEL_LIMIT:
        return message
    return replace(message, label=label[:LABEL_LIMIT] or None, tool_name=tool[:LABEL_LIMIT] or None)


def condense(message: Message, *, limit: int = TEXT_LIMIT) -> Message:
    """Reduce a message to one text, for an answer that even its cut strings would burst; pass a redacted message."""
    text = reading_text(message)
    content = (TextBlock(text=_cut(text, message.id, 0, limit)),)
    return _cut_names(replace(message, content=content, label=None))


def read_piece(message: Message, offset: int, *, limit: int = TEXT_LIMIT) -> Piece:
    """Read on in a long message, from where a marker said; pass a redacted message."""
    text = reading_text(message)
    end = offset + limit
    return Piece(text[offset:end], offset, end if end < len(text) else None, len(text))


def reading_text(message: Message) -> str:
    """Write all of a message as one text; it is what offsets count in."""
    return "\n".join(_text_of(block) for block in message.content)


def _text_of(block: Block) -> str:
    match block:
        case TextBlock():
            return block.text
        case ThinkingBlock():
            return block.thinking
        case ToolCallBlock():
            return f"{block.name} {msgspec.json.encode(block.arguments).decode()}"
    return f"[image {block.mime_type}]"


def _is_long(block: Block, limit: int) -> bool:
    match block:
        case TextBlock():
            return len(block.text) > limit
        case ThinkingBlock():
            return len(block.thinking) > limit
        case ToolCallBlock():
            return len(block.name) > limit or _has_long(block.arguments, limit)
        case ImageBlock():
            return len(block.mime_type) > limit or len(block.url or "") > limit


def _has_long(value: Any, limit: int) -> bool:
    match value:
        case str():
            return len(value) > limit
        case list() | tuple():
            return any(_has_long(item, limit) for item in value)
        case dict():
            return any(len(name) > limit or _has_long(item, limit) for name, item in value.items())
    return False


def _cut_block(block: Block, message_id: str, start: int, limit: int) -> Block:
    """Cut a block that begins at `start` of the reading text."""
    match block:
        case TextBlock():
            return TextBlock(text=_cut(block.text, message_id, start, limit))
        case ThinkingBlock():
            return replace(block, thinking=_cut(block.thinking, message_id, start, limit))
        case ToolCallBlock():
            name, arguments = (_cut_value(value, message_id, start, limit) for value in (block.name, block.arguments))
            return replace(block, name=name, arguments=arguments)
        case ImageBlock():
            # A cut address leads nowhere.
            url = block.url if len(block.url or "") <= limit else None
            return ImageBlock(mime_type=_cut(block.mime_type, message_id, start, limit), url=url)


def _cut_value(value: Any, message_id: str, start: int, limit: int) -> Any:
    match value:
        case str() if len(value) > limit:
            # Where in the reading text it was cut depends on how JSON writes it: the marker names the whole call.
            return value[:limit] + _marker(len(value) - limit, message_id, start)
        case list() | tuple():
            return [_cut_value(item, message_id, start, limit) for item in value]
        case dict():
            items = value.items()
            return {_cut_value(k, message_id, start, limit): _cut_value(v, message_id, start, limit) for k, v in items}
    return value


def _cut(text: str, message_id: str, start: int, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[:limit] + _marker(len(text) - limit, message_id, start + limit)


def _marker(count: int, message_id: str, offset: int) -> str:
    return (
        f"… [{count:,} more characters are left out: sessions_history with messageId {message_id!r} "
        f"and offset {offset} reads them]"
    )
