"""Messages as people read them, without the gateway's instructions to models.

The transcript keeps the prompts of turns, announces and wakes, and control words, because models see them again. The
step in a message's provenance says which of its words are for people.
"""

from __future__ import annotations

from backchannel.core.commands.control_words import is_control_word
from backchannel.core.flows.steps import with_step
from backchannel.core.messages import FlowStep, Message, Role, TextBlock
from backchannel.core.text import unfenced


def text_for_people(message: Message) -> str:
    """Give the text of a message as people read it; empty when it says nothing to them."""
    if message.role is Role.ASSISTANT:
        return "" if is_control_word(message.text) else message.text
    source = with_step(message).provenance
    if source is None or message.role is not Role.USER:
        return message.text
    match source.step:
        case FlowStep.ANNOUNCE:
            return ""
        case FlowStep.ASK:  # the context for the model is a block of its own
            return next((block.text for block in message.content if isinstance(block, TextBlock)), "")
        case FlowStep.TURN | FlowStep.LATE_REPLY:
            return "\n".join(unfenced(message.text))
        case FlowStep.FAILURE:
            return f"(no reply: {' '.join(unfenced(message.text))})"
        case FlowStep.WAKE:
            return "\n\n".join(unfenced(message.text))
    return message.text
