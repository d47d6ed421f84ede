"""Lanes: one run at a time in a session, many sessions at a time in a process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.runs import RunState
from backchannel.errors import SessionIdReplaced, ShuttingDown
from backchannel.gateway.app import Gateway
from backchannel.runtime import lanes
from tests.support.gateways import (
    MAIN,
    Heard,
    echo,
    ended,
    live_runs,
    request,
    running,
    session_of,
    settled,
    stored,
    texts_of,
    with_defaults,
)

pytestmark = pytest.mark.anyio


class Floor:
    """An agent whose runs stay until they are let go; tells who is there, and how many were there at most."""

    def __init__(self) -> None:
        self.present: list[str] = []
        self.order: list[str] = []
        self.most: Counter[str] = Counter()
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._changed = asyncio.Event()

    def equip(self, gateway: Gateway) -> None:
        gateway.add_agent("main", self._answer)

    async def _answer(self, context: FunctionContext) -> str:
        self.present.append(context.text)
        self.order.append(context.text)
        self.most["all"] = max(self.most["all"], len(self.present))
        self._tell()
        await self._gates[context.text].wait()
        self.present.remove(context.text)
        self._tell()
        return f"re: {context.text}"

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def let_go(self, *texts: str) -> None:
        for text in texts:
            self._gates[text].set()

    async def holds(self, *texts: str) -> None:
        """Wait until just these are there."""
        async with asyncio.timeout(20):
            while set(self.present) != set(texts):
                await self._changed.wait()


async def quiet(gateway: Gateway) -> None:
    """Let everything happen that can happen without anybody else's doing."""
    for _ in range(3):
        await gateway.store.check_writable()
        await gateway.store.run_counts()


async def test_messages_of_a_session_are_answered_in_the_order_they_came(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=echo)) as gateway:
        runs = [await gateway.submit("main", f"m{n}") for n in range(20)]
        for run in runs:
            await ended(gateway, run.id)
        assert await texts_of(gateway) == [text for n in range(20) for text in (f"m{n}", f"re: m{n}")]


async def test_a_session_has_one_run_at_a_time(tmp_path: Path) -> None:
    floor = Floor()
    async with running(tmp_path, equip=floor.equip) as gateway:
        runs = [await gateway.submit("main", name) for name in "abc"]
        await floor.holds("a")
        await quiet(gateway)
        assert floor.present == ["a"]
        assert [(await stored(gateway, run.id)).state for run in runs] == ["running", "queued", "queued"]
        floor.let_go("c", "b")
        await quiet(gateway)
        assert floor.present == ["a"]
        floor.let_go("a")
        await settled(gateway)
        assert floor.order == ["a", "b", "c"]
        assert floor.most["all"] == 1


async def test_different_sessions_run_at_the_same_time_up_to_the_limit(tmp_path: Path) -> None:
    floor = Floor()
    async with running(tmp_path, equip=floor.equip, config=with_defaults(maxConcurrent=3)) as gateway:
        for name in "abcde":
            await gateway.submit(f"agent:main:{name}", name)
        await floor.holds("a", "b", "c")
        await quiet(gateway)
        assert sorted(floor.present) == ["a", "b", "c"]
        assert gateway.runtime.running == 3
        floor.let_go("b")
        await floor.holds("a", "c", "d")
        floor.let_go("a", "c")
        await floor.holds("d", "e")
        floor.let_go("d", "e")
        await settled(gateway)
        assert floor.most["all"] == 3
        assert sorted(floor.order[:3]) == ["a", "b", "c"]


async def test_a_session_that_waits_for_a_slot_comes_before_one_that_asked_later(tmp_path: Path) -> None:
    floor = Floor()
    async with running(tmp_path, equip=floor.equip, config=with_defaults(maxConcurrent=1)) as gateway:
        await gateway.submit("agent:main:a", "a1")
        await gateway.submit("agent:main:a", "a2")
        await gateway.submit("agent:main:b", "b1")
        floor.let_go("a1", "a2", "b1")
        await settled(gateway)
        assert floor.order[0] == "a1"
        assert sorted(floor.order[1:]) == ["a2", "b1"]


