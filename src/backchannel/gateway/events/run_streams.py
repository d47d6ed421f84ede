"""The text of a run for its `chat` events.

A run may say something, call tools, and go on: each part is a message of its own in the transcript. A client that
subscribed to the session's messages has the earlier parts from there, and gets the present part. Other clients, such as
OpenClaw's terminal UI, its ACP bridge and nodes, show only `chat` events, and get all parts, one below the other.
"""

from __future__ import annotations

from typing import NamedTuple

from backchannel.core.commands.control_words import is_control_word
from backchannel.core.messages import Message, Role, text_content, text_of
from backchannel.core.runs import Run, RunState
from backchannel.wire.events import ShownMessage

_BETWEEN = "\n\n"
"""The separator of two parts in one text."""


class ChatPiece(NamedTuple):
    """A delta: the text so far, its new part, and whether it replaces another text."""

    text: str
    new: str
    replaces: bool = False


class RunStream:
    """The sent text and events of one run."""

    __slots__ = ("growing", "is_started", "said", "seq", "stop_reason")

    def __init__(self) -> None:
        self.seq = 0
        self.is_started = False
        self.stop_reason: str | None = None
        """The stop reason of the model's newest message."""
        self.said = ""
        """The text of its finished messages, which tool calls may follow."""
        self.growing = ""
        """The text of its unfinished message."""

    def next(self) -> int:
        self.seq += 1
        return self.seq

    def end_message(self, message: Message) -> None:
        """Add the text of a finished message."""
        self.stop_reason = message.stop_reason
        self.growing = ""
        text = text_of(message.content)
        if text and not is_control_word(text):
            self.said = self._following(text)

    def pieces(self, text: str, new: str) -> tuple[ChatPiece, ChatPiece]:
        """Give the new text, once for clients that show all parts and once for those that show the present part."""
        self.growing = text
        if not self.said:
            return ChatPiece(text, new), ChatPiece(text, new)
        is_first = text == new
        return (
            ChatPiece(self._following(text), _BETWEEN + new if is_first else new),
            ChatPiece(text, new, replaces=is_first),
        )

    def last_said(self, run: Run) -> tuple[ShownMessage | None, ShownMessage | None]:
        """Show the reply of a run, with all known parts and alone.

        An internal run has none: it speaks by a delivery.
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
        """Put a text below the earlier parts."""
        return f"{self.said}{_BETWEEN}{text}" if self.said and text else self.said or text


def shown(text: str, at: int) -> ShownMessage:
    """Show a text as a message of the assistant."""
    return ShownMessage(role=Role.ASSISTANT, content=text_content(text), timestamp=at)
