"""Lines of a transcript as OpenClaw's clients are shown them: its gateway, not its clients, sees to what people read.

What another session said is *forwarded*: without the instructions of the gateway around it, and with the name of its
sender. What is meant for the gateway alone, such as a control word, is left out. What is stored stays as it is; our
own page and command line read that, and tell it in their own way.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from backchannel.core.commands.control_words import CONTROL_WORDS
from backchannel.core.flows.steps import is_of_flow
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, ProvenanceKind, Role, TextBlock, decode_message, encode_message
from backchannel.core.readable import text_for_people
from backchannel.errors import InvalidSessionKey
from backchannel.wire.shapes import Answer

OPENCLAW = "openclaw-"
"""Begins the names under which OpenClaw's clients that show conversations connect."""

_WORDS = tuple(word.encode() for word in CONTROL_WORDS)


class SenderSession(Answer, frozen=True, kw_only=True):
    session_key: str
    agent_id: str


class ForwardedMessage(Answer, frozen=True, kw_only=True):
    """Who sent a message that another session wrote."""

    sender_label: str
    sender_session: SenderSession | None = None


def line_for_people(line: bytes) -> bytes | None:
    """Give a line as people read it; None when it says nothing to them."""
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
    """Say whose words they are, if not those of the one who writes here."""
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
