"""Requests to a model: the view of a transcript, extended message by message.

A transcript records what happened. It may have neighbouring user messages, tool calls that a crash left without a
result, and more text than a context window. Providers refuse most of that. A `Conversation` gives a *good sequence*:

- It starts with a user message. Two user messages, or two assistant messages, never stand side by side.

- An assistant message with tool calls is followed at once by one result per call, in the order of the calls.

- It ends with a user message or with tool results. No message is empty.

- A message that was not answered is followed by a line that says so. Otherwise it would read as part of the next one.

- The parts of a run that was set aside or retried stand together, at the place of its last part. Other messages may
  have come after its first part. A model must see its own calls and results last, or it would repeat them.

It is made of *steps*: an assistant message, its results, and what was said after it. Only the last step is open. A
closed step never changes, so each request extends the one before, and its bytes can be kept. `core/cut.py` decides
where a conversation begins; the transcript itself is never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from operator import is_
from typing import NamedTuple

import msgspec

from backchannel.core.budget import cut_message, estimate_tokens, squeeze
from backchannel.core.headers import (
    NOTE,
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
    text_of,
)
from backchannel.core.runs import TranscriptHead

UNSEEN = "(an image, which this model cannot see)"
NOT_AGAIN = "(an image, which is not shown again)"
MOST_PICTURES_SHOWN = 20
"""In one message, and in a whole request."""
ROUNDS_SHOWN = 3
"""How many rounds of tool calls keep their whole results when older ones are cleared."""
CLEARED_FROM = 2_000
"""Results of so many characters or fewer are not cleared, however old they are."""

_LEFT_OUT = "The oldest parts of this conversation no longer fit and are left out here."
_OPENS_WITH_REPLY = "Nothing was said before the reply below."
_NOTHING_SAID = "Nothing was said after the reply above. Go on where it ends, if something is left to do."
_NOT_ANSWERED = "The message above was not answered: its run ended, or was put aside, without a reply."
_NO_RESULT = "no result was recorded"
_NO_OUTPUT = "(no output)"

Line = tuple[int, Message]
"""A message with its place in the transcript."""


class TranscriptPart(msgspec.Struct, frozen=True):
    """What a model may be shown of a transcript."""

    head: TranscriptHead
    summary: Message | None
    """The summary of what came before the cut."""
    lines: list[Line]
    """The messages from the cut on; before them a question there that was not yet answered."""
    begins: int
    """The place of the first message that was read, besides that question."""
    is_whole: bool
    """Whether that is the cut; else there was too much to read."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a conversation depends on besides its messages."""

    mark: str
    budget: int
    """How many tokens there are for messages. One message gets less than half, and so do the results of one step."""
    is_shared: bool = False
    """Whether several people write to the session in direct chats."""
    is_short: bool = False
    """Whether older messages exist that neither stand here nor in a summary."""
    results_before: int = 0
    """Long tool results before this place are cleared."""
    pictures_before: int = 0
    """Pictures before this place are not shown."""
    shows_pictures: bool = True


class ViewStart(NamedTuple):
    """A place at which a conversation may begin."""

    seq: int
    tokens_before: int
    """How many tokens are left out if it begins there."""
    question: int | None
    """Where a run goes on across the place: the place of the message that the run answers, which is not left out."""


class OutOfOrder(Exception):
    """A message belongs before others that are there already."""


class _Said(msgspec.Struct):
    """A part of a user message: a person's text or a note. Its header is added on top."""

    message: Message
    header: str | None


class _Step(msgspec.Struct):
    """The open step of a conversation."""

    reply: Message | None = None
    results: list[Message] = []
    said: list[_Said] = []
    awaited: dict[str, int] = {}
    """The calls without a result, each with its index among the results."""


