"""After a crash: every accepted run goes on from its last commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from backchannel.agents.registry import FunctionContext, ToolFailed
from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelFailed, ModelRequest, ToolContext
from backchannel.core.facts import RunChanged
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role
from backchannel.core.runs import RunState
from backchannel.errors import InvalidRequest, RunNotFound
from backchannel.gateway.app import Gateway
from backchannel.runtime.events import Event
from tests.support.gateways import (
    MAIN,
    Power,
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
    with_defaults,
)
from tests.support.slow import Slow

pytestmark = pytest.mark.anyio


def results_of(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message.role is Role.TOOL_RESULT]


def add_hanging_post(gateway: Gateway, begun: asyncio.Event, posts: Counter[str]) -> None:
    """Give a gateway a tool whose effects are outside, and which does not come to its end."""

    @gateway.tool(effects="outside")
    async def post(context: ToolContext) -> str:
        posts[context.call_id] += 1
        begun.set()
        await asyncio.Event().wait()
        return "never"


# --- Going on ---


async def test_queued_runs_start_after_a_crash_in_their_order(tmp_path: Path) -> None:
    async with dying(tmp_path, ScriptedModel(replies=[held()])) as gateway:
        for n in range(4):
            await gateway.submit("main", f"m{n}", run_id=f"r{n}")
    model = ScriptedModel(replies=echo)
    async with running(tmp_path, model) as gateway:
        await settled(gateway)
        assert await texts_of(gateway) == [text for n in range(4) for text in (f"m{n}", f"re: m{n}")]
    assert not model.refused


async def test_queued_runs_start_after_a_clean_end_too(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=[held()])) as gateway:
        for n in range(3):
            await gateway.submit("main", f"m{n}", run_id=f"r{n}")
    async with running(tmp_path, ScriptedModel(replies=echo)) as gateway:
        await settled(gateway)
        assert await texts_of(gateway) == [text for n in range(3) for text in (f"m{n}", f"re: m{n}")]


async def test_many_sessions_go_on_after_a_crash_within_the_limit(tmp_path: Path) -> None:
    config = with_defaults(maxConcurrent=3)
    async with dying(tmp_path, ScriptedModel(replies=lambda request: held()), config=config) as gateway:
        for n in range(12):
            await gateway.submit(f"agent:main:s{n}", f"m{n}", run_id=f"r{n}")
    at_once: list[int] = []

    async def count(request: ModelRequest) -> Scripted:
        at_once.append(gateway.runtime.running)
        return echo(request)

    async with running(tmp_path, ScriptedModel(replies=count), config=config) as gateway:
        await settled(gateway)
        for n in range(12):
            assert (await stored(gateway, f"r{n}")).reply == f"re: m{n}"
    assert max(at_once) <= 3


async def test_an_interrupted_run_goes_on_after_its_last_committed_step(tmp_path: Path) -> None:
    looked: list[str] = []

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def look(context: ToolContext) -> str:
            looked.append(context.call_id)
            return "seen"

    begun = asyncio.Event()
    first = ScriptedModel(replies=[[call("look")], held(reached=begun)])
    async with dying(tmp_path, first, equip=equip) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await begun.wait()
    second = ScriptedModel(replies=["done"])
    async with running(tmp_path, second, equip=equip) as gateway:
        run = await ended(gateway, "r")
        assert (run.reply, run.step) == ("done", 2)
        assert await texts_of(gateway) == ["go", "", "seen", "done"]
    assert looked == ["r/0/0"]
    assert second.requests[0].messages == first.requests[1].messages


async def test_a_clean_end_in_the_middle_of_a_reply_leaves_nothing_of_it_and_asks_again(tmp_path: Path) -> None:
    begun = asyncio.Event()
    half = Reply(text=("half ", "of it"), gate=asyncio.Event(), held_at=1, reached=begun)
    async with running(tmp_path, ScriptedModel(replies=[half])) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await begun.wait()
    async with running(tmp_path, ScriptedModel(replies=["whole"])) as gateway:
        assert (await ended(gateway, "r")).reply == "whole"
        assert await texts_of(gateway) == ["go", "whole"]


@pytest.mark.parametrize("end", [dying, running], ids=["crash", "clean end"])
async def test_a_call_with_outside_effects_that_had_started_is_answered_as_interrupted(
    tmp_path: Path, end: Callable[..., AbstractAsyncContextManager[Gateway]]
) -> None:
    started: Counter[str] = Counter()
    all_at_work = asyncio.Event()

    def equip(gateway: Gateway) -> None:
        async def work(context: ToolContext) -> str:
            started[context.call_id] += 1
            if started.total() == 3:
                all_at_work.set()
            if started[context.call_id] == 1:
                await asyncio.Event().wait()
            return "done at the second try"

        gateway.tool(effects="outside", name="post")(work)
        gateway.tool(effects="none", name="look")(work)

    first = ScriptedModel(replies=[[call("post"), call("look"), call("post")]])
    async with end(tmp_path, first, equip=equip) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await all_at_work.wait()
    second = ScriptedModel(replies=["I see"])
    async with running(tmp_path, second, equip=equip) as gateway:
        assert (await ended(gateway, "r")).reply == "I see"
        results = {message.tool_call_id: message for message in results_of(await transcript_of(gateway))}
        assert results["r/0/1"].text == "done at the second try"
        for call_id in ("r/0/0", "r/0/2"):
            assert results[call_id].is_error
            assert "interrupted" in results[call_id].text and "not known" in results[call_id].text
    assert started == {"r/0/0": 1, "r/0/1": 2, "r/0/2": 1}
    assert not second.refused


async def test_a_call_that_had_started_is_answered_as_interrupted_also_if_its_tool_is_not_back(tmp_path: Path) -> None:
    begun, posts = asyncio.Event(), Counter[str]()
    first = ScriptedModel(replies=[[call("post")]])
    async with dying(tmp_path, first, equip=lambda gateway: add_hanging_post(gateway, begun, posts)) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await begun.wait()
    async with running(tmp_path, ScriptedModel(replies=["I see"])) as gateway:
        assert (await ended(gateway, "r")).reply == "I see"
        [result] = results_of(await transcript_of(gateway))
    assert result.is_error and "interrupted" in result.text and "not known" in result.text


async def test_a_call_that_had_not_started_simply_runs(tmp_path: Path) -> None:
    """The process dies with the commit that would mark the call as started."""
    posted: list[str] = []

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def post(context: ToolContext) -> str:
            posted.append(context.call_id)
            return "posted"

    power, is_planned = Power(), asyncio.Event()

    def cut(event: Event) -> None:
        if isinstance(event, RunChanged) and event.run.step == 1:  # the reply with its call is committed
            power.is_cut = True
            is_planned.set()

    async with dying(tmp_path, ScriptedModel(replies=[[call("post")]]), equip=equip, power=power) as gateway:
        gateway.runtime.hub.listen(cut)
        await gateway.submit("main", "go", run_id="r")
        await is_planned.wait()
    assert posted == []
    async with running(tmp_path, ScriptedModel(replies=["done"]), equip=equip) as gateway:
        assert (await ended(gateway, "r")).reply == "done"
    assert posted == ["r/0/0"]


async def test_a_tool_that_is_gone_after_the_crash_is_an_error_result(tmp_path: Path) -> None:
    begun = asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def look() -> str:
            begun.set()
            await asyncio.Event().wait()
            return "never"

    async with dying(tmp_path, ScriptedModel(replies=[[call("look")]]), equip=equip) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await begun.wait()
    model = ScriptedModel(replies=["so be it"])
    async with running(tmp_path, model) as gateway:
        assert (await ended(gateway, "r")).reply == "so be it"
        [result] = results_of(await transcript_of(gateway))
        assert result.is_error and "no tool 'look'" in result.text
    assert not model.refused


async def test_notes_that_came_during_the_run_enter_after_it_also_over_a_crash(tmp_path: Path) -> None:
    begun = asyncio.Event()
    async with dying(tmp_path, ScriptedModel(replies=[held(reached=begun)])) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await begun.wait()
        await gateway.runtime.inject(SessionKey.parse(MAIN), "by the way", None)
    async with running(tmp_path, ScriptedModel(replies=["done"])) as gateway:
        await ended(gateway, "r")
        assert await texts_of(gateway) == ["go", "done", "by the way"]


# --- Agents that are not there yet ---


async def answer_done(context: FunctionContext) -> str:
    return f"{context.agent_id} done"


async def hang(context: FunctionContext) -> str:
    await asyncio.Event().wait()
    return "never"


async def test_runs_of_an_agent_that_is_not_there_wait_until_it_is_registered(tmp_path: Path) -> None:
    async with dying(tmp_path, equip=lambda gateway: gateway.add_agent("Help Desk", hang)) as gateway:
        await gateway.submit("agent:help-desk:main", "one", run_id="active")
        await gateway.submit("agent:help-desk:main", "two", run_id="queued")
        await gateway.submit("agent:help-desk:other", "three", run_id="other")
    async with running(tmp_path, ScriptedModel(replies=["hi"])) as gateway:
        assert await gateway.ask("main", "hello") == "hi"
        states = {run.id: run.state for run in await live_runs(gateway)}
        assert states == {"active": "running", "queued": "queued", "other": "running"}
        gateway.add_agent("Help Desk", answer_done)
        for run_id in ("active", "queued", "other"):
            assert (await ended(gateway, run_id)).reply == "help-desk done"


async def test_registering_an_agent_again_disturbs_none_of_its_runs(tmp_path: Path) -> None:
    agent = Slow()
    async with running(tmp_path, equip=agent.equip) as gateway:
        await gateway.submit("main", "a", run_id="a")
        await gateway.submit("main", "b", run_id="b")
        await agent.until_began("a")
        agent.equip(gateway)
        await gateway.store.check_writable()
        agent.equip(gateway)
        agent.let_end("a", "b")
        await settled(gateway)
        assert agent.began == ["a", "b"]
        assert await texts_of(gateway) == ["a", "done", "b", "done"]


# --- Function agents ---


async def test_a_function_agent_runs_again_and_its_calls_return_what_they_returned(tmp_path: Path) -> None:
    begun, rolled, went = asyncio.Event(), Counter[str](), Counter[str]()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def roll(context: ToolContext) -> int:
            rolled[context.call_id] += 1
            return rolled.total()

        @gateway.tool(effects="none")
        async def refuse() -> str:
            raise ValueError("no")

        @gateway.agent("main")
        async def player(context: FunctionContext) -> str:
            went[context.run_id] += 1
            first = await context.call("roll")
            with pytest.raises(ToolFailed, match="ValueError: no"):
                await context.call("refuse")
            second = await context.call("roll")
            if went[context.run_id] == 1:
                begun.set()
                await asyncio.Event().wait()
            return f"{first} {second} {await context.call('roll')}"

    async with dying(tmp_path, equip=equip) as gateway:
        await gateway.submit("main", "play", run_id="r")
        await begun.wait()
    async with running(tmp_path, equip=equip) as gateway:
        assert (await ended(gateway, "r")).reply == "1 2 3"
        play, *traces, reply = await transcript_of(gateway)
        assert (play.text, reply.text) == ("play", "1 2 3")
        # Its calls are in the transcript once, each right before its result.
        asked, answered = traces[::2], traces[1::2]
        assert [message.tool_calls[0].id for message in asked] == [f"r/f/{n}" for n in (1, 2, 3, 4)]
        assert [message.tool_call_id for message in answered] == [f"r/f/{n}" for n in (1, 2, 3, 4)]
        assert [message.text for message in answered] == ["1", "ValueError: no", "2", "3"]
    assert went == {"r": 2}
    assert rolled == {"r/f/1": 1, "r/f/3": 1, "r/f/4": 1}


async def test_a_function_agents_call_that_had_started_is_told_to_it_as_interrupted(tmp_path: Path) -> None:
    begun, posts = asyncio.Event(), Counter[str]()

    def equip(gateway: Gateway) -> None:
        add_hanging_post(gateway, begun, posts)

        @gateway.agent("main")
        async def poster(context: FunctionContext) -> str:
            try:
                return str(await context.call("post"))
            except ToolFailed as failed:
                return f"failed: {failed}"

    async with dying(tmp_path, equip=equip) as gateway:
        await gateway.submit("main", "post", run_id="r")
        await begun.wait()
    async with running(tmp_path, equip=equip) as gateway:
        assert "interrupted" in ((await ended(gateway, "r")).reply or "")
    assert posts == {"r/f/1": 1}


async def test_a_function_agents_call_is_progress_that_clears_the_count(tmp_path: Path) -> None:
    went: list[int] = []

    def equip(gateway: Gateway, begun: asyncio.Event) -> None:
        @gateway.tool(effects="none")
        async def look() -> str:
            return "seen"

        @gateway.agent("main")
        async def walker(context: FunctionContext) -> str:
            went.append(len(went))
            for _ in range(len(went)):
                await context.call("look")
            begun.set()
            if len(went) < 6:
                await asyncio.Event().wait()
            return "arrived"

    await die_with_function(tmp_path, equip, times=5)
    async with running(tmp_path, equip=lambda gateway: equip(gateway, asyncio.Event())) as gateway:
        assert (await ended(gateway, "r")).reply == "arrived"


# --- Retry ---


async def test_a_retry_after_others_have_spoken_answers_its_own_message(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[ModelFailed("no", retryable=False), "two", "one"])
    async with running(tmp_path, model) as gateway:
        await gateway.submit("main", "first", run_id="r")
        await ended(gateway, "r")
        await gateway.ask("main", "second")
        await gateway.store.retry_run("r")
        assert (await ended(gateway, "r")).reply == "one"
        assert await texts_of(gateway) == ["first", "second", "two", "one"]
    assert [message.text for message in model.requests[-1].messages] == ["second", "two", "first"]
    assert not model.refused


async def test_a_retried_run_numbers_its_calls_on(tmp_path: Path) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def post() -> str:
            return "posted"

    model = ScriptedModel(replies=[[call("post")], ModelFailed("no", retryable=False), [call("post")], "done"])
    async with running(tmp_path, model, equip=equip) as gateway:
        await gateway.submit("main", "go", run_id="r")
        assert (await ended(gateway, "r")).state is RunState.ERROR
        await gateway.store.retry_run("r")
        assert (await ended(gateway, "r")).reply == "done"
        assert [message.tool_call_id for message in results_of(await transcript_of(gateway))] == ["r/0/0", "r/1/0"]
    assert not model.refused


async def test_a_retried_function_agent_does_not_begin_a_call_twice(tmp_path: Path) -> None:
    begun, posts, looks = asyncio.Event(), Counter[str](), Counter[str]()

    def equip(gateway: Gateway) -> None:
        add_hanging_post(gateway, begun, posts)

        @gateway.tool(effects="none")
        async def look(context: ToolContext) -> int:
            looks[context.call_id] += 1
            return looks[context.call_id]

        @gateway.agent("main")
        async def poster(context: FunctionContext) -> str:
            seen = await context.call("look")
            try:
                return str(await context.call("post"))
            except ToolFailed as failed:
                return f"{seen} {failed}"

    async with running(tmp_path, equip=equip) as gateway:
        await gateway.submit("main", "post", run_id="r")
        await begun.wait()
        await gateway.runtime.abort(MAIN, "r")
        assert (await ended(gateway, "r")).state is RunState.ABORTED
        await gateway.store.retry_run("r")
        reply = (await ended(gateway, "r")).reply or ""
        assert reply.startswith("1 ") and "not known" in reply
    assert posts == {"r/f/2": 1}
    assert looks == {"r/f/1": 1}


async def test_a_run_aborted_in_the_queue_can_be_retried(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="one", gate=gate), "two"])
    async with running(tmp_path, model) as gateway:
        await gateway.submit("main", "first", run_id="first")
        await gateway.submit("main", "second", run_id="second")
        await gateway.runtime.abort(MAIN, "second")
        await gateway.store.retry_run("second")
        gate.set()
        assert (await ended(gateway, "second")).reply == "two"
        assert await texts_of(gateway) == ["first", "one", "second", "two"]


async def test_what_ended_well_or_still_lives_is_not_retried(tmp_path: Path) -> None:
    model = ScriptedModel(replies=["done", held()])
    async with running(tmp_path, model) as gateway:
        await gateway.ask("main", "go", run_id="ok")
        await gateway.submit("main", "go", run_id="active")
        await gateway.submit("main", "go", run_id="queued")
        for run_id in ("ok", "active", "queued"):
            before = await stored(gateway, run_id)
            with pytest.raises(InvalidRequest, match=f"'{run_id}' is"):
                await gateway.store.retry_run(run_id)
            assert await stored(gateway, run_id) == before
        with pytest.raises(RunNotFound):
            await gateway.store.retry_run("nope")
        assert (await session_of(gateway)).queued == 1
