"""A scripted model that knows only what it is sent: it answers questions about facts, and writes summaries.

`fact <name> is <value>` in any message is a fact. `what is <name>?` asks for one. A summary lists the facts of what is
summarised. Every request is checked for being a good sequence (`agents/scripted.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from backchannel.agents.scripted import Scripted, ScriptedModel
from backchannel.core.compaction.prompting import asks_for_summary as is_summary
from backchannel.core.contracts import ModelRequest

FACT = re.compile(r"fact (\w+) is (\w+)")
QUESTION = re.compile(r"what is (\w+)\?")
UNKNOWN = "I do not know"
__all__ = ["FACT", "QUESTION", "UNKNOWN", "Remembering", "answer", "is_summary", "summarise"]


class Remembering:
    """The replies of the model."""

    def __init__(
        self,
        *,
        window: int = 8_000,
        ref: str = "scripted/test",
        summary: Callable[[ModelRequest], Scripted] | None = None,
        reply: Callable[[ModelRequest], Scripted | None] = lambda request: None,
    ) -> None:
        self._summary = summary or summarise
        self._reply = reply
        self.summaries: list[ModelRequest] = []
        self.asked: list[ModelRequest] = []
        self.model = ScriptedModel(ref, replies=self.decide, context_window=window)

    def decide(self, request: ModelRequest) -> Scripted:
        if is_summary(request):
            self.summaries.append(request)
            return self._summary(request)
        self.asked.append(request)
        return self._reply(request) or answer(request)


def answer(request: ModelRequest) -> str:
    """Answer the last question from the messages."""
    text = "\n".join(message.text for message in request.messages)
    questions = QUESTION.findall(request.messages[-1].text)
    if not questions:
        return "noted"
    facts: dict[str, str] = dict(FACT.findall(text))
    return facts.get(questions[-1], UNKNOWN)


def summarise(request: ModelRequest) -> Scripted:
    """List the facts of a conversation."""
    facts = dict(FACT.findall(request.messages[0].text))
    return "\n".join(["What was said:", *(f"fact {name} is {value}" for name, value in facts.items())])