class Conversation:
    """What a model is shown of one transcript, in the order of its messages."""

    def __init__(self, view: View, summary: Message | None = None, settled: Collection[int] | None = None) -> None:
        """Begin a conversation, with a summary of what came before.

        If its messages are put in another order, `settled` are the places at which it could begin instead.
        """
        self.view = view
        self.next_seq = 0
        """The place after the last message that was added."""
        self.places: list[ViewStart] = []
        """The places at which it could begin instead, in order."""
        self.pictures: list[int] = []
        """The places of the pictures that are shown."""
        self.newest_run: str | None = None
        self._settled = settled
        self._share = view.budget * 7 // 16
        self._folded_mark = view.mark.casefold()
        self._closed: list[list[Message]] = []
        self._closed_tokens = self._open_tokens = 0
        self._step = _Step()
        self._called: set[str] = set()
        self._missing: set[str] = set()  # calls of closed steps that have no result
        self._runs: set[str] = set()
        self._question: int | None = None
        self._question_tokens = 0
        self._asking: str | None = None  # the run whose message came last
        self._unanswered: _Said | Message | None = None  # the last part of that run, while no reply ends it
        self._rounds: list[tuple[int, int]] = []  # places, and the tokens that clearing their results saves
        if view.is_short:
            self._step.said.append(self._line(_LEFT_OUT))
        if summary is not None:
            covered = 0 if summary.compaction is None else summary.compaction.messages
            about = f"summary of {covered} older messages of this conversation"
            self._step.said.append(_Said(summary, header_line(view.mark, NOTE, about)))

    # --- What a request needs ---

    @property
    def is_empty(self) -> bool:
        return not self._closed_tokens and self._step.reply is None and not self._step.said

    def take_closed(self) -> list[list[Message]]:
        """Return the steps that were closed since the last call, and forget them."""
        closed, self._closed = self._closed, []
        return closed

    def last_step(self) -> list[Message]:
        """Return the open step as a request ends with it; empty if there is nothing to send."""
        return [] if self.is_empty else self._finished()

    def tokens(self, last_step: Sequence[Message] | None = None) -> int:
        """Estimate the tokens of all messages. A caller that has the last step already passes it."""
        last = self.last_step() if last_step is None else last_step
        return self._closed_tokens + sum(map(estimate_tokens, last))

    def clearable(self) -> tuple[int, int]:
        """Tell how far old results can be cleared: the place, and about how many tokens that saves."""
        if len(self._rounds) <= ROUNDS_SHOWN:
            return 0, 0
        return self._rounds[-ROUNDS_SHOWN][0], sum(saved for _, saved in self._rounds[:-ROUNDS_SHOWN])

    # --- Add: one message of the transcript ---

    def add(self, seq: int, message: Message) -> None:
        """Add the next message.

        Raises:
            OutOfOrder: it belongs before messages that are there. Begin anew with `in_order` (`core/run_order.py`);
                a conversation that was put in order does not raise it.
        """
        self.next_seq = max(self.next_seq, seq + 1)
        if message.compaction is not None:
            return  # it stands at the beginning, or is no longer in use
        run_id, role = message.run_id, message.role
        if run_id is not None and run_id != self.newest_run and role is not Role.TOOL_RESULT:
            if run_id in self._runs and self._settled is None:
                raise OutOfOrder
            self._runs.add(run_id)
            self.newest_run = run_id
        if role is Role.ASSISTANT:
            self._add_reply(seq, message)
        elif role is Role.TOOL_RESULT:
            self._add_result(seq, message)
        else:
            self._add_said(seq, message)

    def _add_reply(self, seq: int, message: Message) -> None:
        results: list[Message] = []
        if not self._is_plain(message):
            read = _read_reply(message, self.view.mark, self._called)
            if read is None:
                return
            message = read
            results = [_missing_result(message, call) for call in message.tool_calls]
        self._close_step()
        self._add_place(seq, self._question)
        awaited = {result.tool_call_id or "": i for i, result in enumerate(results)}
        self._step, self._open_tokens = _Step(message, results, [], awaited), estimate_tokens(message)
        if results:
            self._rounds.append((seq, 0))
            self._unanswered = message
        else:
            self._unanswered = self._question = None

    def _add_result(self, seq: int, message: Message) -> None:
        call = message.tool_call_id or ""
        i = self._step.awaited.pop(call, None)
        if i is None:
            if call in self._missing and self._settled is None:
                raise OutOfOrder
            return  # the first result after a call counts; a result without a call is dropped
        expected = self._step.results[i]
        content = _read_content(self._pictured(seq, message.content), self.view.mark) or text_content(_NO_OUTPUT)
        if (length := len(text_of(content))) > CLEARED_FROM:
            if seq < self.view.results_before:
                content = text_content(f"(an earlier result of {length} characters, which is not shown again)")
            else:
                place, saved = self._rounds[-1]
                self._rounds[-1] = place, saved + length * 2 // 7
        if message.tool_name != expected.tool_name:
            message = msgspec.structs.replace(message, tool_name=expected.tool_name)
        self._step.results[i] = result = _with_content(message, content)
        self._open_tokens += estimate_tokens(result)

    def _add_said(self, seq: int, message: Message) -> None:
        said = self._read_said(seq, message)
        is_question = message.role is Role.USER and message.run_id is not None
        self._add_place(seq, None if is_question else self._question)
        if is_question:
            if self._unanswered is not None and self._asking not in (None, message.run_id):
                self._tell_unanswered(self._unanswered)
            self._asking, self._unanswered, self._question = message.run_id, said, seq
            self._question_tokens = 0 if said is None else estimate_tokens(said.message)
        if said is not None:
            self._step.said.append(said)
            self._open_tokens += estimate_tokens(said.message)

    def _add_place(self, seq: int, question: int | None) -> None:
        if self._settled is not None and seq not in self._settled:
            return
        before = self._closed_tokens + self._open_tokens
        self.places.append(ViewStart(seq, before if question is None else before - self._question_tokens, question))

    def _tell_unanswered(self, last: _Said | Message) -> None:
        said = self._step.said
        behind = next((i + 1 for i, part in enumerate(said) if part is last), 0)
        said.insert(behind, self._line(_NOT_ANSWERED))

    def _read_said(self, seq: int, message: Message) -> _Said | None:
        """Read a user message; None if it has nothing to show."""
        if not self._is_plain(message):
            content = _read_content(self._pictured(seq, message.content), self.view.mark)
            if not content:
                return None
            message = _with_content(message, content)
        message = cut_message(message, self._share)
        return _Said(message, header_of(message, self.view.mark, is_shared=self.view.is_shared))

    def _is_plain(self, message: Message) -> bool:
        """True if a message is a single text that can be sent unchanged. Most are, and skip the reading."""
        content = message.content
        if len(content) != 1 or not isinstance(content[0], TextBlock):
            return False
        text = content[0].text
        return bool(text) and not text.isspace() and self._folded_mark not in text.casefold()

    def _pictured(self, seq: int, content: Sequence[Block]) -> Sequence[Block]:
        """Put a line in the place of each picture that is not shown. Of one message, the last pictures are shown."""
        kept = [i for i, block in enumerate(content) if isinstance(block, ImageBlock) and block.file is not None]
        if not kept:
            return content
        is_shown = self.view.shows_pictures and seq >= self.view.pictures_before
        shown = kept[-MOST_PICTURES_SHOWN:] if is_shown else []
        self.pictures += [seq] * len(shown)
        line = TextBlock(text=NOT_AGAIN if self.view.shows_pictures else UNSEEN)
        hidden = set(kept).difference(shown)
        return [line if i in hidden else block for i, block in enumerate(content)]

    # --- Close: the steps as messages ---

    def _close_step(self) -> None:
        """Close the open step: a reply follows it."""
        if self.is_empty:
            self._step.said.append(self._line(_OPENS_WITH_REPLY))
        closed = self._finished()
        self._closed.append(closed)
        self._closed_tokens += sum(map(estimate_tokens, closed))
        self._open_tokens = 0
        self._missing.update(self._step.awaited)

    def _finished(self) -> list[Message]:
        step, said = self._step, self._step.said
        if step.reply is None:
            return [self._join(said)]
        if not said and not step.results:
            said = [self._line(_NOTHING_SAID)]
        results = squeeze(step.results, self._share)
        return [step.reply, *results, self._join(said)] if said else [step.reply, *results]

    def _line(self, text: str) -> _Said:
        message = Message(id="", role=Role.SYSTEM, content=text_content(text), timestamp=0)
        return _Said(message, header_line(self.view.mark, SYSTEM_MESSAGE))

    def _join(self, said: list[_Said]) -> Message:
        """Join texts into one user message, with blank lines between. The newest gives its id and provenance."""
        newest = said[-1].message
        if len(said) == 1 and said[0].header is None:
            return newest
        # All text below a header belongs to its author. If the user's text follows, it needs a header of its own.
        blocks: list[Block] = []
        is_user_speaking = True
        for part in said:
            header = part.header or (None if is_user_speaking else header_line(self.view.mark, USER_MESSAGE))
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


# --- Read: single messages ---


def _read_reply(message: Message, mark: str, called: set[str]) -> Message | None:
    """Read an assistant message; None if it has nothing to show (aborted before its first word)."""
    content = [block for old in message.content if (block := _read_reply_block(old, mark, called)) is not None]
    if all(isinstance(block, ThinkingBlock) for block in content):
        return None
    return _with_content(message, content)


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


def _under(header: str | None, content: tuple[Block, ...]) -> tuple[Block, ...]:
    if header is None:
        return content
    first = content[0]
    if isinstance(first, TextBlock):
        return TextBlock(text=f"{header}\n{first.text}"), *content[1:]
    return TextBlock(text=header), *content
