"""Runs in whose very step the process keeps dying: they are tried alone, set aside, and given up last of all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest, ToolContext
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.core.runs import Run, RunState, set_aside_ms
from backchannel.gateway.app import Gateway
from backchannel.gateway.methods.runs import waited
from backchannel.tools.rows import Rows
from tests.support.clocks import StageClock
from tests.support.gateways import (
    CONFIG,
    Heard,
    die_in,
    die_with_function,
    dying,
    echo,
    ended,
    held,
    live_runs,
    running,
    session_of,
    settled,
    stored,
    texts_of,
    transcript_of,
)
from tests.support.slow import Slow

pytestmark = pytest.mark.anyio
NOON = "2026-03-02T12:00:00"
MINUTE_S = 60.0
TALK = "so much to say " * 200
OPEN = {**CONFIG, "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}}}


async def set_aside(gateway: Gateway, run_id: str) -> Run:
    """Wait for a run to be set aside."""
    heard = Heard(gateway)
    run = await stored(gateway, run_id)
    if not run.is_set_aside:
        await heard.until(lambda: RunState.QUEUED in heard.states(run_id))
        run = await stored(gateway, run_id)
    assert run.is_set_aside, f"{run_id} is {run.state}"
    return run


def test_a_run_is_set_aside_for_longer_each_time_and_given_up_in_the_end() -> None:
    minutes = [None if (ms := set_aside_ms(crashes)) is None else ms // 60_000 for crashes in range(9)]
    assert minutes == [None, None, None, 1, 5, 15, 60, None, None]


async def test_runs_that_one_crash_interrupted_go_on_side_by_side(tmp_path: Path) -> None:
    before, after = Slow(), Slow()
    async with dying(tmp_path, equip=before.equip) as gateway:
        for name in "abcd":
            await gateway.submit(f"agent:main:{name}", name, run_id=name)
        await before.until_began(*"abcd")
    async with running(tmp_path, equip=after.equip) as gateway:
        await after.until_began(*"abcd")
        after.let_end(*"abcd")
        await settled(gateway)


async def die_at_work(state: Path, *names: str, times: int) -> None:
    """Let the process die so often while the runs of these messages are at work side by side."""
    for _ in range(times):
        slow = Slow()
        async with dying(state, equip=slow.equip) as gateway:
            for name in names:
                await gateway.submit(f"agent:main:{name}", name, run_id=name)
            await slow.until_began(*names)


async def test_suspects_go_on_one_at_a_time_while_the_others_go_on_at_once(tmp_path: Path) -> None:
    await die_at_work(tmp_path, "a", "b", "c", times=2)
    after = Slow()
    async with running(tmp_path, equip=after.equip) as gateway:
        await gateway.submit("agent:main:new", "new", run_id="new")
        await after.until_began("a", "new")
        await gateway.submit("agent:main:b", "behind b", run_id="behind b")
        after.let_end("new", "behind b")
        await ended(gateway, "new")
        await gateway.store.check_writable()
        assert set(after.began) == {"a", "new"}
        after.let_end("a")
        await after.until_began("a", "new", "b")
        after.let_end("b")
        await after.until_began("a", "new", "b", "c", "behind b")
        after.let_end("c")
        await settled(gateway)
        assert not [run for run in await gateway.store.runs(limit=10) if run.state is not RunState.OK]


async def test_a_suspect_that_hangs_holds_the_next_one_up_for_half_a_minute(tmp_path: Path) -> None:
    await die_at_work(tmp_path, "a", "b", "c", times=2)
    after, clock = Slow(), StageClock.held(NOON)
    async with running(tmp_path, equip=after.equip, clock=clock) as gateway:
        await after.until_began("a")
        clock.move_on(29)
        await gateway.store.check_writable()
        assert after.began == ["a"]
        clock.move_on(1)
        await after.until_began("a", "b")
        after.let_end("b")
        await after.until_began("a", "b", "c")
        after.let_end("a", "c")
        await settled(gateway)


async def test_suspects_of_agents_registered_one_by_one_still_go_one_at_a_time(tmp_path: Path) -> None:
    for _ in range(2):
        before = Slow()

        def both(gateway: Gateway, slow: Slow = before) -> None:
            for name in ("x", "y"):
                gateway.add_agent(name, slow.answer)

        async with dying(tmp_path, equip=both) as gateway:
            await gateway.submit("agent:x:main", "x", run_id="x")
            await gateway.submit("agent:y:main", "y", run_id="y")
            await before.until_began("x", "y")
    after = Slow()
    async with running(tmp_path) as gateway:
        gateway.add_agent("x", after.answer)
        gateway.add_agent("y", after.answer)
        async with asyncio.timeout(20):
            while not after.began:
                await gateway.store.run_counts()
        await gateway.store.check_writable()
        assert len(after.began) == 1
        after.let_end(*after.began)
        await after.until_began("x", "y")
        after.let_end("x", "y")
        await settled(gateway)


async def test_a_neighbour_of_the_culprit_is_not_set_aside_with_it(tmp_path: Path) -> None:
    """Two runs are at work whenever the process dies; one of them is the reason, and dies alone in the end."""
    await die_at_work(tmp_path, "neighbour", "culprit", times=2)
    life = Slow()
    life.let_end("neighbour")
    async with dying(tmp_path, equip=life.equip) as gateway:
        await life.until_began("neighbour", "culprit")
    async with running(tmp_path, equip=Slow().equip) as gateway:
        assert (await ended(gateway, "neighbour")).state is RunState.OK
        await set_aside(gateway, "culprit")


# --- Set aside ---


async def test_a_run_that_was_killed_three_times_in_a_step_is_answered_a_minute_later(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    await die_in(tmp_path, "r", times=3, clock=clock)
    model = ScriptedModel(replies=["next", "at last"])
    async with running(tmp_path, model, clock=clock) as gateway:
        run = await set_aside(gateway, "r")
        assert run.resume_at == clock.ms + 60_000
        assert (await session_of(gateway)).status == "queued"
        assert await gateway.ask("main", "go on") == "next"
        clock.move_on(59)
        await gateway.store.check_writable()
        assert (await stored(gateway, "r")).is_set_aside
        clock.move_on(1)
        run = await ended(gateway, "r")
        assert (run.state, run.reply, run.crashes, run.resume_at) == (RunState.OK, "at last", 0, None)
        assert await texts_of(gateway) == ["go", "go on", "next", "at last"]
        assert (await session_of(gateway)).status == "idle"
    assert not model.refused


async def test_a_run_that_nobody_spoke_after_does_not_repeat_its_message(tmp_path: Path) -> None:
    await die_in(tmp_path, "r", times=3)
    async with running(tmp_path, ScriptedModel(replies=["at last"]), clock=StageClock()) as gateway:
        assert (await ended(gateway, "r")).reply == "at last"
        assert await texts_of(gateway) == ["go", "at last"]


def posting(gateway: Gateway, posts: list[str]) -> None:
    """Give a gateway a tool whose effects are outside, and count them."""

    @gateway.tool(effects="outside")
    async def post(context: ToolContext) -> str:
        posts.append(context.call_id)
        return "posted"


def post_once(request: ModelRequest) -> Scripted:
    """Answer as a model does that posts when it is asked to, unless it sees behind that message that it has."""
    newest = request.messages[-1]
    if newest.role is Role.TOOL_RESULT:
        return "done"
    return [call("post")] if newest.text.endswith("post it") else f"I see: {TALK}"


async def die_after_a_post(state: Path, posts: list[str], clock: StageClock) -> None:
    """Let a run post, and the process die three times in the step after that."""
    for life in range(3):
        begun = asyncio.Event()
        model = ScriptedModel(replies=[*([] if life else [[call("post")]]), held(reached=begun)])
        async with dying(state, model, equip=lambda gateway: posting(gateway, posts), clock=clock) as gateway:
            await gateway.submit("main", "post it", run_id="r")
            await begun.wait()


@pytest.mark.parametrize("window", [100_000, 9_000])
async def test_what_it_had_done_is_not_done_again_though_others_have_spoken_since(tmp_path: Path, window: int) -> None:
    posts: list[str] = []
    clock = StageClock.held(NOON)
    await die_after_a_post(tmp_path, posts, clock)
    model = ScriptedModel(replies=post_once, context_window=window)
    async with running(tmp_path, model, equip=lambda gateway: posting(gateway, posts), clock=clock) as gateway:
        await set_aside(gateway, "r")
        for _ in range(12):
            await gateway.ask("main", TALK)
        clock.move_on(MINUTE_S)
        assert (await ended(gateway, "r")).reply == "done"
        assert [text for text in await texts_of(gateway) if text == "post it"] == ["post it"]
    assert posts == ["r/0/0"]
    assert not model.refused


async def test_a_reset_ends_a_run_that_has_begun_and_is_set_aside(tmp_path: Path) -> None:
    posts: list[str] = []
    clock = StageClock.held(NOON)
    await die_after_a_post(tmp_path, posts, clock)
    model = ScriptedModel(replies=post_once)
    async with running(tmp_path, model, equip=lambda gateway: posting(gateway, posts), clock=clock) as gateway:
        await set_aside(gateway, "r")
        await gateway.store.reset_session(SessionKey.of("main", "main"))
        assert (await ended(gateway, "r")).state is RunState.ABORTED
        clock.move_on(MINUTE_S)
        await settled(gateway)
    assert posts == ["r/0/0"]


async def test_messages_that_waited_behind_it_go_on_at_once(tmp_path: Path) -> None:
    for _ in range(3):
        begun = asyncio.Event()
        async with dying(tmp_path, ScriptedModel(replies=[held(reached=begun)])) as gateway:
            await gateway.submit("main", "go", run_id="culprit")
            await gateway.submit("main", "me too", run_id="queued")
            await begun.wait()
    async with running(tmp_path, ScriptedModel(replies=echo)) as gateway:
        run = await ended(gateway, "queued")
        assert (run.state, run.crashes) == (RunState.OK, 0)
        assert (await stored(gateway, "culprit")).is_set_aside


async def test_only_the_fifth_time_that_it_is_set_aside_for_it_ends_as_a_crash_loop(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    await die_in(tmp_path, "r", times=3, clock=clock)
    for minutes in (1, 5, 15, 60):
        begun = asyncio.Event()
        async with dying(tmp_path, ScriptedModel(replies=[held(reached=begun)]), clock=clock) as gateway:
            run = await set_aside(gateway, "r")
            assert run.resume_at == clock.ms + minutes * 60_000
            clock.move_on(minutes * MINUTE_S)
            async with asyncio.timeout(20):
                await begun.wait()
    async with running(tmp_path, ScriptedModel(replies=["next"]), clock=clock) as gateway:
        run = await ended(gateway, "r")
        assert (run.state, run.error_code) == (RunState.ERROR, "crash_loop")
        assert "7 times in step 1" in (run.error or "") and "runs retry r" in (run.error or "")
        assert await gateway.ask("main", "go on") == "next"


async def test_what_is_set_aside_stays_so_over_a_restart(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    await die_in(tmp_path, "r", times=3, clock=clock)
    async with dying(tmp_path, clock=clock) as gateway:
        resume_at = (await set_aside(gateway, "r")).resume_at
    async with running(tmp_path, clock=clock) as gateway:
        assert (await stored(gateway, "r")).resume_at == resume_at
    clock.move_on(MINUTE_S)  # while nobody is there
    async with running(tmp_path, ScriptedModel(replies=["done"]), clock=clock) as gateway:
        assert (await ended(gateway, "r")).reply == "done"


async def test_a_clean_end_while_it_is_tried_again_neither_counts_nor_sets_it_aside(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    await die_in(tmp_path, "r", times=3, clock=clock)
    for _ in range(3):
        begun = asyncio.Event()
        async with running(tmp_path, ScriptedModel(replies=[held(reached=begun)]), clock=clock) as gateway:
            clock.move_on(MINUTE_S)
            async with asyncio.timeout(20):
                while not begun.is_set():
                    clock.stir()  # whoever looked at the clock before it was turned may go to sleep only now
                    await gateway.store.run_counts()
            assert (await stored(gateway, "r")).crashes == 3
    async with running(tmp_path, ScriptedModel(replies=["done"]), clock=clock) as gateway:
        assert (await ended(gateway, "r")).reply == "done"


async def test_a_retry_starts_it_at_once(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    await die_in(tmp_path, "r", times=3, clock=clock)
    async with running(tmp_path, ScriptedModel(replies=["at last"]), clock=clock) as gateway:
        await set_aside(gateway, "r")
        queued = await gateway.store.retry_run("r")
        assert (queued.state, queued.crashes, queued.resume_at) == (RunState.QUEUED, 0, None)
        assert (await ended(gateway, "r")).reply == "at last"
        assert await texts_of(gateway) == ["go", "at last"]
        clock.move_on(MINUTE_S)
        await gateway.store.check_writable()
        assert (await session_of(gateway)).status == "idle"


async def test_it_can_be_aborted_and_its_time_then_means_nothing(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    await die_in(tmp_path, "r", times=3, clock=clock)
    async with running(tmp_path, ScriptedModel(replies=["next"]), clock=clock) as gateway:
        await set_aside(gateway, "r")
        assert await gateway.runtime.abort("agent:main:main", "r") == ["r"]
        run = await stored(gateway, "r")
        assert (run.state, run.error, run.resume_at) == (RunState.ABORTED, "aborted while it was set aside", None)
        clock.move_on(MINUTE_S)
        assert await gateway.ask("main", "go on") == "next"
        assert (await session_of(gateway)).status == "idle"


async def test_its_open_calls_are_answered_before_others_write_to_the_transcript(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    begun: list[str] = []
    at_work = asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def dig(context: ToolContext) -> str:
            begun.append(context.call_id)
            at_work.set()
            await asyncio.Event().wait()
            return "never"

    for _ in range(3):
        at_work.clear()
        async with dying(tmp_path, ScriptedModel(replies=[[call("dig")]]), equip=equip, clock=clock) as gateway:
            await gateway.submit("main", "go", run_id="r")
            await at_work.wait()
    model = ScriptedModel(replies=["next", "without digging"])
    async with running(tmp_path, model, equip=equip, clock=clock) as gateway:
        await set_aside(gateway, "r")
        assert await gateway.ask("main", "go on") == "next"
        clock.move_on(MINUTE_S)
        assert (await ended(gateway, "r")).reply == "without digging"
        transcript = await transcript_of(gateway)
    roles = [message.role for message in transcript]
    assert roles[:4] == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT, Role.USER]
    assert transcript[2].is_error and "interrupted too often" in transcript[2].text
    assert begun == ["r/0/0"] * 3
    assert not model.refused


async def test_a_function_agent_that_was_set_aside_runs_again_and_its_calls_return_what_they_returned(
    tmp_path: Path,
) -> None:
    clock, rolled = StageClock.held(NOON), list[str]()

    def equip(gateway: Gateway, begun: asyncio.Event | None = None) -> None:
        @gateway.tool(effects="outside")
        async def roll(context: ToolContext) -> int:
            rolled.append(context.call_id)
            return len(rolled)

        @gateway.agent("main")
        async def player(context: FunctionContext) -> str:
            first = await context.call("roll")
            if begun is not None:
                begun.set()
                await asyncio.Event().wait()
            return f"{first} {await context.call('roll')}"

    await die_with_function(tmp_path, equip, times=3, clock=clock)
    async with running(tmp_path, equip=equip, clock=clock) as gateway:
        await set_aside(gateway, "r")
        clock.move_on(MINUTE_S)
        assert (await ended(gateway, "r")).reply == "1 2"
    assert rolled == ["r/f/1", "r/f/2"]


async def test_a_session_with_a_run_set_aside_can_be_deleted_and_reset(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    await die_at_work(tmp_path, "a", times=3)
    async with running(tmp_path, equip=Slow().equip, clock=clock) as gateway:
        await set_aside(gateway, "a")
        key = gateway.key("agent:main:a")
        await gateway.runtime.delete(key)
        assert (await stored(gateway, "a")).state is RunState.ABORTED
        session = await session_of(gateway, "agent:main:a")
        assert (session.set_aside, session.queued, session.archived_at is None) == (0, 0, False)


# --- Who asks after it ---


async def test_whoever_asks_hears_until_when_it_is_set_aside(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    await die_in(tmp_path, "r", times=3, clock=clock)
    async with running(tmp_path, clock=clock) as gateway:
        run = await set_aside(gateway, "r")
        looked = waited(await gateway.runtime.wait("r", 0))
        assert (looked.status, looked.queued, looked.resume_at) == ("timeout", True, run.resume_at)
        assert Rows(gateway.parts).run(run).resume_at == run.resume_at
        status = await gateway.tools().session_status()
        assert (status["status"], status["queueLength"], status["resumeAt"]) == ("queued", 1, run.resume_at)


async def test_a_session_that_waits_for_it_is_told_that_it_is_set_aside(tmp_path: Path) -> None:
    clock, told = StageClock.held(NOON), list[dict[str, Any]]()

    def equip(gateway: Gateway) -> None:
        @gateway.agent("asker")
        async def asker(context: FunctionContext) -> str:
            told.append(await context.call("sessions_send", sessionKey="agent:main:main", message="go"))
            return "asked"

    for _ in range(3):
        begun = asyncio.Event()
        model = ScriptedModel(replies=[held(reached=begun)])
        async with dying(tmp_path, model, config=OPEN, equip=equip, clock=clock) as gateway:
            await gateway.submit("agent:asker:main", "ask", run_id="a")
            await begun.wait()
    clock.move_on(29.9)
    model = ScriptedModel(replies=["at last", "noted", "ANNOUNCE_SKIP"])
    async with running(tmp_path, model, config=OPEN, equip=equip, clock=clock) as gateway:
        assert (await ended(gateway, "a")).reply == "asked"
        [late] = told
        assert late["status"] == "timeout" and "set aside until 2026-03-02 12:01:29 UTC" in late["error"]
        clock.move_on(MINUTE_S)
        assert (await ended(gateway, late["runId"])).reply == "at last"


async def test_a_cron_job_goes_on_beside_its_run_that_is_set_aside(tmp_path: Path) -> None:
    clock = StageClock.held(NOON)
    job = {"id": "often", "schedule": "every 30s", "message": "tidy up"}
    config = {**CONFIG, "cron": {"jobs": [job]}}
    async with running(tmp_path, config=config, clock=clock):
        pass
    clock.move_on(30)
    for _ in range(3):
        begun = asyncio.Event()
        async with dying(tmp_path, ScriptedModel(replies=[held(reached=begun)]), config=config, clock=clock):
            await begun.wait()
    async with running(tmp_path, ScriptedModel(replies=["tidy"]), config=config, clock=clock) as gateway:
        [first] = await live_runs(gateway)
        await set_aside(gateway, first.id)
        clock.move_on(30)
        async with asyncio.timeout(20):
            while len(runs := await gateway.store.runs(limit=10)) < 2:
                clock.stir()  # whoever looked at the clock before it was turned may go to sleep only now
        assert (await ended(gateway, runs[0].id)).reply == "tidy"
        assert (await stored(gateway, first.id)).is_set_aside
