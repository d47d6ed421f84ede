"""Transcripts as a model is shown them, without a gateway."""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.cut import NO_CUT
from backchannel.core.messages import Message
from backchannel.core.requests import Conversation

PLENTY = 100_000


def shown_to_model(transcript: Sequence[Message], mark: str) -> tuple[Message, ...]:
    """Build the messages of a request from a whole transcript."""
    conversation = Conversation(NO_CUT.view(mark, PLENTY, is_shared=False, shows_pictures=True))
    for seq, message in enumerate(transcript):
        conversation.add(seq, message)
    closed = [message for step in conversation.take_closed() for message in step]
    return (*closed, *conversation.last_step())
