"""Lines of a transcript in the form that OpenClaw's clients read.

Its gateway, not its clients, decides what people read. A message of another session is *forwarded*: without the prompt
around it, and with the name of its sender. A control word is left out. Each line has its place in the transcript, by
which a client recognises it. Stored lines stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from backchannel.core.commands.control_words import CONTROL_WORDS
from backchannel.core.compaction.entry import compaction_line
from backchannel.core.flows.steps import is_of_flow, line_with_step
from backchannel.core.keys import SessionKey
from backchannel.core.messages import (
    Message,
    PendingMessages,
    ProvenanceKind,
    Role,
    TextBlock,
    decode_message,
    encode_message,
    text_content,
)
from backchannel.core.readable import text_for_people
from backchannel.errors import InvalidSessionKey
from backchannel.openclaw.rows import PendingInput, PendingInputs
from backchannel.wire.shapes import Answer

OPENCLAW = "openclaw-"
"""The prefix of the client ids of OpenClaw's clients that show conversations."""

_MOST_INPUTS = 20
_COMPACTION = b'"compaction":'
_WORDS = tuple(word.encode() for word in CONTROL_WORDS)


class SenderSession(Answer, frozen=True, kw_only=True):
    session_key: str
    agent_id: str


class ForwardedMessage(Answer, frozen=True, kw_only=True):
    """The sender of a message from another session."""

    sender_label: str
    sender_session: SenderSession | None = None


def line_for_people(line: bytes) -> bytes | None:
    """Write a line as people read it; None if it is not for them."""
    if _COMPACTION in line and (entry := decode_message(line)).compaction is not None:
        return encode_message(replace(entry, content=text_content(compaction_line(entry.compaction))))
    if not is_of_flow(line) and not any(word in line for word in _WORDS):
        return line
    message = decode_message(line)
    text = text_for_people(message)
    if text == message.text:
        return _forwarded(message) if message.role is Role.USER else line
    others = tuple(block for block in message.content if not isinstance(block, TextBlock))
    if not text and (message.role is not Role.ASSISTANT or not message.tool_calls):
        return None
    said = replace(message, content=((TextBlock(text=text),) if text else ()) + others)
    return _forwarded(said) if said.role is Role.USER else encode_message(said)


def _forwarded(message: Message) -> bytes:
    """Add the sender, unless it is the person who writes here."""
    source = message.provenance
    if source is None or source.kind is ProvenanceKind.EXTERNAL_USER:
        return encode_message(message)
    sender = _sender(source.source_session_key)
    label = f"Forwarded from {sender.agent_id}" if sender else "Forwarded"
    told = msgspec.json.encode(ForwardedMessage(sender_label=label, sender_session=sender))
    return encode_message(replace(message, role=Role.ASSISTANT))[:-1] + b"," + told[1:]


def _sender(key: str | None) -> SenderSession | None:
    if key is None:
        return None
    try:
        return SenderSession(session_key=key, agent_id=SessionKey.parse(key).agent)
    except InvalidSessionKey:  # `main` or `global`, as the operator calls it
        return None


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a line that its place needs, as they are written there."""

    id: Raw
    role: Role
    run_id: Raw = Raw(b"")
    compaction: Raw = Raw(b"")


_PLACE = b',"__openclaw":{"id":'
_PLACE_OF_NOTE = b',"command":true' + _PLACE
"""OpenClaw's clients show a note only if it is marked as a command."""
_PLACE_OF_SUMMARY = b',"__openclaw":{"kind":"compaction","id":'
"""They show a line across the conversation for it."""

_USER, _SYSTEM = Role.USER, Role.SYSTEM  # looking them up takes longer than asking a message for its role
_read = msgspec.json.Decoder(_Line).decode


def placed(line: bytes, shown: bytes, seq: int) -> bytes:
    """Add the place of a message to its shown form: its id, its number from 1, and its run.

    A message that a run answers has an `idempotencyKey` instead, by which its sender finds it. `seq` counts from 0, as
    rows do.
    """
    message = _read(line)
    role, run = message.role, bytes(message.run_id)
    if not run:
        end = b"}}"
    elif role is _USER:
        end = b',"idempotencyKey":' + run[:-1] + b':user"}}'
    else:
        end = b',"runId":' + run + b"}}"
    begin = _PLACE_OF_NOTE if role is _SYSTEM else _PLACE
    if message.compaction:
        begin = _PLACE_OF_SUMMARY
    return b"".join((shown[:-1], begin, message.id, b',"seq":', str(seq + 1).encode(), end))


def placed_all(lines: Iterable[tuple[int, str]], *, for_people: bool = False) -> Iterator[bytes]:
    """Write lines with their places, one at a time, since a page may hold fewer than were read."""
    for seq, body in lines:
        line = body.encode()
        shown = line_for_people(line) if for_people else line_with_step(line)
        if shown is not None:
            yield placed(line, shown, seq)


def pending_inputs(pending: PendingMessages, lines: list[Raw]) -> PendingInputs:
    """Show the waiting messages: as many as its clients take and the answer holds."""
    shown = zip(pending.messages[:_MOST_INPUTS], lines, strict=False)
    return PendingInputs(
        items=[
            PendingInput(id=each.id, state="queued", message=line, accepted_at=each.timestamp, run_id=each.run_id)
            for each, line in shown
        ],
        total=pending.total,
    )
