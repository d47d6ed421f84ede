"""What a model is sent, built from a transcript.

A transcript holds what happened: messages that arrived one after the other, calls that a crash left without a
result, more than any context window takes. Providers refuse most of that. `build_messages` gives a *good
sequence*:

- it starts with a user message, and two user messages, or two assistant messages, never stand side by side;
- an assistant message with tool calls is followed at once by one result per call, in the order of the calls;
- it ends with a user message or with tool results; no message is empty;
- it fits the budget: the oldest is left out, and the model is told so.

It is built in three passes, each linear: *read* the transcript into pieces (something said, or one step: a reply
with its results), *fit* the pieces into the budget, *write* them as messages. The transcript itself is never
changed, and a message that needs no change is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec

from backchannel.core.headers import (
    SYSTEM_MESSAGE,
    USER_MESSAGE,
    header_line,
    header_of,
    strip_mark,
    strip_mark_within,
)
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

_MAX_REPLY_TOKENS = 16_384
_MESSAGE_TOKENS = 4  # what a provider adds around each message
_HEADER_TOKENS = 16  # `[<mark> user message]`, which a joined message may need
_LINE_TOKENS = 64  # one line of ours, with its header
_CUT_TOKENS = 256  # what stays of an old tool result that has to make room

_LEFT_OUT = "The oldest parts of this conversation no longer fit and are left out here."
_OPENS_WITH_REPLY = "Nothing was said before the reply below."
_NOTHING_BETWEEN = "Nothing was said between the reply above and the one below."
_NOTHING_NEW = "Nothing was said after the reply above. Go on where it ends, if something is left to do."
_NO_RESULT = "no result was recorded"
_NO_OUTPUT = "(no output)"


@dataclass(slots=True)
class _Said:
    """What a model sees as a user message: somebody's words, or a note; the header goes on top of it."""

    message: Message
    header: str | None

    @property
    def tokens(self) -> int:
        return estimate_tokens(self.message) + (text_tokens(self.header) if self.header else _HEADER_TOKENS)


@dataclass(slots=True)
class _Step:
    """A reply and the results of its tool calls, in order of the calls."""

    reply: Message
    results: list[Message]

    @property
    def tokens(self) -> int:
        return _LINE_TOKENS + estimate_tokens(self.reply) + sum(map(estimate_tokens, self.results))


_Piece = _Said | _Step


def build_messages(
    transcript: Sequence[Message], *, mark: str, budget_tokens: int, is_cut: bool = False
) -> tuple[Message, ...]:
    """Build the good sequence that a model is sent; empty when nothing is there to send.

    `is_cut` says that older messages exist which were not handed over.
    """
    pieces = _read(transcript, mark)
    if not pieces:
        return ()
    kept, is_short = _fit(pieces, budget_tokens - _LINE_TOKENS, is_cut)
    return _write(kept, mark, is_cut or is_short)


