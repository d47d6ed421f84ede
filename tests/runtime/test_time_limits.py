"""Time limits: a run's time counts only while it runs, and one that is over stops it where it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.agents.toolset import ToolEffects
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.messages import Role
from backchannel.core.runs import RunState
from backchannel.gateway.app import Gateway
from tests.support.clocks import StageClock
from tests.support.gateways import (
    MAIN,
    dying,
    ended,
    held,
    request,
    running,
    session_of,
    stored,
    texts_of,
    transcript_of,
    with_defaults,
)

pytestmark = pytest.mark.anyio
SHORT_S = 0.2
ENOUGH_S = 0.6
"""A limit that comes after what a run does before it, on a busy machine too."""


async def begin(gateway: Gateway, text: str = "go", **more: Any) -> str:
    return (await gateway.runtime.submit(request(MAIN, text, **more))).run.id


async def test_a_run_is_stopped_at_its_own_limit_and_keeps_what_it_had_written(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held("half of ", "a reply"), "next"])
    async with running(tmp_path, model) as gateway:
        run = await ended(gateway, await begin(gateway, timeout_s=ENOUGH_S))
        assert (run.state, run.error_code, run.reply) == (RunState.TIMEOUT, "run_timeout", "half of a reply")
        assert "0.6 s" in (run.error or "")
        partial = (await transcript_of(gateway))[-1]
        assert (partial.role, partial.text, partial.stop_reason) == (Role.ASSISTANT, "half of a reply", "timeout")
        assert not (await session_of(gateway)).aborted_last_run
        assert await gateway.ask("main", "go on") == "next"
    assert not model.refused


async def test_a_run_that_had_written_nothing_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=[held(), "next"])) as gateway:
        run = await ended(gateway, await begin(gateway, timeout_s=SHORT_S))
        assert (run.state, run.reply) == (RunState.TIMEOUT, None)
        assert await texts_of(gateway) == ["go"]
        assert await gateway.ask("main", "go on") == "next"


async def test_without_a_limit_of_its_own_the_default_holds(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held("half")])
    async with running(tmp_path, model, config=with_defaults(timeoutSeconds=SHORT_S)) as gateway:
        assert (await ended(gateway, await begin(gateway))).state is RunState.TIMEOUT


async def test_a_limit_of_zero_is_none(tmp_path: Path) -> None:
    gate, clock = asyncio.Event(), StageClock()
    model = ScriptedModel(replies=[Reply(text="long", gate=gate)])
    async with running(tmp_path, model, config=with_defaults(timeoutSeconds=SHORT_S), clock=clock) as gateway:
        run_id = await begin(gateway, timeout_s=0)
        await model.asked()
        clock.move_on(86_400)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2 * SHORT_S):
                await gateway.runtime.wait(run_id, 60)
        gate.set()
        assert (await ended(gateway, run_id)).reply == "long"


async def test_time_in_the_queue_does_not_count(tmp_path: Path) -> None:
    gate, clock = asyncio.Event(), StageClock()
    model = ScriptedModel(replies=[Reply(text="first", gate=gate), "second"])
    async with running(tmp_path, model, clock=clock) as gateway:
        await begin(gateway, timeout_s=0)
        waiting = await begin(gateway, timeout_s=10)
        clock.move_on(1_000)
        gate.set()
        run = await ended(gateway, waiting)
        assert (run.state, run.reply) == (RunState.OK, "second")
        assert run.ran_ms < 10_000


async def test_a_queued_run_is_not_stopped_by_its_limit(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="first", gate=gate), "second"])
    async with running(tmp_path, model) as gateway:
        await begin(gateway, timeout_s=0)
        waiting = await begin(gateway, timeout_s=SHORT_S)
        assert (await gateway.runtime.wait(waiting, 2 * SHORT_S)).state is RunState.QUEUED
        gate.set()
        assert (await ended(gateway, waiting)).reply == "second"


async def test_how_long_a_run_has_run_is_written_with_each_step(tmp_path: Path) -> None:
    clock = StageClock()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def dig() -> str:
            clock.move_on(30)
            return "dug"

    model = ScriptedModel(replies=[[call("dig")], [call("dig")], "done"])
    async with running(tmp_path, model, equip=equip, clock=clock) as gateway:
        run = await ended(gateway, await begin(gateway))
        assert 60_000 <= run.ran_ms < 70_000


async def test_time_before_a_crash_counts_up_to_the_last_commit(tmp_path: Path) -> None:
    clock, begun = StageClock(), asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def dig() -> str:
            clock.move_on(40)
            return "dug"

    first = ScriptedModel(replies=[[call("dig")], Reply(text="never", gate=asyncio.Event(), reached=begun)])
    async with dying(tmp_path, first, equip=equip, clock=clock) as gateway:
        await gateway.runtime.submit(request(MAIN, "go", id="r", timeout_s=60))
        await begun.wait()
        clock.move_on(1_000)  # of the step in progress, which no commit tells of
    clock.move_on(1_000_000)  # while no process held it
    second = ScriptedModel(replies=[[call("dig")], "done"])
    async with running(tmp_path, second, equip=equip, clock=clock) as gateway:
        run = await ended(gateway, "r")
        assert run.state is RunState.OK
        assert 80_000 <= run.ran_ms < 100_000


async def test_time_up_to_the_last_sign_of_life_is_counted_and_not_held_against_the_limit(tmp_path: Path) -> None:
    clock = StageClock()
    for _ in range(2):
        begun = asyncio.Event()
        model = ScriptedModel(replies=[Reply(text="never", gate=asyncio.Event(), reached=begun)])
        async with dying(tmp_path, model, clock=clock) as gateway:
            await gateway.runtime.submit(request(MAIN, "go", id="r", timeout_s=60))
            await begun.wait()
            clock.move_on(50)
            await gateway.store.sign_of_life()
            clock.move_on(1_000)  # of which nobody knows
    async with running(tmp_path, ScriptedModel(replies=["done"]), clock=clock) as gateway:
        run = await ended(gateway, "r")
        assert run.state is RunState.OK
        assert 100_000 <= run.ran_ms < 110_000


async def test_a_retried_run_has_its_whole_limit_again_and_its_time_goes_on(tmp_path: Path) -> None:
    clock = StageClock()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def dig() -> str:
            clock.move_on(50)
            return "dug"

    broken = ModelFailed("broken", retryable=False)
    model = ScriptedModel(replies=[[call("dig")], broken, [call("dig")], "done"])
    async with running(tmp_path, model, equip=equip, clock=clock) as gateway:
        await gateway.runtime.submit(request(MAIN, "go", id="r", timeout_s=60))
        assert (await ended(gateway, "r")).state is RunState.ERROR
        await gateway.store.retry_run("r")
        run = await ended(gateway, "r")
        assert run.state is RunState.OK
        assert 100_000 <= run.ran_ms < 110_000


async def test_a_run_whose_time_was_over_before_a_crash_does_not_get_more(tmp_path: Path) -> None:
    clock, begun = StageClock(), asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def dig() -> str:
            clock.move_on(100)
            return "dug"

    first = ScriptedModel(replies=[[call("dig")], Reply(text="never", gate=asyncio.Event(), reached=begun)])
    async with dying(tmp_path, first, equip=equip, clock=clock) as gateway:
        await gateway.runtime.submit(request(MAIN, "go", id="r", timeout_s=60))
        await begun.wait()
    second = ScriptedModel(replies=["never asked"])
    async with running(tmp_path, second, equip=equip, clock=clock) as gateway:
        assert (await ended(gateway, "r")).state is RunState.TIMEOUT
    assert not second.requests


async def test_a_function_agents_time_counts_over_a_crash_too(tmp_path: Path) -> None:
    clock, hanging = StageClock(), asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def dig() -> str:
            clock.move_on(40)
            return "dug"

        @gateway.agent("main")
        async def digger(context: FunctionContext) -> str:
            await context.call("dig")
            if not hanging.is_set():
                hanging.set()
                await asyncio.Event().wait()
            return "done"

    async with dying(tmp_path, equip=equip, clock=clock) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await hanging.wait()
        assert 40_000 <= (await stored(gateway, "r")).ran_ms < 50_000
    async with running(tmp_path, equip=equip, clock=clock) as gateway:
        run = await ended(gateway, "r")
        assert (run.reply, run.ran_ms >= 40_000) == ("done", True)


@pytest.mark.parametrize("effects", ["none", "outside"])
@pytest.mark.parametrize("count", [1, 3])
async def test_a_limit_during_a_tool_call_closes_the_call_with_an_error_result(
    tmp_path: Path, effects: ToolEffects, count: int
) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects=effects)
        async def hang() -> str:
            await asyncio.Event().wait()
            return "never"

    model = ScriptedModel(replies=[[call("hang")] * count, "next"])
    async with running(tmp_path, model, equip=equip) as gateway:
        run = await ended(gateway, await begin(gateway, timeout_s=ENOUGH_S))
        assert run.state is RunState.TIMEOUT
        results = [message for message in await transcript_of(gateway) if message.role is Role.TOOL_RESULT]
        assert [message.tool_call_id for message in results] == [f"{run.id}/0/{n}" for n in range(count)]
        began = "its effect is unknown" if effects == "outside" else "it was not carried out"
        assert all(message.is_error and began in message.text for message in results)
        assert await gateway.store.open_calls(run.id) == []
        assert await gateway.ask("main", "go on") == "next"
    assert not model.refused


async def test_a_call_that_was_done_before_the_limit_keeps_its_result(tmp_path: Path) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def post() -> str:
            return "posted"

        @gateway.tool(effects="outside")
        async def hang() -> str:
            await asyncio.Event().wait()
            return "never"

    model = ScriptedModel(replies=[[call("hang"), call("post")]])
    async with running(tmp_path, model, equip=equip) as gateway:
        run = await ended(gateway, await begin(gateway, timeout_s=ENOUGH_S))
        results = {m.tool_call_id: m.text for m in await transcript_of(gateway) if m.role is Role.TOOL_RESULT}
        assert results[f"{run.id}/0/1"] == "posted"
        assert "unknown" in results[f"{run.id}/0/0"]


async def test_a_tool_that_ignores_the_end_of_time_does_not_buy_more_of_it(tmp_path: Path) -> None:
    stubborn = asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def ignore() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stubborn.set()
            return "here anyway"

    model = ScriptedModel(replies=[[call("ignore")], "never asked"])
    async with running(tmp_path, model, equip=equip) as gateway:
        run = await ended(gateway, await begin(gateway, timeout_s=ENOUGH_S))
        assert stubborn.is_set()
        assert run.state is RunState.TIMEOUT
        assert (await texts_of(gateway))[-1] == "here anyway"
    assert len(model.requests) == 1


async def test_a_function_agent_is_stopped_at_its_limit(tmp_path: Path) -> None:
    async def slow(context: FunctionContext) -> str:
        await asyncio.Event().wait()
        return "never"

    async with running(tmp_path, equip=lambda gateway: gateway.add_agent("main", slow)) as gateway:
        run = await ended(gateway, await begin(gateway, timeout_s=SHORT_S))
        assert run.state is RunState.TIMEOUT


async def test_waiting_to_try_again_is_time_of_the_run(tmp_path: Path) -> None:
    def busy(_: ModelRequest) -> Scripted:
        return ModelFailed("busy", retryable=True, retry_after_s=30)

    async with running(tmp_path, ScriptedModel(replies=busy)) as gateway:
        run = await ended(gateway, await begin(gateway, timeout_s=SHORT_S))
        assert run.state is RunState.TIMEOUT


async def test_a_limit_that_comes_with_the_last_commit_leaves_one_outcome(tmp_path: Path) -> None:
    """Limits around the time a run takes: whichever comes first, the run has one end and its transcript fits it."""
    model = ScriptedModel(replies=lambda request: "done")
    async with running(tmp_path, model) as gateway:
        for n in range(60):
            await begin(gateway, f"m{n}", id=f"r{n}", timeout_s=0.0002 * (n + 1))
        for n in range(60):
            run = await ended(gateway, f"r{n}")
            assert run.state in (RunState.OK, RunState.TIMEOUT)
            replies = [m.text for m in await transcript_of(gateway) if m.run_id == run.id and m.role is Role.ASSISTANT]
            assert replies == ([run.reply] if run.reply is not None else [])
            assert (run.state is RunState.OK) <= (run.reply == "done")
    assert not model.refused
