"""How far the events of a run have come, and what its `chat` events say to whom.

A run may say something, call tools, and go on: each part is a message of its own in the transcript. Who subscribed to
the messages of the session has the parts before from there, and gets the present one. All others, such as OpenClaw's
terminal UI, its ACP bridge and nodes, show nothing but `chat` events, and get all parts, one below the other.
"""

from __future__ import annotations

from typing import NamedTuple

from backchannel.core.commands.control_words import is_control_word
from backchannel.core.messages import Message, Role, text_content, text_of
from backchannel.core.runs import Run, RunState
from backchannel.wire.events import ShownMessage

_BETWEEN = "\n\n"
"""What stands between two parts that are shown as one text."""


class ChatPiece(NamedTuple):
    """What a delta says: the text so far, what is new of it, and whether it takes the place of another text."""

    text: str
    new: str
    replaces: bool = False


class RunStream:
    """How much was sent of one run so far."""

    __slots__ = ("growing", "is_started", "said", "seq", "stop_reason")

    def __init__(self) -> None:
        self.seq = 0
        self.is_started = False
        self.stop_reason: str | None = None
        """Why the newest message of the model ended."""
        self.said = ""
        """What the run has said to people in the messages that have ended: some are followed by calls of tools."""
        self.growing = ""
        """What it has said in the message that it is writing."""

    def next(self) -> int:
        self.seq += 1
        return self.seq

    def end_message(self, message: Message) -> None:
        """Keep what a message of the run said: the next one follows it."""
        self.stop_reason = message.stop_reason
        self.growing = ""
        text = text_of(message.content)
        if text and not is_control_word(text):
            self.said = self._following(text)

    def pieces(self, text: str, new: str) -> tuple[ChatPiece, ChatPiece]:
        """Give what has grown, for who is shown all parts and for who is shown the present one."""
        self.growing = text
        if not self.said:
            return ChatPiece(text, new), ChatPiece(text, new)
        is_first = text == new
        return (
            ChatPiece(self._following(text), _BETWEEN + new if is_first else new),
            ChatPiece(text, new, replaces=is_first),
        )

    def last_said(self, run: Run) -> tuple[ShownMessage | None, ShownMessage | None]:
        """Show the reply of a run, with all parts as far as they were heard, and alone.

        An internal one speaks by a delivery instead.
        """
        if run.kind.is_internal or not (run.reply or run.state is RunState.OK):
            return None, None
        reply = run.reply or ""
        if is_control_word(reply):  # meant for the gateway, not for a person
            reply = ""
        all_parts = self.said if self.said.rstrip().endswith(reply.rstrip()) else reply
        at = run.ended_at or 0
        return shown(all_parts, at), shown(reply, at)

    def _following(self, text: str) -> str:
        """Put a text below what was said before it."""
        return f"{self.said}{_BETWEEN}{text}" if self.said and text else self.said or text


def shown(text: str, at: int) -> ShownMessage:
    """Show a text as a message of the assistant."""
    return ShownMessage(role=Role.ASSISTANT, content=text_content(text), timestamp=at)
