"""Covered messages as text: what a summarising model reads of a transcript.

Tool results and long texts are cut, pictures are named, marks and credentials are removed. The text comes in chunks
that fit the summarising model. Only the newest chunks are kept.
"""

from __future__ import annotations

import re
from collections import deque

import msgspec

from backchannel.core.budget import text_tokens
from backchannel.core.headers import quote_name, strip_mark
from backchannel.core.messages import (
    Block,
    ImageBlock,
    Message,
    ProvenanceKind,
    Role,
    TextBlock,
    ToolCallBlock,
)
from backchannel.core.secrets.redaction import redact

MOST_CHUNKS = 8
"""How many chunks are summarised; older ones are left out."""
MOST_FILES_TOLD = 40

_LONGEST_TEXT = 6_000
_LONGEST_ARGUMENTS = 400
_LONGEST_RESULT = 800
_ID_LIMIT = 128
_LONGEST_PATH = 300
_NOTICE = 40  # characters of the line about a cut
_GIVEN = re.compile(r"^\[[^\[\]\n]{1,400}, at ([^\[\]\n,]{1,300})[^\[\]\n]{0,200}\]$", re.MULTILINE)
"""The line of a file that a person gave: see `core/delivery/received.py`."""
_WRITERS = frozenset({"write", "edit"})


class Chunk(msgspec.Struct):
    """A part of the covered messages."""

    lines: list[str] = []
    tokens: int = 0


class CoveredPart:
    """The messages that a summary covers. They are added in the order of the transcript."""

    def __init__(self, mark: str, chunk_tokens: int) -> None:
        self.messages = 0
        """How many messages the chunks tell of."""
        self.last_id: str | None = None
        """The id of the last message."""
        self.is_short = False
        """Whether the oldest messages did not fit."""
        self.tokens = 0
        self.files: dict[str, str] = {}
        """The files that people gave or the agent wrote, by path, those of last use last."""
        self._mark = mark
        self._chunk_tokens = chunk_tokens
        self._chunks: deque[tuple[Chunk, int]] = deque()

    @property
    def chunks(self) -> list[str]:
        return ["\n\n".join(chunk.lines) for chunk, _ in self._chunks]

    def add(self, message: Message) -> None:
        """Add the next message."""
        self.last_id = message.id
        if message.compaction is not None:
            return
        self._note_files(message)
        text = _cut_to_tokens(tell(message, self._mark), self._chunk_tokens - 2)
        tokens = text_tokens(text) + 2
        if not self._chunks or self._chunks[-1][0].tokens + tokens > self._chunk_tokens:
            self._chunks.append((Chunk([], 0), 0))
        chunk, count = self._chunks[-1]
        chunk.lines.append(text)
        chunk.tokens += tokens
        self._chunks[-1] = chunk, count + 1
        self.messages += 1
        self.tokens += tokens
        if len(self._chunks) > MOST_CHUNKS:
            left_out, count = self._chunks.popleft()
            self.messages, self.tokens, self.is_short = self.messages - count, self.tokens - left_out.tokens, True

    def _note_files(self, message: Message) -> None:
        if message.role is Role.USER:
            for block in message.content:
                if isinstance(block, TextBlock):
                    self._note("given by a person", *_GIVEN.findall(block.text))
        for call in message.tool_calls:
            if call.name in _WRITERS and isinstance(call.arguments, dict):
                self._note("written here", str(call.arguments.get("path") or ""))

    def _note(self, how: str, *paths: str) -> None:
        for path in paths:
            name = strip_mark(" ".join(path.split()), self._mark)[:_LONGEST_PATH]
            if name:
                self.files.pop(name, None)
                self.files[name] = how
        while len(self.files) > MOST_FILES_TOLD:
            del self.files[next(iter(self.files))]


def tell(message: Message, mark: str) -> str:
    """Write a message as text: who spoke, when, and what."""
    said = "\n".join(line for line in map(_block, message.content) if line)
    if message.role is Role.TOOL_RESULT:
        said = f"Result of {message.tool_name or 'a tool'}: {_cut(said, _LONGEST_RESULT)}"
    else:
        said = f"{_speaker(message)}, {show_time(message.timestamp)}:\n{_cut(said, _LONGEST_TEXT) or '(nothing)'}"
    return redact(strip_mark(said, mark))[0]


def _block(block: Block) -> str:
    match block:
        case TextBlock():
            return block.text
        case ToolCallBlock():
            return f"(calls {block.name} {_cut(msgspec.json.encode(block.arguments).decode(), _LONGEST_ARGUMENTS)})"
        case ImageBlock():
            return f"(a picture{f' {block.file}' if block.file else ''})"
    return ""  # thinking is not told


def _speaker(message: Message) -> str:
    if message.role is Role.ASSISTANT:
        return "Assistant"
    source = message.provenance
    if source is not None and source.kind is ProvenanceKind.INTER_SESSION:
        return f"Session {quote_name(source.source_session_key or 'unknown', limit=512)}"
    if source is not None and source.kind is ProvenanceKind.INTERNAL_SYSTEM:
        return "The gateway"
    return person_of(message)


def person_of(message: Message) -> str:
    """Name the person who wrote a message."""
    sender = message.sender
    if sender is not None:
        name = f"{quote_name(sender.name)} " if sender.name else ""
        return f"Person {name}(id {quote_name(sender.id, limit=_ID_LIMIT)})"
    return f"User {quote_name(message.label)}" if message.label else "User"


def is_of_person(message: Message) -> bool:
    """Tell whether a person wrote a message, to be answered."""
    source = message.provenance
    return message.role is Role.USER and (source is None or source.kind is ProvenanceKind.EXTERNAL_USER)


def show_time(at_ms: int) -> str:
    """Show a time in UTC, to the minute."""
    days, minutes = divmod(at_ms // 60_000, 1440)
    # The year begins in March here, so that the day of a leap year is its last one. An era has 400 years.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    shown = month + 3 if month < 10 else month - 9
    return f"{era * 400 + year + (shown <= 2):04}-{shown:02}-{day + 1:02} {minutes // 60:02}:{minutes % 60:02} UTC"


def _cut(text: str, limit: int) -> str:
    """Cut the middle out of a long text."""
    if len(text) <= limit:
        return text
    return f"{text[: limit * 2 // 3]} […{len(text) - limit} characters left out…] {text[-limit // 3 :]}"


def _cut_to_tokens(text: str, most: int) -> str:
    """Cut the middle out of a text that alone is longer than a chunk: a small window takes no longer question."""
    shown, limit = text, len(text)
    while (tokens := text_tokens(shown)) > most and limit > 1:
        limit = max(1, limit * most // tokens - _NOTICE)
        shown = _cut(text, limit)
    return shown
