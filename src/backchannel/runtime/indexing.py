"""Indexing: takes messages into the index of words, a few at a time.

New messages may wait for the index (`storage/full_text.py`). Messages that an older version wrote all do.
Searches read a small number of waiting messages themselves. So the service begins when more than that wait, and stops
when fewer do. It has no timer. On a shared database, the gateway with the timers does it.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from backchannel.core.contracts import Clock
from backchannel.core.facts import MessageAppended
from backchannel.runtime.cluster.duties import Duties
from backchannel.runtime.supervisor import RESTART, DatabaseWait, Tasks
from backchannel.service import Reactions, Service, SupervisedLoop
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

ENOUGH = 256
"""How many messages wait before they are indexed together."""
BATCH = 256
"""How many are indexed in one transaction, at most: some milliseconds of work."""
_TOLD_FROM = 2 * ENOUGH


class Indexing(Service):
    """Keeps the index of words up to date."""

    name = "search"

    def __init__(self, store: Store, clock: Clock, wait: DatabaseWait, duties: Duties) -> None:
        self._store = store
        self._wait = wait
        self._duties = duties
        self._appended = 0
        self._remaining = 0
        self._wakes = asyncio.Event()
        self._tasks = Tasks()
        self._loop = SupervisedLoop(self.name, clock, RESTART)
        self.kept = (self._loop,)
        duties.listen(self._wakes.set)

    @property
    def remaining(self) -> int:
        """How many messages of older state are still to be indexed; 0 when only the newest wait."""
        return self._remaining

    async def start(self) -> None:
        self._wakes.set()
        self._tasks.spawn(self._loop.keep(self._work), name="search index")

    async def halt(self) -> None:
        await self._tasks.cancel()

    async def close(self) -> None:
        await self._tasks.cancel()

    def reactions(self) -> Reactions:
        return {MessageAppended: self._on_message}

    def _on_message(self, fact: MessageAppended) -> None:
        self._appended += 1
        if self._appended >= ENOUGH:
            self._wakes.set()

    async def _work(self) -> None:
        while True:
            await self._wakes.wait()
            self._wakes.clear()
            self._appended = 0
            self._loop.recovered()
            if self._duties.has_timers:
                await self._index()

    async def _index(self) -> None:
        """Index all that waits, if it is enough to be worth it."""
        count = await self._wait.durably(self._store.count_unindexed)
        if count < ENOUGH:
            return
        is_told = count >= _TOLD_FROM
        self._remaining = count if is_told else 0
        if is_told:
            log.info("older messages are being indexed for the search", messages=count)
        while count > 0 and (entries := await self._wait.durably(partial(self._store.unindexed, BATCH))):
            await self._wait.durably(partial(self._store.take_into_index, entries))
            count -= len(entries)
            self._remaining = max(0, self._remaining - len(entries))
            await asyncio.sleep(0)  # whoever waits to write goes first
        self._remaining = 0
        if is_told:
            log.info("all messages are indexed for the search")