def context_budget(context_window: int, system_tokens: int, tool_tokens: int) -> int:
    """Tell how many tokens of messages a model takes beside its prompt, its tools and the reply."""
    reply = min(context_window // 4, _MAX_REPLY_TOKENS)
    return max(context_window - reply - system_tokens - tool_tokens, MIN_BUDGET)


def estimate_tokens(message: Message) -> int:
    """Estimate what a message costs of the context window, rather too much than too little."""
    return _MESSAGE_TOKENS + sum(map(_block_tokens, message.content))


def text_tokens(text: str) -> int:
    """Estimate what a text costs: a token for 3.5 bytes of ASCII, or for 3 of UTF-8 otherwise."""
    if text.isascii():
        return len(text) * 2 // 7 + 1
    return len(text.encode(errors="surrogatepass")) // 3 + 1


def _block_tokens(block: Block) -> int:
    match block:
        case TextBlock():
            return text_tokens(block.text)
        case ToolCallBlock():
            arguments = len(msgspec.json.encode(block.arguments)) // 3
            return text_tokens(block.name) + arguments + _MESSAGE_TOKENS
        case ThinkingBlock():
            return text_tokens(block.thinking) + text_tokens(block.signature or "")
        case ImageBlock():
            return IMAGE_TOKENS


# --- Read: the transcript as pieces ---


def _read(transcript: Sequence[Message], mark: str) -> list[_Piece]:
    pieces: list[_Piece] = []
    open_calls: dict[str, tuple[_Step, int]] = {}
    called: set[str] = set()
    folded = mark.casefold()
    for message in transcript:
        if message.role is Role.ASSISTANT:
            if _is_plain(message, folded):
                pieces.append(_Step(message, []))
            elif reply := _read_reply(message, mark, called):
                pieces.append(reply)
                open_calls.update((missing.tool_call_id or "", (reply, i)) for i, missing in enumerate(reply.results))
        elif message.role is Role.TOOL_RESULT:
            # The first result of a call counts, wherever it stands behind it; one without a call is dropped.
            if call := open_calls.pop(message.tool_call_id or "", None):
                step, i = call
                step.results[i] = _read_result(message, step.results[i], mark)
        elif _is_plain(message, folded):
            pieces.append(_Said(message, header_of(message, mark)))
        elif content := _read_content(message.content, mark):
            pieces.append(_Said(_with_content(message, content), header_of(message, mark)))
    return pieces


def _is_plain(message: Message, folded_mark: str) -> bool:
    """Whether a message is one text that can be sent as it is, as most are: they are spared the reading below."""
    content = message.content
    if len(content) != 1 or not isinstance(content[0], TextBlock):
        return False
    text = content[0].text
    return bool(text) and not text.isspace() and folded_mark not in text.casefold()


def _read_reply(message: Message, mark: str, called: set[str]) -> _Step | None:
    """Read an assistant message; None when it has nothing to show (aborted before its first word)."""
    content = [block for old in message.content if (block := _read_reply_block(old, mark, called)) is not None]
    if all(isinstance(block, ThinkingBlock) for block in content):
        return None
    calls = [block for block in content if isinstance(block, ToolCallBlock)]
    return _Step(_with_content(message, content), [_missing_result(message, call) for call in calls])


def _read_reply_block(block: Block, mark: str, called: set[str]) -> Block | None:
    match block:
        case TextBlock():
            return _read_text(block, mark)
        case ToolCallBlock() if block.id in called:
            return None  # providers refuse an id that comes twice
        case ToolCallBlock():
            called.add(block.id)
            return _read_call(block, mark)
        case ThinkingBlock(signature=None):
            return ThinkingBlock(thinking=strip_mark(block.thinking, mark))
    # Signed thinking stays to the letter: it is the model's own, and its provider refuses a changed one.
    return block


def _read_call(call: ToolCallBlock, mark: str) -> ToolCallBlock:
    name, arguments = strip_mark(call.name, mark) or "unknown", strip_mark_within(call.arguments, mark)
    if name is call.name and arguments is call.arguments:
        return call
    return ToolCallBlock(id=call.id, name=name, arguments=arguments)


def _missing_result(reply: Message, call: ToolCallBlock) -> Message:
    return Message(
        id=f"{call.id}/missing",
        role=Role.TOOL_RESULT,
        content=text_content(_NO_RESULT),
        timestamp=reply.timestamp,
        run_id=reply.run_id,
        tool_call_id=call.id,
        tool_name=call.name,
        is_error=True,
    )


def _read_result(message: Message, expected: Message, mark: str) -> Message:
    content = _read_content(message.content, mark) or text_content(_NO_OUTPUT)
    if message.tool_name != expected.tool_name:
        message = msgspec.structs.replace(message, tool_name=expected.tool_name)
    return _with_content(message, content)


def _read_content(content: Sequence[Block], mark: str) -> Sequence[Block]:
    """Take the mark out of what others wrote; texts side by side become one, lest together they form it."""
    clean: list[Block] = []
    for block in content:
        if isinstance(block, ImageBlock):
            clean.append(block)
        elif isinstance(block, TextBlock) and (text := _read_text(block, mark)) is not None:
            clean.append(text)
    return _merge_texts(clean, "\n")


def _read_text(block: TextBlock, mark: str) -> TextBlock | None:
    text = strip_mark(block.text, mark)
    if not text or text.isspace():
        return None  # providers refuse blank texts
    return block if text is block.text else TextBlock(text=text)


def _merge_texts(blocks: list[Block], separator: str) -> list[Block]:
    if len(blocks) < 2:
        return blocks
    merged: list[Block] = []
    for _, group in groupby(blocks, type):
        run = list(group)
        texts = [block.text for block in run if isinstance(block, TextBlock)]
        merged += [TextBlock(text=separator.join(texts))] if len(texts) > 1 else run
    return merged


def _with_content(message: Message, content: Sequence[Block]) -> Message:
    """Give a message other content; the same content gives the same message."""
    old = message.content
    if len(old) == len(content) and all(a is b for a, b in zip(old, content, strict=True)):
        return message
    return msgspec.structs.replace(message, content=tuple(content))


# --- Fit: what the budget takes ---


def _fit(pieces: list[_Piece], budget: int, is_cut: bool) -> tuple[list[_Piece], bool]:
    """Leave out the oldest, up to something said; also tells whether anything was left out."""
    start = current = _current_turn(pieces)
    used = sum(piece.tokens for piece in pieces[current:])
    if used > budget:
        kept = _shrink(pieces[current:], budget)
        return kept, len(kept) < len(pieces)
    for i in range(current - 1, -1, -1):
        used += pieces[i].tokens
        if used > budget:
            break
        if isinstance(pieces[i], _Said) or (i == 0 and not is_cut):
            start = i
    return pieces[start:], start > 0


def _current_turn(pieces: list[_Piece]) -> int:
    """Find the newest user message; a note stands in where there is none, or the oldest piece."""
    newest_note = 0
    for i in range(len(pieces) - 1, -1, -1):
        piece = pieces[i]
        if isinstance(piece, _Said):
            if piece.message.role is Role.USER:
                return i
            newest_note = newest_note or i
    return newest_note


def _shrink(turn: list[_Piece], budget: int) -> list[_Piece]:
    """Make the current turn fit: what it is about stays, its newest step stays, and old results go first."""
    if isinstance(turn[0], _Step):
        return _shrink_steps(turn, budget)
    rest = sum(piece.tokens for piece in turn[1:])
    opening = _squeeze(turn[:1], max(budget - rest, budget * 3 // 4))
    return opening + _shrink_steps(turn[1:], budget - opening[0].tokens)


def _shrink_steps(pieces: list[_Piece], room: int) -> list[_Piece]:
    if not pieces:
        return []
    last = max((i for i, piece in enumerate(pieces) if isinstance(piece, _Step)), default=len(pieces) - 1)
    older, newest = pieces[:last], pieces[last:]
    # One huge result must not push out all that was done before it: it gets half, and more if that is free.
    newest = _squeeze(newest, max(room - sum(piece.tokens for piece in older), room // 2))
    return _thin_out(older, room - sum(piece.tokens for piece in newest)) + newest


def _thin_out(pieces: list[_Piece], room: int) -> list[_Piece]:
    """Cut results and notes, the oldest first; if that is not enough, leave out whole pieces, the oldest first."""
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


def _squeeze(pieces: list[_Piece], room: int) -> list[_Piece]:
    """Cut the longest results and notes to one length, such that all fit; replies cannot be cut."""
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


def _cuttable(piece: _Piece) -> list[Message]:
    return piece.results if isinstance(piece, _Step) else [piece.message]


def _cut_piece(piece: _Piece, limit: int) -> _Piece:
    if isinstance(piece, _Step):
        return replace(piece, results=[_cut(message, limit) for message in piece.results])
    return replace(piece, message=_cut(piece.message, limit))


def _cut(message: Message, limit: int) -> Message:
    """Cut a message to a number of tokens: images that do not fit, and the middle of its text."""
    if estimate_tokens(message) <= limit:
        return message
    room = limit - _MESSAGE_TOKENS
    images = [block for block in message.content if isinstance(block, ImageBlock)]
    kept = images[: max(0, room - _LINE_TOKENS) // IMAGE_TOKENS]
    notice = f"[images left out: {len(images) - len(kept)}]" if len(kept) < len(images) else ""
    text = _cut_text(text_of(message.content), room - len(kept) * IMAGE_TOKENS - text_tokens(notice))
    lines = "\n".join(line for line in (text, notice) if line)
    return msgspec.structs.replace(message, content=(*text_content(lines), *kept))


def _cut_text(text: str, limit: int) -> str:
    if text_tokens(text) <= max(limit, _HEADER_TOKENS):
        return text  # what tells of the cut would be longer
    raw = text.encode(errors="surrogatepass")
    half = max(0, (limit - _HEADER_TOKENS) * 3 // 2)
    head = raw[:half].decode(errors="ignore")
    tail = raw[len(raw) - half :].decode(errors="ignore")
    return f"{head}\n[characters left out here: {len(text) - len(head) - len(tail)}]\n{tail}".strip()


# --- Write: the pieces as messages ---


def _write(pieces: list[_Piece], mark: str, is_short: bool) -> tuple[Message, ...]:
    messages: list[Message] = []
    said: list[_Said] = []
    if is_short or isinstance(pieces[0], _Step):
        said.append(_line(_LEFT_OUT if is_short else _OPENS_WITH_REPLY, mark))
    for piece in pieces:
        if isinstance(piece, _Said):
            said.append(piece)
            continue
        if not said and messages[-1].role is Role.ASSISTANT:
            said.append(_line(_NOTHING_BETWEEN, mark))
        if said:
            messages.append(_join(said, mark))
            said = []
        messages += [piece.reply, *piece.results]
    if not said and messages[-1].role is Role.ASSISTANT:
        said.append(_line(_NOTHING_NEW, mark))
    if said:
        messages.append(_join(said, mark))
    return tuple(messages)


def _line(text: str, mark: str) -> _Said:
    message = Message(id="", role=Role.SYSTEM, content=text_content(text), timestamp=0)
    return _Said(message, header_line(mark, SYSTEM_MESSAGE))


def _join(said: list[_Said], mark: str) -> Message:
    """Join what was said into one user message, a blank line between; it keeps the newest one's id."""
    newest = said[-1].message
    if len(said) == 1 and said[0].header is None:
        return newest
    # Below a header everything counts as its writer's: where the user speaks next, a header has to say so.
    from_user = header_line(mark, USER_MESSAGE)
    blocks: list[Block] = []
    is_user_speaking = True
    for part in said:
        header = part.header or (None if is_user_speaking else from_user)
        is_user_speaking = part.header is None
        blocks += _under(header, part.message.content)
    content = tuple(_merge_texts(blocks, "\n\n"))
    return Message(id=newest.id, role=Role.USER, content=content, timestamp=newest.timestamp, run_id=newest.run_id)


def _under(header: str | None, content: tuple[Block, ...]) -> tuple[Block, ...]:
    if header is None:
        return content
    first = content[0]
    if isinstance(first, TextBlock):
        return TextBlock(text=f"{header}\n{first.text}"), *content[1:]
    return TextBlock(text=header), *content
