"""Faults: a full disk, a commit that fails, and providers that do not do as they should."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Reply, ScriptedModel, call
from backchannel.core.delivery.delivery import Post
from backchannel.core.facts import RunChanged
from backchannel.core.messages import Role
from backchannel.core.runs import RunState
from backchannel.core.sessions import Address
from backchannel.errors import StorageFull, Unavailable
from backchannel.gateway.app import Gateway
from backchannel.runtime.clocks import ClockWatch
from tests.support import far_end as chats
from tests.support.clocks import StageClock
from tests.support.gateways import (
    CONFIG,
    MAIN,
    Heard,
    ended,
    request,
    running,
    session_of,
    stored,
    texts_of,
    transcript_of,
)
from tests.support.stub_provider import Answer, Call, Drop, Fault, Hang, StubProvider, Told

pytestmark = pytest.mark.anyio
LARGE = "x" * 50_000


async def fill_disk(gateway: Gateway) -> None:
    """Let the database grow no further: SQLite itself says that the disk is full."""

    def unit(tx: Any) -> None:
        (pages,) = tx.one("PRAGMA page_count")
        tx.one(f"PRAGMA max_page_count = {pages}")

    await gateway.store.driver.write(unit)


def add_filling_post(gateway: Gateway, posts: list[str]) -> None:
    """Add a tool after whose call the disk is full."""

    @gateway.tool(effects="outside")
    async def post() -> str:
        posts.append("once")
        await fill_disk(gateway)
        return LARGE


async def make_space(gateway: Gateway) -> None:
    await gateway.store.driver.write(lambda tx: tx.one("PRAGMA max_page_count = 1000000"))


# --- A full disk ---


async def test_a_full_disk_refuses_messages_and_answers_questions(tmp_path: Path) -> None:
    model = ScriptedModel(replies=["before", "after"])
    async with running(tmp_path, model) as gateway:
        assert await gateway.ask("main", "hello") == "before"
        await fill_disk(gateway)
        for _ in range(3):
            with pytest.raises(StorageFull, match="nothing was changed"):
                await gateway.submit("main", LARGE, run_id="k")
        assert await texts_of(gateway) == ["hello", "before"]
        assert await gateway.store.run("k") is None
        assert (await session_of(gateway)).status == "idle"
        await make_space(gateway)
        assert await gateway.ask("main", LARGE, run_id="k") == "after"


async def test_a_run_at_work_waits_for_space_and_then_ends(tmp_path: Path) -> None:
    clock, gate = StageClock.held(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text=LARGE, gate=gate), "next"])
    async with running(tmp_path, model, clock=clock) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await fill_disk(gateway)
        gate.set()
        await clock.sleeping.wait()
        assert (await stored(gateway, "r")).state is RunState.RUNNING
        assert await texts_of(gateway) == ["go"]
        await make_space(gateway)
        clock.release()
        run = await ended(gateway, "r")
        assert (run.state, run.reply) == (RunState.OK, LARGE)
        assert await gateway.ask("main", "next") == "next"
    assert len(model.requests) == 2  # what was done is not thrown away and asked for again


async def test_a_tools_result_waits_for_space_and_the_tool_is_not_called_again(tmp_path: Path) -> None:
    clock, posts = StageClock.held(), list[str]()

    def equip(gateway: Gateway) -> None:
        add_filling_post(gateway, posts)

    model = ScriptedModel(replies=[[call("post")], "done"])
    async with running(tmp_path, model, equip=equip, clock=clock) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await clock.sleeping.wait()
        await make_space(gateway)
        clock.release()
        assert (await ended(gateway, "r")).reply == "done"
        [result] = [message for message in await transcript_of(gateway) if message.role is Role.TOOL_RESULT]
        assert (result.text, result.is_error) == (LARGE, False)
    assert posts == ["once"]


async def test_a_function_agents_call_waits_for_space_too(tmp_path: Path) -> None:
    clock, posts = StageClock.held(), list[str]()

    def equip(gateway: Gateway) -> None:
        add_filling_post(gateway, posts)

        @gateway.agent("main")
        async def poster(context: FunctionContext) -> str:
            return f"posted {len(await context.call('post'))}"

    async with running(tmp_path, equip=equip, clock=clock) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await clock.sleeping.wait()
        await make_space(gateway)
        clock.release()
        assert (await ended(gateway, "r")).reply == f"posted {len(LARGE)}"
    assert posts == ["once"]


async def test_a_queued_run_starts_when_there_is_space_again(tmp_path: Path) -> None:
    model = ScriptedModel(replies=["one", "two"])
    async with running(tmp_path, model) as gateway:
        first = await gateway.submit("main", "first")
        queued = await gateway.submit("main", LARGE)
        await ended(gateway, first.id)
        await ended(gateway, queued.id)
        assert await texts_of(gateway) == ["first", "one", LARGE, "two"]
    # The same with a disk that is full just as the lane becomes free.
    gate = asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="short", gate=gate), "at last"])
    async with running(tmp_path, model) as gateway:
        first = await gateway.submit("main", "first")
        queued = await gateway.submit("main", LARGE)
        await fill_disk(gateway)
        gate.set()
        await ended(gateway, first.id)
        assert (await stored(gateway, queued.id)).state is RunState.QUEUED
        await make_space(gateway)
        assert (await ended(gateway, queued.id)).reply == "at last"


async def test_an_abort_that_comes_while_a_run_waits_for_space_to_end_does_not_lose_it(tmp_path: Path) -> None:
    clock = StageClock.held()
    model = ScriptedModel(replies=[Reply(text=(LARGE, "more"), gate=asyncio.Event(), held_at=1), "next"])
    async with running(tmp_path, model, clock=clock) as gateway:
        run = (await gateway.runtime.submit(request(MAIN, "go", timeout_s=0.5))).run
        await fill_disk(gateway)
        await clock.sleeping.wait()  # its time is over, and there is no room to say so
        await make_space(gateway)
        assert await gateway.runtime.abort(MAIN, run.id) == [run.id]
        clock.release()
        assert (await ended(gateway, run.id)).state in (RunState.TIMEOUT, RunState.ABORTED)
        assert await gateway.ask("main", "go on") == "next"


async def test_a_gateway_stops_while_its_runs_wait_for_space(tmp_path: Path) -> None:
    clock, gate = StageClock.held(), asyncio.Event()
    async with running(tmp_path, ScriptedModel(replies=[Reply(text=LARGE, gate=gate)]), clock=clock) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await fill_disk(gateway)
        gate.set()
        await clock.sleeping.wait()
    async with running(tmp_path, ScriptedModel(replies=["again"])) as gateway:
        assert (await ended(gateway, "r")).reply == "again"


# --- A commit that fails ---


class BadDisk:
    """Fails in the commits that it is told to."""

    def __init__(self) -> None:
        self.is_bad = False

    def before_commit(self, number: int) -> None:
        if self.is_bad:
            raise sqlite3.OperationalError("disk I/O error")

    def after_commit(self, number: int) -> None: ...


async def test_a_commit_that_fails_answers_nobody_and_the_next_start_has_the_truth(tmp_path: Path) -> None:
    disk, gate = BadDisk(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="never told", gate=gate)])
    async with running(tmp_path, model, faults=disk) as gateway:
        await gateway.submit("main", "kept", run_id="kept")
        await model.asked()
        disk.is_bad = True
        sent = [asyncio.create_task(gateway.submit("main", f"m{n}", run_id=f"m{n}")) for n in range(5)]
        wait = asyncio.create_task(gateway.runtime.wait("kept", 60))
        assert gateway.failed is not None
        async with asyncio.timeout(20):
            assert "disk I/O error" in str(await gateway.failed)
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError | Unavailable) for outcome in outcomes)
        gate.set()
        with pytest.raises(Unavailable):
            await gateway.submit("main", "after", run_id="after")
    assert not isinstance((await asyncio.gather(wait, return_exceptions=True))[0], RunState)
    async with running(tmp_path, ScriptedModel(replies=["told now"])) as gateway:
        assert (await ended(gateway, "kept")).reply == "told now"
        assert [run.id for run in await gateway.store.runs(limit=10)] == ["kept"]
        assert await texts_of(gateway) == ["kept", "told now"]


async def test_a_commit_that_fails_in_the_middle_of_a_run_is_not_its_end(tmp_path: Path) -> None:
    disk, gate = BadDisk(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="lost", gate=gate)])
    async with running(tmp_path, model, faults=disk) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await model.asked()
        disk.is_bad = True
        gate.set()
        assert gateway.failed is not None
        async with asyncio.timeout(20):
            await gateway.failed
    async with running(tmp_path, ScriptedModel(replies=["again"])) as gateway:
        run = await ended(gateway, "r")
        assert (run.state, run.reply) == (RunState.OK, "again")


# --- Providers ---


@asynccontextmanager
async def provided(
    state: Path, stub: StubProvider, api: str, *, retry_for_hours: float = 24, **more: Any
) -> AsyncIterator[Gateway]:
    config = {
        "models": {"providers": {"acme": {"api": api, "baseUrl": stub.base_url, "apiKey": "sk-acme-secret-key"}}},
        "agents": {"list": [{"id": "main", "model": "acme/large", "retryForHours": retry_for_hours}]},
    }
    async with running(state, config=config, **more) as gateway:
        yield gateway


APIS = pytest.mark.parametrize("api", ["openai", "anthropic"])
_OVERLOADED = '{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'


@APIS
@pytest.mark.parametrize(
    ("fault", "requests", "told"),
    [
        (Fault(400, "temperature is too hot"), 1, "temperature is too hot"),
        (Fault(401, "invalid api key"), 1, "invalid api key"),
        (Fault(404, "no such model"), 1, "no such model"),
        (Fault(429, "slow down", headers={"retry-after": "7"}), 5, "slow down"),
        (Fault(500, "we are broken"), 5, "we are broken"),
        (Fault(503, body="<html>bad gateway</html>", content_type="text/html"), 5, "503"),
        (Fault(200, body="{}"), 5, "acme"),
        (Fault(200, body="garbage \ufffd not json"), 5, "acme"),
        (Fault(200, body="data: {half\n\n", content_type="text/event-stream"), 5, "acme"),
        (Fault(200, body="", content_type="text/event-stream"), 5, "acme"),
        (Answer(text=("half ", "of it"), ends="cut"), 5, "acme"),
        (Answer(text=("half ", "of it"), ends="broken"), 5, "acme"),
        (Drop(), 5, "acme"),
    ],
    ids=lambda value: str(value)[:60].replace(" ", "_") if isinstance(value, Fault | Answer | Drop) else None,
)
async def test_a_provider_that_fails_gives_the_run_a_clear_error_and_the_next_message_works(
    tmp_path: Path, api: str, fault: Told, requests: int, told: str
) -> None:
    clock = StageClock()
    async with StubProvider() as stub, provided(tmp_path, stub, api, clock=clock, retry_for_hours=0) as gateway:
        stub.then(*[fault] * requests)
        run = await ended(gateway, (await gateway.submit("main", "hi")).id, 20)
        assert (run.state, run.error_code) == (RunState.ERROR, "model_failed")
        assert told in (run.error or "")
        assert "sk-acme-secret-key" not in (run.error or "")
        assert len(stub.requests) == requests
        assert len(clock.slept) == requests - 1
        assert await texts_of(gateway) == ["hi"]
        clock.move_on(11)
        stub.then(Answer(text="fine"))
        assert await gateway.ask("main", "again") == "fine"
    assert stub.refused == []


@APIS
async def test_each_message_to_a_provider_that_is_down_for_an_hour_is_answered_once_and_in_order(
    tmp_path: Path, api: str
) -> None:
    date = {"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}
    faults: list[Told] = [
        Fault(529, "overloaded"),
        Fault(429, "slow down", headers={"retry-after": "3600"}),
        Fault(429, "slow down", headers=date),
        Fault(200, body=f"event: error\ndata: {_OVERLOADED}\n\n", content_type="text/event-stream"),
        Answer(text=("half ", "of it"), ends="cut"),
        Answer(text=("half ", "of it"), ends="broken"),
        Drop(),
    ]
    clock = StageClock()
    async with StubProvider() as stub, provided(tmp_path, stub, api, clock=clock) as gateway:
        began = clock.ms
        stub.then(*faults)
        stub.reply = lambda asked: Answer(text=f"re {len(stub.requests)}")
        for name in "abc":
            await gateway.submit("main", name, run_id=name)
        for name in "abc":
            assert (await ended(gateway, name)).state is RunState.OK
        said = await texts_of(gateway)
        assert said[::2] == ["a", "b", "c"] and len(said) == 6 and "half" not in " ".join(said)
        assert clock.ms - began > 3_600_000
    assert stub.refused == []


@APIS
async def test_the_wait_that_a_provider_asks_for_is_kept(tmp_path: Path, api: str) -> None:
    clock = StageClock()
    async with StubProvider() as stub, provided(tmp_path, stub, api, clock=clock) as gateway:
        stub.then(Fault(429, "slow down", headers={"retry-after": "7"}), Answer(text="fine"))
        assert await gateway.ask("main", "hi") == "fine"
    assert clock.slept == [pytest.approx(7, abs=1)]
    assert stub.refused == []


@APIS
async def test_a_provider_that_says_nothing_is_given_up_and_its_connection_closed(tmp_path: Path, api: str) -> None:
    async with StubProvider() as stub, provided(tmp_path, stub, api) as gateway:
        assert await gateway.ask("main", "hello") == "ok"  # the first use of a provider takes longer
        stub.then(Hang(), Answer(text="fine"))
        run = (await gateway.runtime.submit(request(MAIN, "hi", timeout_s=1))).run
        async with asyncio.timeout(20):
            asked = await stub.asked(2)
        assert (await ended(gateway, run.id)).state is RunState.TIMEOUT
        async with asyncio.timeout(20):
            await asked.gone.wait()
        assert await gateway.ask("main", "again") == "fine"
    assert stub.refused == []


@APIS
async def test_an_abort_in_the_middle_of_a_stream_closes_the_connection(tmp_path: Path, api: str) -> None:
    reached = asyncio.Event()
    async with StubProvider() as stub, provided(tmp_path, stub, api) as gateway:
        stub.then(Answer(text=("half ", "never"), gate=asyncio.Event(), held_at=1, reached=reached))
        run_id = (await gateway.submit("main", "hi")).id
        async with asyncio.timeout(20):
            await reached.wait()
        await gateway.runtime.abort(MAIN, run_id)
        assert (await ended(gateway, run_id)).state is RunState.ABORTED
        async with asyncio.timeout(20):
            await stub.requests[0].gone.wait()
        assert await gateway.ask("main", "again") == "ok"
    assert stub.refused == []


@APIS
async def test_tools_that_fail_in_every_way_leave_a_sequence_that_the_provider_takes(tmp_path: Path, api: str) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def fail() -> str:
            raise ValueError("no")

        @gateway.tool(effects="none")
        async def empty() -> str:
            return ""

        @gateway.tool(effects="none")
        async def number(n: float) -> float:
            return n

    calls: tuple[Call, ...] = (
        Call("fail", {}),
        Call("unknown", {"a": 1}),
        Call("empty", {}),
        Call("number", '{"n": 123456789012345678901234567890}'),
        Call("number", '{"n": "\\ud800"}'),
        Call("number", "[1]"),
        Call("number", "{broken"),
        Call("number", ""),
    )
    if api == "anthropic":
        calls = calls[:5]  # its stream builds objects only
    async with StubProvider() as stub, provided(tmp_path, stub, api, equip=equip, clock=StageClock()) as gateway:
        stub.then(Answer(text="trying", calls=calls), Answer(calls=calls), Answer(text="done"), Answer(text="next"))
        assert await gateway.ask("main", "go", run_id="r") == "done"
        results = [message for message in await transcript_of(gateway) if message.role is Role.TOOL_RESULT]
        assert len(results) == 2 * len(calls)
        assert await gateway.ask("main", "again") == "next"
    assert stub.refused == []


@APIS
async def test_aborted_failed_and_interrupted_runs_leave_a_sequence_that_the_provider_takes(
    tmp_path: Path, api: str
) -> None:
    stuck = asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def hang() -> str:
            stuck.set()
            await asyncio.Event().wait()
            return "never"

    two = Answer(text="calling", calls=(Call("hang", {}), Call("hang", {})))
    async with StubProvider() as stub:
        async with provided(tmp_path, stub, api, equip=equip) as gateway:
            stub.then(two)
            run_id = (await gateway.submit("main", "one")).id
            await stuck.wait()
            await gateway.runtime.abort(MAIN, run_id)
            await ended(gateway, run_id)
            stub.then(Fault(400, "no"))
            await ended(gateway, (await gateway.submit("main", "two")).id)
            stuck.clear()
            stub.then(two)
            run_id = (await gateway.submit("main", "three")).id
            await stuck.wait()
        async with provided(tmp_path, stub, api, equip=equip) as gateway:
            assert (await ended(gateway, run_id)).reply == "ok"
            assert await gateway.ask("main", "four") == "ok"
    assert stub.refused == []


# --- A look that fails ---


class FailingClock(StageClock):
    """A clock that fails a task which asks whether it was set back, as a disk does that cannot be read for a moment."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self.failures = 0
        self._task = task

    def now_ms(self) -> int:
        task, asks = asyncio.current_task(), sys._getframe(1).f_globals["__name__"] == ClockWatch.__module__
        if self.failures < 3 and asks and task is not None and task.get_name() == self._task:
            self.failures += 1
            raise sqlite3.OperationalError("disk I/O error")
        return super().now_ms()


async def test_time_is_kept_on_after_a_look_at_the_timers_has_failed(tmp_path: Path) -> None:
    clock = FailingClock("timers")
    job = {"id": "j", "schedule": "every 10m", "message": "work"}
    async with running(
        tmp_path, ScriptedModel(replies="done"), clock=clock, config={**CONFIG, "cron": {"jobs": [job]}}
    ) as gateway:
        heard = Heard(gateway)
        await heard.until(lambda: any(fact.run.state is RunState.OK for fact in heard.of(RunChanged)))
    assert clock.failures == 3


async def test_retries_come_in_time_after_a_look_at_them_has_failed(tmp_path: Path) -> None:
    clock = FailingClock("timers")
    async with chats.FarEnd() as far_end:
        far_end.then(chats.Fault(503))
        channels = {"channels": {"desk": far_end.settings()}}
        async with running(
            tmp_path, ScriptedModel(replies="done"), clock=clock, config={**CONFIG, **channels}
        ) as gateway:
            address = Address(channel="desk", to="C")
            await gateway.store.post(Post(session_key=MAIN, address=address, text="hello"))
            await far_end.took(1)
    assert clock.failures == 3
