"""A gate under cancellation: a slot is never lost or doubled, and only the operator's end is told as such."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from backchannel.agents.gates import Gate, Gates
from backchannel.errors import EndedByOperator
from backchannel.runtime.clocks import SystemClock

pytestmark = pytest.mark.anyio


def gate_of(limit: int) -> tuple[Gates, Gate]:
    gates = Gates(lambda: 1, SystemClock())
    return gates, gates.gate("test", limit, grows=False)


class Work:
    """A call that has a slot until it is let go."""

    def __init__(self, gate: Gate, session: str = "s") -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.task = asyncio.create_task(self._work(gate, session))

    async def _work(self, gate: Gate, session: str) -> str:
        async with gate.slot("agent", session, "work"):
            self.begun.set()
            await self.go_on.wait()
        return "done"


async def turns() -> None:
    """Let everything that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_call_that_is_cancelled_while_it_waits_leaves_the_others_their_turn() -> None:
    _, gate = gate_of(1)
    first, second, third = Work(gate), Work(gate), Work(gate)
    await turns()
    second.task.cancel()
    first.go_on.set()
    await turns()
    assert second.task.cancelled() and third.begun.is_set()
    third.go_on.set()
    assert await third.task == "done"
    assert gate.shares.used == 0 and not list(gate.slot_uses())


async def test_a_slot_that_is_given_to_a_call_as_it_is_cancelled_goes_on_to_the_next() -> None:
    _, gate = gate_of(1)
    first, second, third = Work(gate), Work(gate), Work(gate)
    await turns()
    first.go_on.set()
    await first.task  # the second has been given the slot, and has not gone on yet
    second.task.cancel()
    await turns()
    assert third.begun.is_set() and gate.shares.used == 1
    third.go_on.set()
    await third.task
    assert gate.shares.used == 0


async def test_an_end_by_the_operator_is_an_error_of_the_call_and_no_cancellation() -> None:
    gates, gate = gate_of(1)
    works, waits = Work(gate), Work(gate)
    await turns()
    working, waiting = gates.uses()
    assert (working.is_waiting, waiting.is_waiting) == (False, True)
    for use in (waiting, working, working):  # for the second time it does nothing more
        assert await gates.end(use.id)
    for work, had_begun in ((works, True), (waits, False)):
        with pytest.raises(EndedByOperator) as ended:
            await work.task
        assert ended.value.had_begun is had_begun
    assert gate.shares.used == 0 and not await gates.end(working.id)


async def test_a_call_that_is_cancelled_as_well_is_cancelled() -> None:
    gates, gate = gate_of(1)
    work = Work(gate)
    await turns()
    (use,) = gates.uses()
    await gates.end(use.id)
    work.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work.task
    assert gate.shares.used == 0


async def test_a_call_that_was_ended_can_go_on_after_it() -> None:
    gates, gate = gate_of(1)
    cleaned = asyncio.Event()

    async def call() -> int:
        with contextlib.suppress(EndedByOperator):
            async with gate.slot("agent", "s", "work"):
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0)
                    cleaned.set()
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    calling = asyncio.create_task(call())
    await turns()
    await gates.end(gates.uses()[0].id)
    assert await calling == 0 and cleaned.is_set()
