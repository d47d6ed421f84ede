"""The slots of runs, and the waits that release them.

A run that waits for another session or for a person releases its slot, and keeps its lane. Afterwards it takes the next
free slot before any queued run. `core/policy/slots.py` decides which session is next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from backchannel.core.keys import SessionKey
from backchannel.core.policy.slots import SlotShares


class RunSlots:
    """The slots of runs. Runs of sub-agents have a second limit of their own."""

    def __init__(self, runs: SlotShares, subagents: SlotShares) -> None:
        self.runs = runs
        self.subagents = subagents
        self._returning: list[tuple[asyncio.Future[None], SessionKey]] = []
        """Runs that come back from a wait and need a slot, in order."""
        self._pauses: Counter[str] = Counter()
        """How many calls of a run wait, by its id: while any does, it has no slot."""
        self._listeners: list[Callable[[], None]] = []

    def listen(self, on_free: Callable[[], None]) -> None:
        """Tell a function, soon after, that a slot is free."""
        self._listeners.append(on_free)

    @property
    def returning(self) -> Sequence[SessionKey]:
        """The sessions whose run has waited, and needs a slot to go on."""
        return [session for _, session in self._returning]

    def is_paused(self, run_id: str) -> bool:
        """True if a run waits, and has no slot."""
        return run_id in self._pauses

    def may_start(self, key: SessionKey) -> bool:
        """True if the limit of sub-agents allows a run of this session."""
        return not key.is_subagent or self.subagents.is_open_to(key.agent)

    def has_room(self, key: SessionKey) -> bool:
        return self.runs.is_open_to(key.agent) and self.may_start(key)

    def take(self, key: SessionKey) -> bool:
        if not self.has_room(key):
            return False
        self._take_above_limit(key)
        return True

    def _take_above_limit(self, key: SessionKey) -> None:
        """Take a slot for a run that cannot wait, even above the limit."""
        self.runs.take(key.agent)
        self.count_subagent(key)

    def count_subagent(self, key: SessionKey) -> None:
        """Count a run with a slot towards the limit of sub-agents, if it is one."""
        if key.is_subagent:
            self.subagents.take(key.agent)

    def give_back(self, key: SessionKey) -> None:
        """Release a slot. A run that returns from a wait gets it, else the next queued run."""
        self.runs.give_back(key.agent)
        if key.is_subagent:
            self.subagents.give_back(key.agent)
        for entry in list(self._returning):
            slot_given, returning = entry
            if slot_given.done():
                self._returning.remove(entry)
            elif self.take(returning):
                self._returning.remove(entry)
                slot_given.set_result(None)
        # Queued runs start later, so that a run that waited for this one wakes first and takes the slot.
        for on_free in self._listeners:
            asyncio.get_running_loop().call_soon(on_free)

    @asynccontextmanager
    async def paused(self, key: str, run_id: str) -> AsyncIterator[None]:
        """Release a run's slot while the run waits. The run keeps its lane.

        Afterwards it takes the next free slot before any queued run. Several calls of one run may wait at the same
        time. The first releases the run's slot, and the last takes it again.
        """
        session, has_slot = SessionKey.stored(key), False
        self._pauses[run_id] += 1
        if self._pauses[run_id] == 1:
            self.give_back(session)
        try:
            yield
            if self._pauses[run_id] == 1:
                has_slot = True  # also if the run is stopped while it waits for a slot
                await self._take_back(session)
        except BaseException:  # keep the count of slots right for any error
            if self._pauses[run_id] == 1 and not has_slot:
                has_slot = True
                self._take_above_limit(session)  # the run is being stopped, and must be able to end
            raise
        finally:
            self._pauses[run_id] -= 1
            if self._pauses[run_id] == 0:
                del self._pauses[run_id]
            elif has_slot:
                self.give_back(session)  # another call of the run has begun to wait meanwhile

    async def _take_back(self, session: SessionKey) -> None:
        if self.take(session):
            return
        slot_given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returning.append((slot_given, session))
        try:
            await slot_given
        except BaseException:  # the run is stopped while it waits: keep the count right
            if not slot_given.done() or slot_given.cancelled():
                self._take_above_limit(session)
            raise