async def test_sub_agents_have_a_limit_of_their_own_and_hold_nobody_back(tmp_path: Path) -> None:
    floor = Floor()
    config = with_defaults(maxConcurrent=4, subagents={"maxConcurrent": 2})
    async with running(tmp_path, equip=floor.equip, config=config) as gateway:
        for n in range(4):
            await gateway.submit(f"agent:main:subagent:{uuid4()}", f"child{n}")
        await floor.holds("child0", "child1")
        await gateway.submit("main", "parent")
        await gateway.submit("agent:main:other", "other")
        await floor.holds("child0", "child1", "parent", "other")
        await gateway.submit("agent:main:third", "third")
        await quiet(gateway)
        assert len(floor.present) == 4
        floor.let_go("child0")
        await floor.holds("child1", "child2", "parent", "other")
        floor.let_go("parent")
        await floor.holds("child1", "child2", "third", "other")
        floor.let_go("child1", "child2", "child3", "third", "other")
        await settled(gateway)
        assert floor.most["all"] == 4


async def test_sub_agents_also_count_among_all_runs(tmp_path: Path) -> None:
    floor = Floor()
    config = with_defaults(maxConcurrent=1, subagents={"maxConcurrent": 8})
    async with running(tmp_path, equip=floor.equip, config=config) as gateway:
        await gateway.submit(f"agent:main:subagent:{uuid4()}", "child")
        await gateway.submit("main", "parent")
        await floor.holds("child")
        floor.let_go("child")
        await floor.holds("parent")
        floor.let_go("parent")
        await settled(gateway)


async def test_sixty_four_sessions_in_parallel_keep_their_order_and_lose_nothing(tmp_path: Path) -> None:
    model = ScriptedModel(replies=echo)
    async with running(tmp_path, model) as gateway:
        heard = Heard(gateway)

        async def talk(name: str) -> None:
            runs = [await gateway.submit(f"agent:main:{name}", f"{name} m{n}") for n in range(20)]
            for n, run in enumerate(runs):
                assert (await ended(gateway, run.id, 30)).reply == f"re: {name} m{n}"

        await asyncio.gather(*(talk(f"s{n}") for n in range(64)))
        assert not await live_runs(gateway)
        for n in range(64):
            expected = [text for m in range(20) for text in (f"s{n} m{m}", f"re: s{n} m{m}")]
            assert await texts_of(gateway, f"agent:main:s{n}") == expected
    assert len(model.requests) == 64 * 20
    assert not model.refused
    assert gateway.runtime.running == 0
    assert len(heard.events) > 64 * 20


async def test_twenty_messages_that_come_at_once_are_each_answered_once(tmp_path: Path) -> None:
    model = ScriptedModel(replies=echo)
    async with running(tmp_path, model) as gateway:
        runs = await asyncio.gather(*(gateway.submit("main", f"m{n}") for n in range(20)))
        await settled(gateway)
        texts = await texts_of(gateway)
        by_position = [f"m{n}" for n, _ in sorted(enumerate(runs), key=lambda entry: entry[1].position)]
        assert texts[::2] == by_position
        assert texts[1::2] == [f"re: {text}" for text in by_position]


async def test_accepting_and_starting_are_one_commit_when_the_lane_is_free(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="held", gate=gate), "next"])
    async with running(tmp_path, model) as gateway:
        before = gateway.store.driver.commits, gateway.store.driver.units
        run = await gateway.submit("main", "first")
        assert run.state is RunState.RUNNING
        assert (gateway.store.driver.commits, gateway.store.driver.units) == (before[0] + 1, before[1] + 1)
        queued = await gateway.submit("main", "second")
        assert queued.state is RunState.QUEUED
        assert gateway.store.driver.units == before[1] + 2
        gate.set()
        await ended(gateway, queued.id)
        await quiet(gateway)


async def test_a_run_of_one_reply_takes_two_commits(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=echo)) as gateway:
        before = gateway.store.driver.commits, gateway.store.driver.units
        await gateway.ask("main", "hello")
        assert (gateway.store.driver.commits, gateway.store.driver.units) == (before[0] + 2, before[1] + 2)


async def test_a_caller_that_goes_away_while_its_message_is_accepted_loses_neither_run_nor_slot(tmp_path: Path) -> None:
    model = ScriptedModel(replies=echo)
    async with running(tmp_path, model, config=with_defaults(maxConcurrent=1)) as gateway:
        for n in range(5):
            caller = asyncio.create_task(gateway.submit("main", f"m{n}", run_id=f"m{n}"))
            await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert await gateway.ask("agent:main:other", f"o{n}") == f"re: o{n}"
            assert (await ended(gateway, f"m{n}")).reply == f"re: m{n}"


