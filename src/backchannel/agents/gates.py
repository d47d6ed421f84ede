"""Gates: where calls take their slots, wait for them, and can be ended by the operator.

`core/slots.py` has the rule. A `Gate` is one kind of call. Slots are in memory only: a process that dies takes with it
whatever had one, and the next begins with all of them free.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from backchannel.core.contracts import Clock
from backchannel.core.slots import SlotCount, SlotQueue, SlotShares, SlotUse
from backchannel.errors import EndedByOperator
from backchannel.storage.ids import new_id

EXEC, BACKGROUND, MODEL = "exec", "background", "model"
"""Kinds of slots; those of calls to an MCP server are `mcp:` and its name."""


class SlotKeeper(Protocol):
    """What keeps the slots of some kinds of work."""

    def slot_counts(self) -> Iterable[SlotCount]: ...

    def slot_uses(self) -> Iterable[SlotUse]:
        """Name the work that has a slot, and what waits for one."""
        ...

    async def end_use(self, id: str) -> bool:
        """End a piece of work on behalf of the operator; returns whether there was one with this id."""
        ...


class Gates:
    """The slots of every kind of work in this process."""

    def __init__(self, count_agents: Callable[[], int], clock: Clock) -> None:
        self._count_agents = count_agents
        self._clock = clock
        self._keepers: dict[str, SlotKeeper] = {}
        """By the name of their first kind."""

    def gate(self, kind: str, limit: int, *, of_session: int | None = None, grows: bool = True) -> Gate:
        """Make the gate of a kind of call."""
        gate = Gate(kind, SlotShares(limit, self._count_agents, of_session=of_session, grows=grows), self._clock)
        self.add(kind, gate)
        return gate

    def shares(self, limit: int) -> SlotShares:
        """Make slots, as many as a setting says, for what has a queue of its own."""
        return SlotShares(limit, self._count_agents)

    def add(self, kind: str, keeper: SlotKeeper) -> None:
        """Have a keeper of slots, in the place of an earlier one: a gateway may be entered again."""
        self._keepers[kind] = keeper

    def counts(self) -> list[SlotCount]:
        return [count for keeper in self._keepers.values() for count in keeper.slot_counts()]

    def uses(self) -> list[SlotUse]:
        """Name all work that has a slot or waits for one, the longest first."""
        uses = [use for keeper in self._keepers.values() for use in keeper.slot_uses()]
        return sorted(uses, key=lambda use: (use.is_waiting, use.since is None, use.since))

    async def end(self, id: str) -> bool:
        """End a piece of work on behalf of the operator; returns whether there was one with this id."""
        for keeper in self._keepers.values():
            if await keeper.end_use(id):
                return True
        return False


@dataclass(slots=True, eq=False)
class _Use:
    shown: SlotUse
    end: Callable[[], Awaitable[bool]]


class Gate:
    """The slots of one kind of call."""

    def __init__(self, kind: str, shares: SlotShares, clock: Clock) -> None:
        self.kind = kind
        self.shares = shares
        self._clock = clock
        self._uses: dict[str, _Use] = {}
        self._queue: SlotQueue[asyncio.Future[None]] = SlotQueue()

    @asynccontextmanager
    async def slot(self, agent: str, session: str, what: str, run_id: str | None = None) -> AsyncIterator[None]:
        """Wait for a slot, and have it for what is done inside.

        Raises:
            EndedByOperator: an operator ended it, at work or while it waited.
        """
        ending = asyncio.timeout(None)
        use = self._note(agent, session, what, run_id, lambda: _expire(ending))
        try:
            async with ending:
                await self._take(use, agent, session)
                try:
                    yield
                finally:
                    self._give_back(agent, session)
        except TimeoutError:
            if not ending.expired():
                raise
            raise EndedByOperator(had_begun=not use.shown.is_waiting) from None
        finally:
            del self._uses[use.shown.id]

    def take_now(
        self, agent: str, session: str, what: str, run_id: str | None, end: Callable[[], Awaitable[bool]]
    ) -> Callable[[], None] | None:
        """Take a slot without waiting; returns what gives it back, or None if there is none.

        The operator ends it by `end`, which says whether there was something to end.
        """
        if not self.shares.may_take(agent, session):
            return None
        self.shares.take(agent, session)
        use = self._note(agent, session, what, run_id, end)

        def give_back() -> None:
            if self._uses.pop(use.shown.id, None) is not None:  # not for the second time
                self._give_back(agent, session)

        return give_back

    def _note(
        self,
        agent: str,
        session: str,
        what: str,
        run_id: str | None,
        end: Callable[[], Awaitable[bool]],
    ) -> _Use:
        shown = SlotUse(
            id=new_id(),
            kind=self.kind,
            agent_id=agent,
            session_key=session,
            what=what,
            since=self._clock.now_ms(),
            run_id=run_id,
        )
        use = self._uses[shown.id] = _Use(shown, end)
        return use

    async def _take(self, use: _Use, agent: str, session: str) -> None:
        if self.shares.may_take(agent, session):  # whoever waits may not: all that may were given theirs
            self.shares.take(agent, session)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.add(agent, session, turn)
        use.shown = msgspec.structs.replace(use.shown, is_waiting=True)
        try:
            await asyncio.shield(turn)  # cancelled, it would be found in the queue, and could not be given its slot
        except BaseException:  # it is ended while it waits: what it was given meanwhile is given on
            if turn.done():
                self._give_back(agent, session)
            else:
                self._queue.remove(agent, session, turn)
            raise
        use.shown = msgspec.structs.replace(use.shown, is_waiting=False, since=self._clock.now_ms())

    def _give_back(self, agent: str, session: str) -> None:
        self.shares.give_back(agent, session)
        while (turn := self._queue.next(self.shares)) is not None:
            turn.set_result(None)

    def slot_counts(self) -> Iterator[SlotCount]:
        waiting = len(self._queue)
        shares = self.shares
        yield SlotCount(kind=self.kind, limit=shares.limit, own=shares.own, used=shares.used, waiting=waiting)

    def slot_uses(self) -> Iterator[SlotUse]:
        return (use.shown for use in self._uses.values())

    async def end_use(self, id: str) -> bool:
        use = self._uses.get(id)
        return use is not None and await use.end()


async def _expire(ending: asyncio.Timeout) -> bool:
    if ending.when() is None:  # not for the second time
        ending.reschedule(asyncio.get_running_loop().time())
    return True
