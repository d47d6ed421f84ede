"""Requests to a model, built from a transcript.

A transcript records what happened. It may have neighbouring user messages, tool calls that a crash left without a
result, and more text than a context window. Providers refuse most of that. `build_messages` gives a *good sequence*:

- It starts with a user message. Two user messages, or two assistant messages, never stand side by side.

- An assistant message with tool calls is followed at once by one result per call, in the order of the calls.

- It ends with a user message or with tool results. No message is empty.

- It fits the budget: the oldest messages are left out, and a line says so.

- A message that was not answered is followed by a line that says so. Otherwise it would read as part of the next one.

- The parts of a run that was set aside or retried stand together, at the place of its last part. Other messages may
  have come after its first part. A model must see its own calls and results last, or it would repeat them.

It is built in three linear passes. *Read* turns the transcript into pieces: something said, or a reply with its
results. *Fit* cuts the pieces to the budget (`core/budget.py`). *Write* makes messages of them. The transcript itself
is never changed, and a message that needs no change is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import is_

import msgspec

from backchannel.core.budget import LINE_TOKENS, Piece, ReplyStep, UserText, fit
from backchannel.core.headers import (
    SYSTEM_MESSAGE,
    USER_MESSAGE,
    header_line,
    header_of,
    strip_mark,
    strip_mark_from,
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
)

_LEFT_OUT = "The oldest parts of this conversation no longer fit and are left out here."
_OPENS_WITH_REPLY = "Nothing was said before the reply below."
_NOTHING_BETWEEN = "Nothing was said between the reply above and the one below."
_NOTHING_NEW = "Nothing was said after the reply above. Go on where it ends, if something is left to do."
_NOT_ANSWERED = "The message above was not answered: its run ended, or was put aside, without a reply."
_NO_RESULT = "no result was recorded"
_NO_OUTPUT = "(no output)"


def build_messages(
    transcript: Sequence[Message],
    *,
    mark: str,
    budget_tokens: int,
    run_id: str | None = None,
    is_cut: bool = False,
    is_shared: bool = False,
) -> tuple[Message, ...]:
    """Build the messages of a model's request; empty if there is nothing to send.

    `run_id` is the run that asks. `is_cut` is true if older messages exist that were not passed in. `is_shared` is true
    if several people write to the session in direct chats.
    """
    pieces = _read(_by_runs(transcript, run_id), mark, is_shared=is_shared)
    if not pieces:
        return ()
    kept, is_short = fit(pieces, budget_tokens - LINE_TOKENS, is_cut)
    return _write(kept, mark, is_cut or is_short)


# --- Read: the transcript as pieces ---


def _by_runs(transcript: Sequence[Message], asking: str | None) -> Sequence[Message]:
    """Put the parts of each run together, at the place of its last part. The run that asks comes last."""
    ends: dict[str, int] = {}
    parted: set[str] = set()
    newest: str | None = None
    for i, message in enumerate(transcript):
        run_id = message.run_id
        if run_id is None:
            continue  # a note belongs to no run, and separates nothing
        if run_id != newest and run_id in ends:
            parted.add(run_id)
        ends[run_id], newest = i, run_id
    if asking in ends and asking != newest:
        parted.add(asking)
        ends[asking] = len(transcript)
    if not parted:
        return transcript
    places = [ends[message.run_id] if message.run_id in parted else i for i, message in enumerate(transcript)]
    return [transcript[i] for i in sorted(range(len(transcript)), key=places.__getitem__)]


def _read(transcript: Sequence[Message], mark: str, *, is_shared: bool) -> list[Piece]:
    pieces: list[Piece] = []
    open_calls: dict[str, tuple[ReplyStep, int]] = {}
    called: set[str] = set()
    folded = mark.casefold()
    asking: str | None = None  # the run whose message came last
    unanswered: Piece | None = None  # the last piece of that run, for as long as no reply ends it
    assistant, tool_result, user = Role.ASSISTANT, Role.TOOL_RESULT, Role.USER  # local names: this loop is hot
    for message in transcript:
        role = message.role
        if role is assistant:
            reply = ReplyStep(message, []) if _is_plain(message, folded) else _read_reply(message, mark, called)
            if reply is not None:
                pieces.append(reply)
                unanswered = reply if reply.results else None
                for i, missing in enumerate(reply.results):
                    open_calls[missing.tool_call_id or ""] = (reply, i)
        elif role is tool_result:
            # The first result after a call counts, at any distance. A result without a call is dropped.
            if call := open_calls.pop(message.tool_call_id or "", None):
                step, i = call
                step.results[i] = _read_result(message, step.results[i], mark)
        else:
            said = _read_said(message, mark, folded, is_shared=is_shared)
            if said is not None:
                pieces.append(said)
            if role is user and message.run_id is not None:
                if unanswered is not None and asking not in (None, message.run_id):
                    unanswered.is_left_open = True
                asking, unanswered = message.run_id, said
    return pieces


def _read_said(message: Message, mark: str, folded_mark: str, *, is_shared: bool) -> UserText | None:
    """Read a user message; None if it has nothing to show."""
    if not _is_plain(message, folded_mark):
        content = _read_content(message.content, mark)
        if not content:
            return None
        message = _with_content(message, content)
    return UserText(message, header_of(message, mark, is_shared=is_shared))


def _is_plain(message: Message, folded_mark: str) -> bool:
    """True if a message is a single text that can be sent unchanged. Most are, and skip the reading below."""
    content = message.content
    if len(content) != 1 or not isinstance(content[0], TextBlock):
        return False
    text = content[0].text
    return bool(text) and not text.isspace() and folded_mark not in text.casefold()


def _read_reply(message: Message, mark: str, called: set[str]) -> ReplyStep | None:
    """Read an assistant message; None if it has nothing to show (aborted before its first word)."""
    content = [block for old in message.content if (block := _read_reply_block(old, mark, called)) is not None]
    if all(isinstance(block, ThinkingBlock) for block in content):
        return None
    calls = [block for block in content if isinstance(block, ToolCallBlock)]
    return ReplyStep(_with_content(message, content), [_missing_result(message, call) for call in calls])


def _read_reply_block(block: Block, mark: str, called: set[str]) -> Block | None:
    match block:
        case TextBlock():
            return _read_text(block, mark)
        case ToolCallBlock() if block.id in called:
            return None  # providers refuse an id that comes twice
        case ToolCallBlock():
            called.add(block.id)
    return strip_mark_from(block, mark)


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
    """Remove the mark from others' texts. Neighbouring texts are joined first: the mark may span two."""
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
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    if len(texts) == len(blocks):
        return [TextBlock(text=separator.join(texts))]
    merged: list[Block] = []
    for _, group in groupby(blocks, type):
        run = list(group)
        texts = [block.text for block in run if isinstance(block, TextBlock)]
        merged += [TextBlock(text=separator.join(texts))] if len(texts) > 1 else run
    return merged


