"""Gates: calls take slots here, wait for them, and can be ended by the operator.

`core/policy/slots.py` has the rule. A `Gate` is one kind of call. Slots are in memory only: a new process starts with
all slots free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Protocol

from backchannel.core.contracts import Clock
from backchannel.core.policy.slots import SlotQueue, SlotShares
from backchannel.errors import EndedByOperator
from backchannel.storage.ids import new_id
from backchannel.wire.rows import SlotCount, SlotUse

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


class Gate:
    """The slots of one kind of call."""

    def __init__(self, kind: str, shares: SlotShares, clock: Clock) -> None:
        self.kind = kind
        self.shares = shares
        self.clock = clock
        self._slots: set[CallSlot] = set()
        """Those that are had, or waited for."""
        self._queue: SlotQueue[asyncio.Future[None]] = SlotQueue()

    def slot(self, agent: str, session: str, what: str, run_id: str | None = None) -> CallSlot:
        """Give a slot for an `async with`, which waits for it and has it for what is done inside."""
        return CallSlot(self, agent, session, what, run_id)

    def take_now(
        self, agent: str, session: str, what: str, run_id: str | None, end: Callable[[], Awaitable[bool]]
    ) -> CallSlot | None:
        """Take a slot without waiting, to be given back by its `give_back`; None if there is none.

        The operator ends it by `end`, which says whether there was something to end.
        """
        if not self.shares.may_take(agent, session):
            return None
        self.shares.take(agent, session)
        slot = CallSlot(self, agent, session, what, run_id, end)
        self._slots.add(slot)
        return slot

    async def enter(self, slot: CallSlot) -> None:
        """Take a slot, and wait for it if need be."""
        self._slots.add(slot)
        if self.shares.may_take(slot.agent, slot.session):  # whoever waits may not: all that may were given theirs
            self.shares.take(slot.agent, slot.session)
            return
        slot.is_waiting = True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.add(slot.agent, slot.session, turn)
        try:
            await asyncio.shield(turn)  # cancelled, it would be found in the queue, and could not be given its slot
        except BaseException:  # it is ended while it waits: what it was given meanwhile is given on
            self._slots.discard(slot)
            if turn.done():
                self._give_on(slot)
            else:
                self._queue.remove(slot.agent, slot.session, turn)
            raise
        slot.is_waiting, slot.since = False, self.clock.now_ms()

    def leave(self, slot: CallSlot) -> None:
        """Give a slot back; for the second time that does nothing."""
        if slot in self._slots:
            self._slots.discard(slot)
            self._give_on(slot)

    def _give_on(self, slot: CallSlot) -> None:
        self.shares.give_back(slot.agent, slot.session)
        while (turn := self._queue.next(self.shares)) is not None:
            turn.set_result(None)

    def slot_counts(self) -> Iterator[SlotCount]:
        shares = self.shares
        waiting = len(self._queue)
        yield SlotCount(kind=self.kind, limit=shares.limit, own=shares.own, used=shares.used, waiting=waiting)

    def slot_uses(self) -> Iterator[SlotUse]:
        return (slot.shown() for slot in self._slots)

    async def end_use(self, id: str) -> bool:
        found = next((slot for slot in self._slots if slot.id == id), None)
        return found is not None and await found.end()


class CallSlot:
    """The slot of one call: had inside an `async with`, or from `Gate.take_now` until `give_back`."""

    def __init__(
        self,
        gate: Gate,
        agent: str,
        session: str,
        what: str,
        run_id: str | None,
        end: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.agent = agent
        self.session = session
        self.since = gate.clock.now_ms()
        self.is_waiting = False
        self._gate = gate
        self._what = what
        self._run_id = run_id
        self._end = end
        self._task: asyncio.Task[Any] | None = None
        self._cancels_before = 0
        self._is_ended = False

    @cached_property
    def id(self) -> str:
        return new_id()

    def shown(self) -> SlotUse:
        return SlotUse(
            id=self.id,
            kind=self._gate.kind,
            agent_id=self.agent,
            session_key=self.session,
            what=self._what,
            since=self.since,
            run_id=self._run_id,
            is_waiting=self.is_waiting,
        )

    def give_back(self) -> None:
        self._gate.leave(self)

    async def end(self) -> bool:
        """End the call on behalf of the operator; returns whether there was something to end."""
        if self._end is not None:
            return await self._end()
        if self._task is not None and not self._is_ended:
            self._is_ended = True
            self._task.cancel()
        return True

    # As `asyncio.timeout` does it: our own cancellation becomes an error of the call, and any other stays what it is.

    async def __aenter__(self) -> None:
        """Wait for the slot.

        Raises:
            EndedByOperator: an operator ended the call while it waited.
        """
        task = self._task = asyncio.current_task()
        assert task is not None
        self._cancels_before = task.cancelling()
        try:
            await self._gate.enter(self)
        except asyncio.CancelledError:
            if self._takes_back_cancel():
                raise EndedByOperator(had_begun=False) from None
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Give the slot back.

        Raises:
            EndedByOperator: an operator ended the call.
        """
        self._gate.leave(self)
        if self._takes_back_cancel() and kind is asyncio.CancelledError:
            raise EndedByOperator(had_begun=True) from None

    def _takes_back_cancel(self) -> bool:
        """Whether the task is cancelled for this slot alone; then it is so no more."""
        return self._is_ended and self._task is not None and self._task.uncancel() <= self._cancels_before
