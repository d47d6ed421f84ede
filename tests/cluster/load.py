"""Gateways under load: messages are sent to each of them, and what was accepted is remembered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from backchannel.errors import Unavailable
from backchannel.gateway.app import Gateway
from tests.cluster.member import come_to_rest, open_member, talk

LEASE_S = 2.0
PATIENCE_S = 60.0
TALKERS = 3


class Load:
    """Gateways to which messages are sent, and what was answered."""

    def __init__(self, gateways: list[Gateway]) -> None:
        self.gateways = gateways
        self.accepted: list[tuple[str, str]] = []
        self._progress = asyncio.Event()

    def on_accepted(self, run_id: str, session: str) -> None:
        self.accepted.append((run_id, session))
        self._progress.set()

    async def more(self, count: int) -> None:
        """Wait until so many more messages were accepted."""
        wanted = len(self.accepted) + count
        async with asyncio.timeout(PATIENCE_S):
            while len(self.accepted) < wanted:
                self._progress.clear()
                await self._progress.wait()

    async def are_seen(self, ready: list[bool]) -> None:
        """Wait until `/readyz` says so: a commit of the last second counts as proof."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.are_ready() != ready:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.05)

    async def are_ready(self) -> list[bool]:
        """Ask as `/readyz` does."""
        answers = await asyncio.gather(
            *(gateway.store.check_writable() for gateway in self.gateways), return_exceptions=True
        )
        assert all(answer is None or isinstance(answer, Unavailable) for answer in answers), answers
        return [answer is None for answer in answers]


@asynccontextmanager
async def under_load(folder: Path, url: str, names: Sequence[str] = ("one", "other")) -> AsyncIterator[Load]:
    """Let gateways work, two unless more are named; at the end everything comes to rest."""
    async with AsyncExitStack() as exits:
        opened = [await exits.enter_async_context(open_member(folder, url, name, LEASE_S)) for name in names]
        load = Load(opened)
        talkers = [
            asyncio.create_task(talk(gateway, f"{name}-{n}", load.on_accepted))
            for name, gateway in zip(names, opened, strict=True)
            for n in range(TALKERS)
        ]
        try:
            yield load
        finally:
            for talker in talkers:
                talker.cancel()
            await asyncio.gather(*talkers, return_exceptions=True)
        await come_to_rest(opened[0])
