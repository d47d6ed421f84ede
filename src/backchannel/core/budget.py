"""The budget of a request: costs of messages, and the cut to a context window.

Costs are estimates: no two providers count alike.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from backchannel.core.messages import (
    Block,
    ImageBlock,
    Message,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    text_content,
    text_of,
)

IMAGE_TOKENS = 1_600
"""What an image is taken to cost; providers count it by its size, and none charges much more."""
MIN_BUDGET = 1_024
"""Below this no conversation is possible, whatever the window says."""
MESSAGE_TOKENS = 4
"""What a provider adds around each message."""
LINE_TOKENS = 64
"""One line of ours, with its header."""

_HEADER_TOKENS = 16  # `[<mark> user message]`, which a joined message may need
_CUT_TOKENS = 256  # what remains of an old tool result that is cut
_MAX_REPLY_TOKENS = 16_384


def context_budget(context_window: int, system_tokens: int, tool_tokens: int) -> int:
    """Return how many tokens are left for messages, after the prompt, the tools and the reply."""
    reply = min(context_window // 4, _MAX_REPLY_TOKENS)
    return max(context_window - reply - system_tokens - tool_tokens, MIN_BUDGET)


def estimate_tokens(message: Message) -> int:
    """Estimate the tokens of a message, rather too many than too few."""
    content = message.content
    if len(content) == 1 and isinstance(content[0], TextBlock):  # as most are
        return MESSAGE_TOKENS + text_tokens(content[0].text)
    return MESSAGE_TOKENS + sum(map(_block_tokens, content))


def text_tokens(text: str) -> int:
    """Estimate the tokens of a text: one for 3.5 bytes of ASCII, or for 3 bytes of other UTF-8."""
    if text.isascii():
        return len(text) * 2 // 7 + 1
    return len(text.encode(errors="surrogatepass")) // 3 + 1


def _block_tokens(block: Block) -> int:
    match block:
        case TextBlock():
            return text_tokens(block.text)
        case ToolCallBlock():
            arguments = len(msgspec.json.encode(block.arguments)) // 3
            return text_tokens(block.name) + arguments + MESSAGE_TOKENS
        case ThinkingBlock():
            return text_tokens(block.thinking) + text_tokens(block.signature or "")
        case ImageBlock():
            return IMAGE_TOKENS


class UserText(msgspec.Struct):
    """A piece of a user message: a person's text or a note. Its header is added on top."""

    message: Message
    header: str | None
    is_left_open: bool = False
    """True if its run ended here without an answer. A line of this piece says so."""

    @property
    def tokens(self) -> int:
        line = LINE_TOKENS if self.is_left_open else 0
        return estimate_tokens(self.message) + (text_tokens(self.header) if self.header else _HEADER_TOKENS) + line


class ReplyStep(msgspec.Struct):
    """A reply and the results of its tool calls, in order of the calls."""

    reply: Message
    results: list[Message]
    is_left_open: bool = False
    """True if its run ended after the tool calls, without an answer."""

    @property
    def tokens(self) -> int:
        results = sum(map(estimate_tokens, self.results)) if self.results else 0
        return (1 + self.is_left_open) * LINE_TOKENS + estimate_tokens(self.reply) + results


Piece = UserText | ReplyStep


def fit(pieces: list[Piece], budget: int, is_cut: bool) -> tuple[list[Piece], bool]:
    """Drop the oldest pieces, up to a user's message; also returns whether any was dropped."""
    start = current = _current_turn(pieces)
    used = sum(piece.tokens for piece in pieces[current:])
    if used > budget:
        kept = _shrink(pieces[current:], budget)
        return kept, len(kept) < len(pieces)
    for i in range(current - 1, -1, -1):
        used += pieces[i].tokens
        if used > budget:
            break
        if isinstance(pieces[i], UserText) or (i == 0 and not is_cut):
            start = i
    return pieces[start:], start > 0


def _current_turn(pieces: list[Piece]) -> int:
    """Find the newest user message; else the newest note; else the oldest piece."""
    newest_note = 0
    for i in range(len(pieces) - 1, -1, -1):
        piece = pieces[i]
        if isinstance(piece, UserText):
            if piece.message.role is Role.USER:
                return i
            newest_note = newest_note or i
    return newest_note


