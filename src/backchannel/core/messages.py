"""Messages as the transcript keeps them and the wire shows them.

A transcript line is one `Message`; its content is a list of blocks, tagged by `type`. `core/requests.py` builds a
model's request from messages; that request is never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from backchannel.core.delivery.outgoing import FileCopy
from backchannel.core.stored import StoredForm
from backchannel.core.text import storable_text, without_controls


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_RESULT = "toolResult"
    SYSTEM = "system"


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A value written in camelCase, without what is not known."""


class TextBlock(_Wire, frozen=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(_Wire, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str | None = None
    """What the provider needs to take the block back; opaque."""


class ToolCallBlock(_Wire, frozen=True, tag_field="type", tag="toolCall"):
    id: str
    """Our own id, `<run id>/<step>/<index>`; providers' ids repeat and are not kept."""
    name: str
    arguments: Any


class ImageBlock(_Wire, frozen=True, tag_field="type", tag="image"):
    mime_type: str
    data: str | None = None
    url: str | None = None
    file: str | None = None
    """Its name in the media folder, for one that came from a chat; its content is read when a model is asked."""


Block = TextBlock | ThinkingBlock | ToolCallBlock | ImageBlock


class ProvenanceKind(StrEnum):
    EXTERNAL_USER = "external_user"
    INTER_SESSION = "inter_session"
    INTERNAL_SYSTEM = "internal_system"


class FlowStep(StrEnum):
    """The part that a message has in an exchange or a sub-agent's flow."""

    ASK = "ask"
    """A request of `sessions_send`, for its target."""
    TURN = "turn"
    """The other side's latest reply."""
    ANNOUNCE = "announce"
    """The prompt that asks a target for its chat's announce, or a sub-agent for its report."""
    LATE_REPLY = "late_reply"
    """A reply that its requester no longer waited for."""
    FAILURE = "failure"
    """No reply will come."""
    TASK = "task"
    """The task of a sub-agent."""
    POST = "post"
    """The report on a sub-agent, for its requester."""
    WAKE = "wake"
    """The reports that wake a requester."""
    NOTICE = "notice"
    """Another fact that the gateway tells a requester, such as stopped sub-agents."""


class Provenance(_Wire, frozen=True):
    """Where a message came from.

    Only the gateway writes it. `core/flows/steps.py` names the step of messages that were stored without one.
    """

    kind: ProvenanceKind
    source_session_key: str | None = None
    source_channel: str | None = None
    source_tool: str | None = None
    exchange_id: str | None = None
    step: FlowStep | None = None
    turn: int | None = None
    """The number of a turn, from 1; the exchange has at most `max_turns`."""
    max_turns: int | None = None


class Sender(_Wire, frozen=True):
    """The person who wrote a message on an outside channel."""

    id: str
    name: str | None = None
    """What they call themselves there, cleaned."""


class Chat(_Wire, frozen=True):
    """Where on an outside channel a message was written."""

    type: str
    """`direct`, `group` or `channel`, which is a room."""
    id: str
    name: str | None = None


MOST_TOKENS = 1_000_000_000
"""No call uses more tokens of a kind, whatever a provider says."""
MOST_DOLLARS = 1_000_000.0
"""Nor does one cost more."""


class Usage(_Wire, frozen=True):
    """What one model call, or several together, used. Cached tokens are not part of `input`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: float | None = None
    """In dollars; absent when the model has no known price."""

    @property
    def sent(self) -> int:
        """All input, cached or not."""
        return self.input + self.cache_read + self.cache_write

    @property
    def total(self) -> int:
        return self.sent + self.output

    @property
    def sound(self) -> Usage:
        """The same without numbers that cannot be true. A cost that is none is not known."""
        sent, said, read, written = (
            min(max(0, each), MOST_TOKENS) for each in (self.input, self.output, self.cache_read, self.cache_write)
        )
        is_cost = self.cost is not None and 0 <= self.cost <= MOST_DOLLARS
        return Usage(sent, said, read, written, self.cost if is_cost else None)

    @property
    def cached_share(self) -> float | None:
        """The part of the input that was read from the provider's cache; None if that has none."""
        return self.cache_read / self.sent if self.cache_read or self.cache_write else None


class CompactionEntry(_Wire, frozen=True):
    """What a summary in a transcript stands for."""

    through_message_id: str
    """The last message that it covers."""
    messages: int
    """How many messages it covers, with those of earlier summaries."""
    tokens_before: int
    tokens_after: int
    """The estimated size of a request before and after."""
    model: str
    """The model that wrote it, as `provider/model`."""
    undoes: str | None = None
    """The summary that a person took back. Then the entry is no summary, but tells of that."""


class Message(_Wire, frozen=True):
    """One line of a transcript."""

    id: str
    role: Role
    content: tuple[Block, ...]
    timestamp: int
    run_id: str | None = None
    provenance: Provenance | None = None
    label: str | None = None
    """The name that the author of a note gave it, or that a hook gave itself."""
    sender: Sender | None = None
    chat: Chat | None = None
    model: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    is_error: bool | None = None
    compaction: CompactionEntry | None = None
    """Set on a summary of older messages. Models see it in their place, at the beginning."""
    attached: FileCopy | None = None
    """The file that a tool result sends with the reply of its run."""
    moved: str | None = None
    """Why the request for this reply did not just extend the one before."""

    @property
    def text(self) -> str:
        """All text blocks, joined by line breaks."""
        return text_of(self.content)

    @property
    def tool_calls(self) -> list[ToolCallBlock]:
        return [block for block in self.content if isinstance(block, ToolCallBlock)]


def text_of(content: Iterable[Block]) -> str:
    """Join the text blocks of a message's content."""
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def text_content(text: str) -> tuple[Block, ...]:
    """Make the content of a message that is only text; an empty text has no block."""
    return (TextBlock(text=text),) if text else ()


_STORED: StoredForm[Message] = StoredForm(Message)
encode_message, decode_message, write_message = _STORED.encode, _STORED.read, _STORED.write


def decode_messages(bodies: Sequence[bytes | str]) -> list[Message]:
    return list(map(decode_message, bodies))


DEEPEST = 64
"""How deep the arguments of a tool call may be nested."""
ARGUMENTS_TOO_DEEP = f"(left out: nested deeper than {DEEPEST} levels)"
"""Stands for arguments that are deeper: no JSON object, so the call is answered with an error that says it."""


def storable_content(content: tuple[Block, ...]) -> tuple[Block, ...]:
    """Make content fit to be stored and sent: without lone surrogates, and no tool call nested too deep.

    A provider may cut a stream in the middle of a character. Then the two halves of a surrogate pair come one after the
    other. A file name that is not UTF-8 gives one half alone.
    """
    return tuple(map(_storable_block, content))


def result_content(content: tuple[Block, ...]) -> tuple[Block, ...]:
    """Make what a tool gave back fit to be stored and shown, to models too: without control characters."""
    return tuple(
        replace(block, text=without_controls(block.text)) if isinstance(block, TextBlock) else block
        for block in storable_content(content)
    )


class _TooDeep(ValueError):
    """Arguments are nested deeper than anything that reads them can follow."""


def _storable_block(block: Block) -> Block:
    match block:
        case TextBlock():
            text = storable_text(block.text)
            return block if text is block.text else TextBlock(text=text)
        case ThinkingBlock():
            thinking = storable_text(block.thinking)
            return block if thinking is block.thinking else replace(block, thinking=thinking)
        case ToolCallBlock():
            return replace(block, name=storable_text(block.name), arguments=_storable_arguments(block.arguments))
    return block


def _storable_arguments(arguments: Any) -> Any:
    try:
        return _storable_value(arguments, DEEPEST)
    except _TooDeep:
        return ARGUMENTS_TOO_DEEP


def _storable_value(value: Any, levels: int) -> Any:
    match value:
        case str():
            return storable_text(value)
        case dict() | list() if levels == 0:
            raise _TooDeep
        case dict():
            return {_storable_value(name, 0): _storable_value(inner, levels - 1) for name, inner in value.items()}
        case list():
            return [_storable_value(inner, levels - 1) for inner in value]
    return value


class HistoryPage(msgspec.Struct, frozen=True):
    """Messages, oldest first; `has_more` tells of older ones (or newer ones, reading forwards)."""

    messages: list[Message]
    has_more: bool


class TranscriptLines(NamedTuple):
    """The same as lines that are not read, each with its place in the transcript, from 0."""

    lines: list[tuple[int, str]]
    has_more: bool


class PendingPlace(msgspec.Struct, frozen=True):
    """A place among the waiting messages: the last waiting run and the last note before it. It travels in cursors."""

    run: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    note: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


FIRST_PENDING = PendingPlace()


class PendingMessages(msgspec.Struct, frozen=True):
    """The next messages that were accepted and are not yet in the transcript, and how many there are from here on."""

    messages: list[Message]
    total: int
    places: list[PendingPlace] = []
    """The place behind each of them."""
