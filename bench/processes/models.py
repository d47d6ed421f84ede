"""Models that cost nothing but the time they are told to take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from backchannel.core.contracts import ModelEvent, ModelReply, ModelRequest, Price, TextDelta
from backchannel.core.messages import TextBlock, Usage

REPLY = "All quiet: the three ships that were due have come in, and nobody has asked for the pilot since noon."
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


FREE, SECOND = TimedModel("bench/free", 0), TimedModel("bench/second", 1.0)
