"""An agent whose runs stay at work until they may end."""

from __future__ import annotations

import asyncio

from backchannel.agents.registry import FunctionContext
from backchannel.gateway.app import Gateway


class Slow:
    """Tells which messages it has begun to answer, and answers those that may end."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.may_end: set[str] = set()
        self._changed = asyncio.Event()

    def equip(self, gateway: Gateway) -> None:
        gateway.add_agent("main", self.answer)

    async def answer(self, context: FunctionContext) -> str:
        self.began.append(context.text)
        self._tell()
        while context.text not in self.may_end:
            await self._changed.wait()
        return "done"

    def let_end(self, *names: str) -> None:
        self.may_end.update(names)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until_began(self, *names: str) -> None:
        async with asyncio.timeout(20):
            while set(self.began) != set(names):
                await self._changed.wait()