def _with_content(message: Message, content: Sequence[Block]) -> Message:
    """Return the message with this content; the same object if the content is the same."""
    old = message.content
    if len(old) == len(content) and all(map(is_, old, content)):
        return message
    return msgspec.structs.replace(message, content=tuple(content))


# --- Write: the pieces as messages ---


def _write(pieces: list[Piece], mark: str, is_short: bool) -> tuple[Message, ...]:
    messages: list[Message] = []
    said: list[UserText] = []
    if is_short or isinstance(pieces[0], ReplyStep):
        said.append(_line(_LEFT_OUT if is_short else _OPENS_WITH_REPLY, mark))
    for piece in pieces:
        if isinstance(piece, UserText):
            said.append(piece)
            if piece.is_left_open:
                said.append(_line(_NOT_ANSWERED, mark))
            continue
        if not said and messages[-1].role is Role.ASSISTANT:
            said.append(_line(_NOTHING_BETWEEN, mark))
        if said:
            messages.append(_join(said, mark))
            said = []
        messages += [piece.reply, *piece.results]
        if piece.is_left_open:
            said.append(_line(_NOT_ANSWERED, mark))
    if not said and messages[-1].role is Role.ASSISTANT:
        said.append(_line(_NOTHING_NEW, mark))
    if said:
        messages.append(_join(said, mark))
    return tuple(messages)


def _line(text: str, mark: str) -> UserText:
    message = Message(id="", role=Role.SYSTEM, content=text_content(text), timestamp=0)
    return UserText(message, header_line(mark, SYSTEM_MESSAGE))


def _join(said: list[UserText], mark: str) -> Message:
    """Join texts into one user message, with blank lines between. The newest gives its id and provenance."""
    newest = said[-1].message
    if len(said) == 1 and said[0].header is None:
        return newest
    # All text below a header belongs to its author. If the user's text follows, it needs a header of its own.
    blocks: list[Block] = []
    is_user_speaking = True
    for part in said:
        header = part.header or (None if is_user_speaking else header_line(mark, USER_MESSAGE))
        is_user_speaking = part.header is None
        blocks += _under(header, part.message.content)
    content = tuple(_merge_texts(blocks, "\n\n"))
    return Message(
        id=newest.id,
        role=Role.USER,
        content=content,
        timestamp=newest.timestamp,
        run_id=newest.run_id,
        provenance=newest.provenance,
    )


def _under(header: str | None, content: tuple[Block, ...]) -> tuple[Block, ...]:
    if header is None:
        return content
    first = content[0]
    if isinstance(first, TextBlock):
        return TextBlock(text=f"{header}\n{first.text}"), *content[1:]
    return TextBlock(text=header), *content
