"""Headers: lines that tell a model who speaks, and that no text can forge.

Each session id has a random *mark*, named in its system prompt. A message from another session, or from the gateway,
has one line with the mark above it. Text of others is stripped of the mark before the model sees it. So only the
gateway can write a line with the mark. If a model repeats the mark, it is removed from the reply before anyone sees it.
"""

from __future__ import annotations

import base64
from typing import Any

from backchannel.core.keys import ChatType
from backchannel.core.messages import (
    Block,
    Chat,
    Message,
    Provenance,
    ProvenanceKind,
    Role,
    Sender,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from backchannel.core.text import SHOWN_LIMIT, clean_name

SESSION_MESSAGE = "session message"
SYSTEM_MESSAGE = "system message"
USER_MESSAGE = "user message"
NOTE = "note"

_MIN_MARK_BYTES = 8
_ID_LIMIT = 128
_KEY_LIMIT = 512  # a key that is cut could not be passed back as an address
_QUOTES = str.maketrans(dict.fromkeys('"“”„‟«»″‶〝〞〟＂', "'"))


def new_mark(random_bytes: bytes) -> str:
    """Make the mark of a session id; ten bytes give sixteen letters and digits.

    Raises:
        ValueError: so few bytes could be guessed.
    """
    if len(random_bytes) < _MIN_MARK_BYTES:
        raise ValueError(f"a mark of {len(random_bytes)} bytes can be guessed (use at least {_MIN_MARK_BYTES})")
    return base64.b32encode(random_bytes).decode().rstrip("=")


def strip_mark(text: str, mark: str) -> str:
    """Remove the mark from what others wrote, in any case, so that no removal makes a new one.

    A text without the mark comes back as the same object.
    """
    if not mark or mark.casefold() not in text.casefold():
        return text
    return _without(text, list(mark.casefold()))


def _without(text: str, mark: list[str]) -> str:
    # A character can complete a mark only at the end of what is kept so far, and taking that mark away leaves
    # a beginning that was free of marks before: one pass is enough, however deep they are nested.
    kept: list[str] = []
    folded: list[str] = []
    size, last = len(mark), mark[-1]
    for char in text:
        fold = char.casefold()
        kept.append(char)
        folded.append(fold)
        if fold == last and folded[-size:] == mark:
            del kept[-size:], folded[-size:]
    return "".join(kept)


def strip_mark_within(value: Any, mark: str) -> Any:
    """Remove the mark from every string of a JSON value; one without it comes back as the same object."""
    match value:
        case str():
            return strip_mark(value, mark)
        case list():
            items = [strip_mark_within(item, mark) for item in value]
            is_same = all(new is old for new, old in zip(items, value, strict=True))
            return value if is_same else items
        case dict():
            pairs = [(strip_mark_within(k, mark), strip_mark_within(v, mark)) for k, v in value.items()]
            is_same = all(k is a and v is b for (k, v), (a, b) in zip(pairs, value.items(), strict=True))
            return value if is_same else dict(pairs)
    return value


def strip_mark_from(block: Block, mark: str) -> Block:
    """Remove the mark from what a model wrote; a block without it comes back as the same object.

    Signed thinking stays to the letter: its provider refuses a changed one.
    """
    match block:
        case TextBlock():
            text = strip_mark(block.text, mark)
            return block if text is block.text else TextBlock(text=text)
        case ThinkingBlock(signature=None):
            thinking = strip_mark(block.thinking, mark)
            return block if thinking is block.thinking else ThinkingBlock(thinking=thinking)
        case ToolCallBlock():
            name, arguments = strip_mark(block.name, mark) or "unknown", strip_mark_within(block.arguments, mark)
            is_same = name is block.name and arguments is block.arguments
            return block if is_same else ToolCallBlock(id=block.id, name=name, arguments=arguments)
    return block


class MarkFilter:
    """Takes the mark out of a text that comes in pieces: an end that could become the mark is kept back."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._folded = mark.casefold()
        self._held = ""

    def feed(self, piece: str) -> str:
        """Give what may be shown by now."""
        text = strip_mark(self._held + piece, self._mark)
        shown = len(text) - self._begun(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """Give what was kept back, at the end; half of a mark and more is not given away either."""
        held, self._held = self._held, ""
        return held if len(held) < len(self._mark) / 2 else ""

    def _begun(self, text: str) -> int:
        """How many characters at the end of a text are the beginning of the mark."""
        tail = text[1 - len(self._folded) :].casefold()
        at = tail.find(self._folded[:1])
        while 0 <= at < len(tail) and not self._folded.startswith(tail[at:]):
            at = tail.find(self._folded[:1], at + 1)
        return len(tail) - at if at >= 0 else 0


def quote_name(text: str, *, limit: int = SHOWN_LIMIT) -> str:
    """Quote a name that others chose: one line, nothing invisible, no quotes inside, cut at `limit` characters."""
    name = clean_name(text, limit=limit)
    if '"' in name or not name.isascii():
        name = name.translate(_QUOTES)
    return f'"{name}"'


def header_line(mark: str, what: str, *facts: str) -> str:
    """Write a header; names among the facts are quoted already."""
    if not facts:
        return f"[{mark} {what}]"
    return f"[{mark} {what} | {strip_mark(' | '.join(facts), mark)}]"


def header_of(message: Message, mark: str, *, is_shared: bool = False) -> str | None:
    """Write the header that a message carries for the model; what the session's own user says has none.

    Where several people write, each message says whose it is: in groups and rooms always, in direct chats when more
    than one person uses the session (`is_shared`). A user that gave a name is shown with it: a hook says which program
    posts.
    """
    what = _what(message, is_shared=is_shared)
    if what is None:
        return None
    facts = [] if message.sender is None else [_sender(message.sender)]
    facts += [] if message.chat is None else [_chat(message.chat)]
    facts += _facts(message.provenance) if message.provenance else []
    if message.label:
        facts.append(f"label {quote_name(message.label)}")
    return header_line(mark, what, *facts)


_SYSTEM = Role.SYSTEM  # every message is asked for its role, and looking up the name takes longer than the rest
_WRITTEN_HERE = {
    ProvenanceKind.INTER_SESSION: SESSION_MESSAGE,
    ProvenanceKind.INTERNAL_SYSTEM: SYSTEM_MESSAGE,
}


def _what(message: Message, *, is_shared: bool) -> str | None:
    provenance = message.provenance
    if provenance is None:
        return SYSTEM_MESSAGE if message.role is _SYSTEM else None
    if written_here := _WRITTEN_HERE.get(provenance.kind):
        return written_here
    # It was written outside: recording it as a note must not make it look like the gateway's own.
    if message.role is _SYSTEM or (message.sender is not None and message.run_id is None):
        return NOTE
    is_one_of_many = message.chat is not None and (is_shared or message.chat.type != ChatType.DIRECT)
    return USER_MESSAGE if message.label or is_one_of_many else None


def _sender(sender: Sender) -> str:
    """Name a person by name and id: two may choose the same name."""
    if sender.name is None:
        return f"sender {quote_name(sender.id, limit=_ID_LIMIT)}"
    return f"sender {quote_name(sender.name)} (id {quote_name(sender.id, limit=_ID_LIMIT)})"


_CHATS: dict[str, str] = {ChatType.DIRECT: "direct chat", ChatType.GROUP: "group", ChatType.CHANNEL: "room"}


def _chat(chat: Chat) -> str:
    kind = _CHATS.get(chat.type, "chat")
    return kind if chat.type == ChatType.DIRECT else f"{kind} {quote_name(chat.name or chat.id)}"


def _facts(provenance: Provenance) -> list[str]:
    facts = []
    if provenance.source_session_key:
        facts.append(f"from {quote_name(provenance.source_session_key, limit=_KEY_LIMIT)}")
    if provenance.source_channel:
        facts.append(f"channel {quote_name(provenance.source_channel)}")
    if provenance.source_tool:
        facts.append(f"tool {quote_name(provenance.source_tool)}")
    return facts
