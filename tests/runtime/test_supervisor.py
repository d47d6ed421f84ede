"""The supervisor: services start, halt and close in one order, and what fails is started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.facts import Fact, LaneFree, TimerSet
from backchannel.core.supervision import Backoff
from backchannel.errors import FenceLost, Unavailable
from backchannel.gateway.condition import examine
from backchannel.runtime.supervisor import DatabaseWait, Supervisor
from backchannel.service import Reactions, Service, SupervisedLoop
from tests.support.clocks import StageClock
from tests.support.gateways import echo, running
from tests.support.logs import captured_logs
from tests.support.weak import make_loops_weak, see_loops_recover

pytestmark = pytest.mark.anyio


class Told(Service):
    """A service that writes down what it is told."""

    def __init__(self, name: str, told: list[str], kinds: tuple[type[Fact], ...] = ()) -> None:
        self.name = name
        self._told = told
        self._kinds = kinds

    async def start(self) -> None:
        self._told.append(f"start {self.name}")

    async def halt(self) -> None:
        self._told.append(f"halt {self.name}")

    async def close(self) -> None:
        self._told.append(f"close {self.name}")

    def reactions(self) -> Reactions:
        return {kind: lambda fact: self._told.append(self.name) for kind in self._kinds}


class Failing:
    """Work that fails a few times, and then holds."""

    def __init__(self, times: int, done: Callable[[], None], error: Exception) -> None:
        self.tries = 0
        self.held = asyncio.Event()
        self._times = times
        self._done = done
        self._error = error

    async def __call__(self) -> None:
        self.tries += 1
        if self.tries <= self._times:
            raise self._error
        self._done()
        self.held.set()
        await asyncio.Event().wait()


async def test_services_start_in_order_and_close_in_reverse() -> None:
    told: list[str] = []
    supervisor = Supervisor([Told("first", told), Told("second", told)], StageClock())
    await supervisor.start()
    await supervisor.close()
    assert told == ["start first", "start second", "close second", "close first"]


async def test_after_a_lost_lease_services_are_halted_and_started_again() -> None:
    told: list[str] = []
    supervisor = Supervisor([Told("first", told), Told("second", told)], StageClock())
    await supervisor.start()
    await supervisor.halt()
    assert (supervisor.is_halted, supervisor.is_open, supervisor.health()["first"].is_up) == (True, False, False)
    await supervisor.start()
    assert (supervisor.is_halted, supervisor.is_open, supervisor.health()["first"].is_up) == (False, True, True)
    assert told[2:] == ["halt first", "halt second", "start first", "start second"]


class Looping(Told):
    """A service with a loop that halts with it."""

    def __init__(self, name: str, clock: StageClock) -> None:
        super().__init__(name, [])
        self.kept = (SupervisedLoop(name, clock, Backoff(1, 1)),)


class Steady(Service):
    """A service that a lost lease does not touch."""

    name = "steady"


async def test_while_halted_the_loops_of_halted_services_are_down_and_all_else_is_up() -> None:
    clock = StageClock()
    supervisor = Supervisor([Told("plain", []), Looping("loop", clock), Steady()], clock)
    await supervisor.start()
    await supervisor.halt()
    assert {name: state.is_up for name, state in supervisor.health().items()} == {
        "plain": False,
        "loop": False,
        "steady": True,
    }
    await supervisor.start()
    assert all(state.is_up for state in supervisor.health().values())


async def test_nothing_starts_after_the_close() -> None:
    told: list[str] = []
    supervisor = Supervisor([Told("only", told)], StageClock())
    await supervisor.start()
    await supervisor.close()
    await supervisor.halt()
    await supervisor.start()
    assert not supervisor.is_open and not supervisor.is_halted
    assert told == ["start only", "close only", "halt only"]


def test_a_fact_reaches_its_reactions_in_the_order_of_the_services() -> None:
    told: list[str] = []
    services = [Told("waits", told, (LaneFree,)), Told("lanes", told, (LaneFree, TimerSet))]
    table = Supervisor(services, StageClock()).reactions()
    for react in table[LaneFree]:
        react(LaneFree("agent:main:main"))
    assert told == ["waits", "lanes"] and len(table[TimerSet]) == 1


async def test_what_fails_is_started_again_after_pauses_that_grow_and_its_traceback_is_logged_once() -> None:
    clock = StageClock.still(1_000_000)
    kept = SupervisedLoop("weak", clock, Backoff(1.0, 5.0))
    work = Failing(4, kept.recovered, OSError("the line is dead"))
    with captured_logs() as logs:
        task = asyncio.create_task(kept.keep(work))
        async with asyncio.timeout(20):
            await work.held.wait()
        task.cancel()
    assert clock.slept == [1.0, 2.0, 4.0, 5.0]
    assert [line["event"] for line in logs] == ["a service failed"] * 4
    assert [line.get("exc_info") is not None for line in logs] == [True, False, False, False]
    assert kept.health.is_up and kept.health.error == "OSError: the line is dead"
    assert kept.health.since_ms == 1_012_000 and kept.health.next_try_ms is None


async def test_while_it_pauses_it_is_down_and_says_when_it_is_tried_again() -> None:
    clock = StageClock.held("2026-01-01T00:00:00")
    kept = SupervisedLoop("weak", clock, Backoff(8.0, 60.0))
    task = asyncio.create_task(kept.keep(Failing(1, kept.recovered, OSError("gone"))))
    async with asyncio.timeout(20):
        await clock.sleeping.wait()
    assert not kept.health.is_up and kept.health.since_ms == clock.now_ms()
    assert kept.health.next_try_ms == clock.now_ms() + 8000
    task.cancel()


async def test_a_failure_counts_as_the_first_after_it_was_up_for_long_enough() -> None:
    clock = StageClock.still(1_000_000)
    kept = SupervisedLoop("weak", clock, Backoff(1.0, 60.0, steady_s=30.0))
    ups = iter([0.0, 29.0, 31.0])

    async def work() -> None:
        up_s = next(ups, None)
        if up_s is None:
            return
        kept.recovered()
        clock.move_on(up_s)
        raise OSError("gone")

    await kept.keep(work)
    assert clock.slept == [1.0, 2.0, 1.0]


async def test_the_wait_for_the_database_retries_until_it_is_back_and_says_so(tmp_path: Path) -> None:
    clock = StageClock()

    async def unit() -> str:
        assert wait.health()["database"].is_up is (not clock.slept)
        if len(clock.slept) < 2:
            raise Unavailable("the disk is full")
        return "done"

    async with running(tmp_path, ScriptedModel(replies=echo)) as gateway:
        wait = DatabaseWait(gateway.store, clock)
        with captured_logs() as logs:
            assert await wait.durably(unit) == "done"
    assert clock.slept == [1.0, 1.0]
    assert [line["event"] for line in logs] == ["waiting for the database"], "once a minute"
    assert wait.health()["database"].is_up and wait.health()["database"].error == "the disk is full"


async def test_a_fault_is_retried_only_where_somebody_is_told_of_it(tmp_path: Path) -> None:
    clock, told = StageClock(), list[Exception]()

    async def unit() -> str:
        if len(told) < 3:
            raise ValueError("a fault of ours")
        return "done"

    async with running(tmp_path, ScriptedModel(replies=echo)) as gateway:
        wait = DatabaseWait(gateway.store, clock)
        with pytest.raises(ValueError, match="a fault of ours"):
            await wait.durably(unit)
        assert await wait.durably(unit, told.append) == "done"
    assert clock.slept == [1.0, 2.0, 4.0]


async def test_nobody_waits_for_a_store_that_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=echo)) as gateway:
        store = gateway.store
    clock = StageClock()
    kept = SupervisedLoop("weak", clock, Backoff(1.0, 1.0))
    wait = DatabaseWait(store, clock)
    with pytest.raises(FenceLost):
        await wait.durably(store.sign_of_life)
    await kept.keep(lambda: wait.durably(store.sign_of_life))  # it ends, and is not started again
    assert clock.slept == []


async def test_the_services_of_a_gateway_are_all_up_and_one_that_fails_is_a_problem(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=echo)) as gateway:
        health = gateway.parts.supervisor.health()
        working = ["releases", "compaction", "lanes", "recovery", "timers", "search", "watchdog"]
        expected = ["database", "drafts", "outbox", *working, "channels"]
        assert [name for name in health if name != "mcp"] == expected
        assert all(each.is_up for each in health.values())
        gateway.runtime._recovery._kept.fell("a fault of ours")
        (problem,) = (await examine(gateway.parts)).problems
    assert problem.code == "service_down" and problem.message == "The service recovery is down: a fault of ours."


async def test_every_loop_of_a_gateway_is_up_again_after_one_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = make_loops_weak(monkeypatch)
    async with running(tmp_path, ScriptedModel(replies=echo)) as gateway:
        assert await see_loops_recover([gateway], failed) == {"recovery", "timers", "search"}
