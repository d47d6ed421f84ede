"""Models that cost nothing but the time they are told to take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from backchannel.core.commands.control_words import ANNOUNCE_SKIP
from backchannel.core.contracts import ModelEvent, ModelReply, ModelRequest, Price, TextDelta
from backchannel.core.flows.exchange_texts import EXCHANGE_ANNOUNCE_LINE
from backchannel.core.messages import Role, TextBlock, ToolCallBlock, Usage

REPLY = "All quiet: the three ships that were due have come in, and nobody has asked for the pilot since noon."
_ASK = "ask "
_CALL = "call "
QUESTION = "What is the state of the harbour, and has anyone asked for the pilot?"


class TimedModel:
    """Says the same every time, after so many seconds."""

    context_window = 200_000
    price: Price | None = None

    def __init__(self, ref: str, takes_s: float) -> None:
        self.ref = ref
        self._takes_s = takes_s

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if self._takes_s:
            await asyncio.sleep(self._takes_s)
        yield TextDelta(REPLY)
        yield ModelReply(content=(TextBlock(text=REPLY),), usage=Usage(input=20, output=25), model=self.ref)


class AskingModel(TimedModel):
    """Asks the session that a message names, stays silent when it may announce, and else says the same every time."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1]
        text = last.text if last.role is Role.USER else ""
        asks, announces = text.startswith(_ASK), EXCHANGE_ANNOUNCE_LINE in text
        if not asks and not announces:
            async for event in super().stream(request):
                yield event
            return
        if self._takes_s:
            await asyncio.sleep(self._takes_s)
        if announces:
            yield self._end(TextBlock(text=ANNOUNCE_SKIP))
        else:
            arguments = {"sessionKey": text.removeprefix(_ASK), "message": QUESTION, "timeoutSeconds": 60}
            yield self._end(ToolCallBlock(id="ask", name="sessions_send", arguments=arguments))

    def _end(self, block: TextBlock | ToolCallBlock) -> ModelReply:
        return ModelReply(content=(block,), usage=Usage(input=20, output=25), model=self.ref)


def please_ask(target: str) -> str:
    """Make the message to an `AskingModel` that makes it ask a session."""
    return f"{_ASK}{target}"


class CallingModel(TimedModel):
    """Calls the tool that a message names, once, and else says the same every time."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1]
        if last.role is not Role.USER or not last.text.startswith(_CALL):
            async for event in super().stream(request):
                yield event
            return
        name, _, arguments = last.text.removeprefix(_CALL).partition(" ")
        block = ToolCallBlock(id="call", name=name, arguments=msgspec.json.decode(arguments))
        yield ModelReply(content=(block,), usage=Usage(input=20, output=25), model=self.ref)


def please_call(tool: str, arguments: dict[str, Any]) -> str:
    """Make the message to a `CallingModel` that makes it call a tool."""
    return f"{_CALL}{tool} {msgspec.json.encode(arguments).decode()}"


FREE, SECOND = TimedModel("bench/free", 0), TimedModel("bench/second", 1.0)
ASKS, ASKS_SECOND = AskingModel("bench/asks", 0), AskingModel("bench/asks-second", 1.0)
CALLS = CallingModel("bench/calls", 0)