async def test_a_message_that_is_refused_gives_its_slot_back(tmp_path: Path) -> None:
    model = ScriptedModel(replies=echo)
    async with running(tmp_path, model, config=with_defaults(maxConcurrent=1)) as gateway:
        for _ in range(3):
            with pytest.raises(SessionIdReplaced, match="has not the id"):
                await gateway.runtime.submit(request("agent:main:side", "hello", expected_session_id="another"))
        assert await gateway.ask("agent:main:side", "hello") == "re: hello"


async def test_a_failing_run_frees_its_lane_and_its_slot(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[ValueError("no"), "fine"])
    async with running(tmp_path, model, config=with_defaults(maxConcurrent=1)) as gateway:
        failed = await gateway.submit("main", "first")
        assert await gateway.ask("main", "second") == "fine"
        assert (await ended(gateway, failed.id)).error == "ValueError: no"


async def test_the_session_tells_whether_it_runs_waits_or_rests(tmp_path: Path) -> None:
    floor = Floor()
    async with running(tmp_path, equip=floor.equip, config=with_defaults(maxConcurrent=1)) as gateway:
        await gateway.submit("main", "a")
        await gateway.submit("agent:main:other", "b")
        assert (await session_of(gateway)).status == "running"
        assert (await session_of(gateway, "agent:main:other")).status == "queued"
        floor.let_go("a", "b")
        await settled(gateway)
        assert (await session_of(gateway)).status == "idle"
        assert (await session_of(gateway, "agent:main:other")).status == "idle"


async def test_a_queued_message_is_pending_and_in_the_transcript_only_once_it_starts(tmp_path: Path) -> None:
    floor = Floor()
    async with running(tmp_path, equip=floor.equip) as gateway:
        await gateway.submit("main", "a")
        await gateway.submit("main", "b")
        assert await texts_of(gateway) == ["a"]
        assert [message.text for message in (await gateway.store.pending(MAIN, 100)).messages] == ["b"]
        floor.let_go("a")
        await floor.holds("b")
        assert await texts_of(gateway) == ["a", "re: a", "b"]
        assert (await gateway.store.pending(MAIN, 100)).messages == []
        floor.let_go("b")
        await settled(gateway)


class Slow:
    """A disk that takes its time: while it is held, no commit returns."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()

    def hold(self) -> None:
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    def before_commit(self, number: int) -> None:
        self._free.wait(5)

    def after_commit(self, number: int) -> None: ...


async def test_a_message_accepted_while_the_gateway_stops_is_begun_by_the_next_start(tmp_path: Path) -> None:
    model, disk = ScriptedModel(replies=echo), Slow()
    async with AsyncExitStack() as life:
        gateway = await life.enter_async_context(running(tmp_path, model, faults=disk))
        disk.hold()
        caller = asyncio.create_task(gateway.submit("main", "late", run_id="late"))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(life.aclose())
        await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == "timers"])  # then lanes stop
        disk.let_go()
        await stopping
    assert (await caller).id == "late"
    assert gateway.runtime.running == 0
    assert not model.requests
    async with running(tmp_path, model) as gateway:
        assert (await ended(gateway, "late")).reply == "re: late"


async def test_no_message_is_accepted_once_the_gateway_has_stopped(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=echo)) as gateway:
        pass
    with pytest.raises(ShuttingDown):
        await gateway.submit("main", "too late")


async def test_a_run_that_does_not_stop_holds_the_gateway_up_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "CLOSE_LIMIT_S", 0.02)
    begun, release = asyncio.Event(), asyncio.Event()

    async def stubborn(context: FunctionContext) -> str:
        begun.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        return "too late"

    async with asyncio.timeout(20):
        async with running(tmp_path, equip=lambda gateway: gateway.add_agent("main", stubborn)) as gateway:
            await gateway.submit("main", "go", run_id="r")
            await begun.wait()
        async with running(tmp_path, equip=lambda gateway: gateway.add_agent("main", answer_again)) as gateway:
            assert (await ended(gateway, "r")).reply == "again"
            release.set()
            await quiet(gateway)
            assert await texts_of(gateway) == ["go", "again"]


async def answer_again(context: FunctionContext) -> str:
    return "again"