def _shrink(turn: list[Piece], budget: int) -> list[Piece]:
    """Make the current turn fit. Its message and its newest step stay; old results go first."""
    if isinstance(turn[0], ReplyStep):
        return _shrink_steps(turn, budget)
    rest = sum(piece.tokens for piece in turn[1:])
    opening = _squeeze(turn[:1], max(budget - rest, budget * 3 // 4))
    return opening + _shrink_steps(turn[1:], budget - opening[0].tokens)


def _shrink_steps(pieces: list[Piece], room: int) -> list[Piece]:
    if not pieces:
        return []
    last = max((i for i, piece in enumerate(pieces) if isinstance(piece, ReplyStep)), default=len(pieces) - 1)
    older, newest = pieces[:last], pieces[last:]
    # One huge result must not push out all earlier steps: it gets half of the room, and more if that is free.
    newest = _squeeze(newest, max(room - sum(piece.tokens for piece in older), room // 2))
    return _thin_out(older, room - sum(piece.tokens for piece in newest)) + newest


def _thin_out(pieces: list[Piece], room: int) -> list[Piece]:
    """Cut results and notes, the oldest first. If that is not enough, drop whole pieces, the oldest first."""
    sizes = [piece.tokens for piece in pieces]
    excess = sum(sizes) - room
    thinned = list(pieces)
    for i, piece in enumerate(pieces):
        if excess <= 0:
            return thinned
        thinned[i] = _cut_piece(piece, _CUT_TOKENS)
        excess += thinned[i].tokens - sizes[i]
    start = 0
    while excess > 0 and start < len(thinned):
        excess -= thinned[start].tokens
        start += 1
    return thinned[start:]


def _squeeze(pieces: list[Piece], room: int) -> list[Piece]:
    """Cut the longest results and notes to one common length, so that all fit. Replies cannot be cut."""
    total = sum(piece.tokens for piece in pieces)
    if total <= room:
        return pieces
    sizes = sorted(estimate_tokens(message) for piece in pieces for message in _cuttable(piece))
    left = room - (total - sum(sizes))
    limit = 0
    for i, size in enumerate(sizes):
        limit = left // (len(sizes) - i)
        if size > limit:
            break
        left -= size
    return [_cut_piece(piece, limit) for piece in pieces]


def _cuttable(piece: Piece) -> list[Message]:
    return piece.results if isinstance(piece, ReplyStep) else [piece.message]


def _cut_piece(piece: Piece, limit: int) -> Piece:
    if isinstance(piece, ReplyStep):
        return replace(piece, results=[_cut(message, limit) for message in piece.results])
    return replace(piece, message=_cut(piece.message, limit))


def _cut(message: Message, limit: int) -> Message:
    """Cut a message to a number of tokens: drop images that do not fit, and the middle of its text."""
    if estimate_tokens(message) <= limit:
        return message
    room = limit - MESSAGE_TOKENS
    images = [block for block in message.content if isinstance(block, ImageBlock)]
    kept = images[: max(0, room - LINE_TOKENS) // IMAGE_TOKENS]
    notice = f"[images left out: {len(images) - len(kept)}]" if len(kept) < len(images) else ""
    text = _cut_text(text_of(message.content), room - len(kept) * IMAGE_TOKENS - text_tokens(notice))
    lines = "\n".join(line for line in (text, notice) if line)
    return replace(message, content=(*text_content(lines), *kept))


def _cut_text(text: str, limit: int) -> str:
    if text_tokens(text) <= max(limit, _HEADER_TOKENS):
        return text  # the line about the cut would be longer
    raw = text.encode(errors="surrogatepass")
    half = max(0, (limit - _HEADER_TOKENS) * 3 // 2)
    head = raw[:half].decode(errors="ignore")
    tail = raw[len(raw) - half :].decode(errors="ignore")
    return f"{head}\n[characters left out here: {len(text) - len(head) - len(tail)}]\n{tail}".strip()
