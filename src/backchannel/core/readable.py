"""Messages as people read them, without the gateway's instructions to models.

The transcript keeps the prompts of turns, announces and wakes, and control words, because models see them again. They
are not meant for people. Only a message of the gateway itself is read this way. Its provenance says so, and only the
gateway writes provenance.
"""

from __future__ import annotations

from backchannel.core.commands.control_words import is_control_word
from backchannel.core.flows import exchange, exchange_texts, spawn_texts
from backchannel.core.flows.spawn import SPAWN_TOOL
from backchannel.core.messages import Message, ProvenanceKind, Role, TextBlock
from backchannel.core.text import unfenced


def text_for_people(message: Message) -> str:
    """Give the text of a message as people read it; empty when it says nothing to them."""
    if message.role is Role.ASSISTANT:
        return "" if is_control_word(message.text) else message.text
    provenance = message.provenance
    if provenance is not None and message.role is Role.USER:
        if provenance.source_tool == exchange.SEND_TOOL and provenance.exchange_id is not None:
            return _of_exchange(message)
        if provenance.source_tool == SPAWN_TOOL and provenance.kind is ProvenanceKind.INTERNAL_SYSTEM:
            return _of_spawn(message.text)
    return message.text


def _of_exchange(message: Message) -> str:
    text = message.text
    if text.startswith(exchange_texts.EXCHANGE_ANNOUNCE_LINE):
        return ""
    if text.startswith((exchange_texts.TURN_LINE, exchange_texts.LATE_LINE)):
        return "\n".join(unfenced(text))
    if text.startswith(exchange_texts.FAILURE_LINE):
        return f"(no reply: {' '.join(unfenced(text))})"
    asked, *_ = [block.text for block in message.content if isinstance(block, TextBlock)] or [""]
    return asked  # the context for the model is a block of its own


def _of_spawn(text: str) -> str:
    if text.startswith(spawn_texts.SPAWN_ANNOUNCE_LINE):
        return ""
    return "\n\n".join(unfenced(text)) if text.startswith(spawn_texts.WAKE_LINE) else text
