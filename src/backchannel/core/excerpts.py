"""Excerpts: messages cut to a length that a reader of a tool result can use.

Each string over the limit is cut. A marker says how much is left out, and how to read on. An offset counts in the
message's *reading text*: its blocks one after the other, a tool call as its name and its arguments in JSON.

Redaction comes first, always. A secret that is cut in half would not be recognised, and callers only ever see offsets
of the redacted text. A long string is redacted only as far as it is shown, so a list of long messages costs little.
Its full redacted length is then unknown. So after the first cut, all markers of the message say to read on from there.
"""

from __future__ import annotations

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
from backchannel.core.secrets.redaction import (
    MAX_DEPTH,
    redact,
    redact_block,
    redact_message,
    redact_opening,
    redact_value,
)
from backchannel.core.text import shown_name

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
    if not any(_is_long(block, limit) for block in message.content):
        redacted, is_redacted = redact_message(message)
        return _cut_names(redacted), is_redacted
    cuts = _Cuts(message.id, limit)
    blocks = [cuts.present(block) for block in message.content]
    named, is_redacted = redact_message(replace(message, content=()))
    shown = replace(named, content=tuple(block for block, _ in blocks))
    return _cut_names(shown), is_redacted or any(hidden for _, hidden in blocks)


def present_line(line: str) -> tuple[msgspec.Raw, bool]:
    """Make a line of a transcript fit as `present` does, and write it again."""
    return _present_short(line) if len(line) <= _SHORT_LINE else _present_line(line)


def _present_line(line: str) -> tuple[msgspec.Raw, bool]:
    message, is_redacted = present(decode_message(line))
    return msgspec.Raw(encode_message(message)), is_redacted


# A list that is asked for again and again shows the same messages, and to read and redact them is most of its work.
_present_short = lru_cache(maxsize=4096)(_present_line)


def _cut_names(message: Message) -> Message:
    """Cut the names beside the content: a model may have called a tool that never was by any name."""
    label, tool = message.label or "", message.tool_name or ""
    if message.sender is not None and message.sender.name is not None:
        message = replace(message, sender=replace(message.sender, name=shown_name(message.sender.name)))
    if message.chat is not None and message.chat.name is not None:
        message = replace(message, chat=replace(message.chat, name=shown_name(message.chat.name)))
    if len(label) <= LABEL_LIMIT and len(tool) <= LABEL_LIMIT:
        return message
    return replace(message, label=label[:LABEL_LIMIT] or None, tool_name=tool[:LABEL_LIMIT] or None)


def condense(message: Message) -> Message:
    """Reduce a message to one short text: with many cut strings it can still be too long for an answer.

    Pass a redacted message.
    """
    text = reading_text(message)
    content = (TextBlock(text=_cut(text, message.id, 0, TEXT_LIMIT)),)
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


def _has_long(value: Any, limit: int, depth: int = 0) -> bool:
    match value:
        case str():
            return len(value) > limit
        case list() | tuple() | dict() if depth >= MAX_DEPTH:
            return True  # cutting it leaves the rest out
        case list() | tuple():
            return any(_has_long(item, limit, depth + 1) for item in value)
        case dict():
            return any(len(name) > limit or _has_long(item, limit, depth + 1) for name, item in value.items())
    return False


class _Cuts:
    """Redacts and cuts the blocks of one message, in order."""

    def __init__(self, message_id: str, limit: int) -> None:
        self._message_id = message_id
        self._limit = limit
        self._place = 0
        """Where in the reading text a block begins; once something was cut, where the rest of that begins."""
        self._is_cut = False

    def present(self, block: Block) -> tuple[Block, bool]:
        match block:
            case TextBlock() | ThinkingBlock():
                shown, hidden = redact_block(block, self._cut_text)
            case ToolCallBlock():
                arguments, hidden = redact_value(block.arguments, self._cut_part)
                shown = replace(block, name=self._cut_part(block.name)[0], arguments=arguments)
            case ImageBlock():
                # A cut address leads nowhere.
                url = block.url if len(block.url or "") <= self._limit else None
                image = ImageBlock(mime_type=self._cut_part(block.mime_type)[0], url=url)
                shown, hidden = redact_block(image)
        if not self._is_cut:
            self._place += len(_text_of(shown)) + 1
        return shown, hidden

    def _cut_text(self, text: str) -> tuple[str, bool]:
        """Cut a block that is nothing but its text."""
        return self._cut(text, moves=not self._is_cut)

    def _cut_part(self, text: str) -> tuple[str, bool]:
        """Cut a part of a block: where it was cut depends on how JSON writes it, so the marker names the whole call."""
        return self._cut(text, moves=False)

    def _cut(self, text: str, *, moves: bool) -> tuple[str, bool]:
        if len(text) <= self._limit:
            return redact(text)
        shown, hidden = redact_opening(text, self._limit)
        self._is_cut = True
        if moves:
            self._place += len(shown)
        return shown + _marker(len(text) - self._limit, self._message_id, self._place), hidden


def _cut(text: str, message_id: str, start: int, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[:limit] + _marker(len(text) - limit, message_id, start + limit)


def _marker(count: int, message_id: str, offset: int) -> str:
    return (
        f"… [{count:,} more characters are left out: sessions_history with messageId {message_id!r} "
        f"and offset {offset} reads them]"
    )
