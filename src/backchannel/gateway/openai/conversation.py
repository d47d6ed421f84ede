"""What a request asks of an agent: which part of the client's history is new, and what is only told along.

Clients send the whole conversation each time. A session that remembers it takes what came after the last reply; a
fresh one is told all of it. `system` and `developer` messages are instructions for this request, in either case.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from backchannel.core.messages import Block, ImageBlock, text_content
from backchannel.errors import InvalidRequest
from backchannel.gateway.openai.images import MAX_IMAGES


class Speaker(Enum):
    INSTRUCTOR = auto()
    USER = auto()
    ASSISTANT = auto()
    TOOL = auto()


class Line(msgspec.Struct, frozen=True):
    """Something that was said, in whichever form the client wrote it."""

    speaker: Speaker
    text: str
    images: tuple[ImageBlock, ...] = ()


class Question(msgspec.Struct, frozen=True):
    """What the agent gets: a message, and instructions for this run."""

    content: tuple[Block, ...]
    instructions: str | None


def build_question(lines: Sequence[Line], *, remembers: bool) -> Question:
    """Make the message of a run; `remembers` says that the session knows what was said before the last reply.

    Raises:
        InvalidRequest: nothing new was said.
    """
    told = [line.text for line in lines if line.speaker is Speaker.INSTRUCTOR and line.text.strip()]
    said = [line for line in lines if line.speaker is not Speaker.INSTRUCTOR]
    start = max((i + 1 for i, line in enumerate(said) if line.speaker is Speaker.ASSISTANT), default=0)
    earlier, new = [] if remembers else said[:start], said[start:]
    images = [image for line in (*earlier, *new) for image in line.images]
    text = "\n\n".join(line.text for line in new if line.text)
    if not text.strip() and not any(line.images for line in new):
        raise InvalidRequest(
            "the conversation must end with something new: a message of the user, or a tool's result", param="messages"
        )
    if len(images) > MAX_IMAGES:
        raise InvalidRequest(f"a request has at most {MAX_IMAGES} images", param="messages")
    return Question((*text_content(_with_earlier(earlier, text)), *images), "\n\n".join(told) or None)


def _with_earlier(earlier: Sequence[Line], text: str) -> str:
    shown, count = [], 0
    for line in earlier:
        marks = [f"[image {count + n}]" for n in range(1, len(line.images) + 1)]
        count += len(marks)
        if words := " ".join([line.text, *marks]).strip():
            shown.append(f"{line.speaker.name.lower()}: {words}")
    if not shown:
        return text
    return "Earlier in this conversation:\n\n" + "\n\n".join(shown) + "\n\nNow:\n\n" + text


def describe_call(name: str, arguments: str) -> str:
    """Show a call of a tool that the client has, and the agent has not."""
    return f"[called {name}({arguments})]"


def describe_result(call: str | None, text: str) -> str:
    """Show what such a tool gave back."""
    return f"[result of {call or 'a tool'}]\n{text}"
