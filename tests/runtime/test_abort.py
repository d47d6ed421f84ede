"""Abort: a row before it is answered, and then the end of the run, whatever it was doing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.agents.toolset import ToolEffects
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.core.runs import RunState
from backchannel.errors import RunNotFound
from backchannel.gateway.app import Gateway
from backchannel.runtime.events import ReplyGrew, ToolStarted
from tests.support.clocks import StageClock
from tests.support.gateways import (
    MAIN,
    Heard,
    dying,
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
from tests.support.talks import A, config, send, talking

pytestmark = pytest.mark.anyio
SIDE = "agent:main:side"


async def test_an_aborted_run_leaves_its_partial_reply_and_the_session_says_so(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held("half of ", "it"), "next"])
    async with running(tmp_path, model) as gateway:
        heard = Heard(gateway)
        run_id = (await gateway.submit("main", "go")).id
        await heard.until(lambda: bool(heard.of(ReplyGrew)))
        assert await gateway.runtime.abort(MAIN, None) == [run_id]
        run = await ended(gateway, run_id)
        assert (run.state, run.error_code, run.abort_requested) == (RunState.ABORTED, "aborted", True)
        partial = (await transcript_of(gateway))[-1]
        assert (partial.role, partial.stop_reason, partial.run_id) == (Role.ASSISTANT, "aborted", run_id)
        assert partial.text == run.reply
        assert (await session_of(gateway)).aborted_last_run
        assert await gateway.ask("main", "go on") == "next"
        assert not (await session_of(gateway)).aborted_last_run
    assert not model.refused
    assert [message.role for message in model.requests[1].messages] == [Role.USER, Role.ASSISTANT, Role.USER]


async def test_an_aborted_run_that_had_said_nothing_leaves_a_good_sequence(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held(), "next"])
    async with running(tmp_path, model) as gateway:
        run_id = (await gateway.submit("main", "go")).id
        await model.asked()
        await gateway.runtime.abort(MAIN, run_id)
        assert (await ended(gateway, run_id)).reply is None
        assert await gateway.ask("main", "go on") == "next"
        assert await texts_of(gateway) == ["go", "go on", "next"]
    assert not model.refused


async def test_a_queued_run_is_aborted_before_it_starts(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held("x"), "third"])
    async with running(tmp_path, model) as gateway:
        first, second, third = [(await gateway.submit("main", text)).id for text in ("one", "two", "three")]
        assert await gateway.runtime.abort(MAIN, second) == [second]
        run = await stored(gateway, second)
        assert (run.state, run.started_at) == (RunState.ABORTED, None)
        assert await gateway.runtime.abort(MAIN, None) == [first]
        assert (await ended(gateway, third)).reply == "third"
        assert "two" not in await texts_of(gateway)
        assert (await session_of(gateway)).queued == 0


async def test_a_run_that_waits_for_a_slot_is_aborted(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held("x"), "next"])
    async with running(tmp_path, model, config=with_defaults(maxConcurrent=1)) as gateway:
        await gateway.submit("main", "holds the slot")
        waiting = (await gateway.submit(SIDE, "waits")).id
        assert await gateway.runtime.abort(SIDE, waiting) == [waiting]
        await gateway.runtime.abort(MAIN, None)
        assert await gateway.ask(SIDE, "next") == "next"
        assert await texts_of(gateway, SIDE) == ["next", "next"]


async def test_aborting_what_has_ended_does_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=["done"])) as gateway:
        await gateway.ask("main", "go", run_id="r")
        before = await stored(gateway, "r")
        assert await gateway.runtime.abort(MAIN, "r") == []
        assert await gateway.runtime.abort(MAIN, None) == []
        assert await stored(gateway, "r") == before
        assert not (await session_of(gateway)).aborted_last_run


async def test_aborting_a_run_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=["done", "done"])) as gateway:
        assert await gateway.runtime.abort(MAIN, None) == [], "nobody has written to it"
        await gateway.ask("main", "go", run_id="r")
        await gateway.ask(SIDE, "go")
        with pytest.raises(RunNotFound, match="no run 'nope'"):
            await gateway.runtime.abort(MAIN, "nope")
        with pytest.raises(RunNotFound, match="on session"):
            await gateway.runtime.abort(SIDE, "r")


@pytest.mark.parametrize("effects", ["none", "outside"])
@pytest.mark.parametrize("count", [1, 3])
async def test_an_abort_during_tool_calls_closes_each_with_an_error_result(
    tmp_path: Path, effects: ToolEffects, count: int
) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects=effects)
        async def hang() -> str:
            await asyncio.Event().wait()
            return "never"

    model = ScriptedModel(replies=[Reply(text="calling", calls=(call("hang"),) * count), "next"])
    async with running(tmp_path, model, equip=equip) as gateway:
        heard = Heard(gateway)
        run_id = (await gateway.submit("main", "go")).id
        await heard.until(lambda: len(heard.of(ToolStarted)) == count)
        await gateway.runtime.abort(MAIN, run_id)
        run = await ended(gateway, run_id)
        assert (run.state, run.reply) == (RunState.ABORTED, "calling")
        results = [message for message in await transcript_of(gateway) if message.role is Role.TOOL_RESULT]
        assert [message.tool_call_id for message in results] == [f"{run_id}/0/{n}" for n in range(count)]
        assert all(message.is_error for message in results)
        assert await gateway.ask("main", "go on") == "next"
    assert not model.refused


async def test_a_tool_that_ignores_an_abort_does_not_keep_the_run_alive(tmp_path: Path) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def ignore() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "here anyway"
            return "never"

    model = ScriptedModel(replies=[[call("ignore")], "next"])
    async with running(tmp_path, model, equip=equip) as gateway:
        heard = Heard(gateway)
        run_id = (await gateway.submit("main", "go")).id
        await heard.until(lambda: bool(heard.of(ToolStarted)))
        await gateway.runtime.abort(MAIN, run_id)
        assert (await ended(gateway, run_id)).state is RunState.ABORTED
        assert await gateway.ask("main", "go on") == "next"
    assert not model.refused


async def test_an_abort_while_the_run_waits_to_try_again_ends_it(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[ModelFailed("busy", retryable=True, retry_after_s=60), "next"])
    async with running(tmp_path, model) as gateway:
        run_id = (await gateway.submit("main", "go")).id
        await model.asked()
        await gateway.runtime.abort(MAIN, run_id)
        assert (await ended(gateway, run_id)).state is RunState.ABORTED
        assert await gateway.ask("main", "go on") == "next"


async def test_a_function_agent_is_aborted(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def slow(context: FunctionContext) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with running(tmp_path, equip=lambda gateway: gateway.add_agent("main", slow)) as gateway:
        run_id = (await gateway.submit("main", "go")).id
        await begun.wait()
        await gateway.runtime.abort(MAIN, run_id)
        assert (await ended(gateway, run_id)).state is RunState.ABORTED


async def test_an_abort_right_after_the_message_was_accepted_asks_no_model(tmp_path: Path) -> None:
    model = ScriptedModel(replies=lambda request: "next")
    async with running(tmp_path, model) as gateway:
        for n in range(20):
            accepting = asyncio.create_task(gateway.submit("main", "go", run_id=f"r{n}"))
            aborting = asyncio.create_task(gateway.runtime.abort(MAIN, f"r{n}"))
            if n == 0:
                await accepting  # the first makes the session
            await asyncio.gather(accepting, aborting, return_exceptions=True)
            assert (await ended(gateway, f"r{n}")).state in (RunState.ABORTED, RunState.OK)
        assert await gateway.ask("main", "next") == "next"
        assert not await live_runs(gateway)
    assert not model.refused


async def test_accepted_and_aborted_in_one_commit_a_run_never_begins(tmp_path: Path) -> None:
    asked: list[str] = []

    async def note(context: FunctionContext) -> str:
        asked.append(context.run_id)
        return "done"

    async with running(tmp_path, equip=lambda gateway: gateway.add_agent("main", note)) as gateway:
        await gateway.ask("main", "makes the session", run_id="first")
        for n in range(10):
            # Both units reach the writer before it can answer either.
            accepting = gateway.submit("main", "go", run_id=f"r{n}")
            aborting = gateway.runtime.abort(MAIN, f"r{n}")
            await asyncio.gather(accepting, aborting)
            assert (await ended(gateway, f"r{n}")).state is RunState.ABORTED
    assert asked == ["first"]


async def test_an_abort_that_races_with_the_last_commit_leaves_one_outcome(tmp_path: Path) -> None:
    """Reply and abort each take a varied number of turns of the loop; whichever wins, all tell the same."""

    async def take_turns(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def reply(request: ModelRequest) -> Scripted:
        await take_turns(len(model.requests) % 13)
        return Reply(text=("all ", "of it"))

    model = ScriptedModel(replies=reply)
    outcomes: set[RunState] = set()
    async with running(tmp_path, model) as gateway:
        await gateway.ask("main", "first")
        for n in range(150):
            await gateway.submit("main", f"m{n}", run_id=f"r{n}")
            await take_turns(n % 11)
            aborted = await gateway.runtime.abort(MAIN, f"r{n}")
            run = await ended(gateway, f"r{n}")
            outcomes.add(run.state)
            assert (run.state is RunState.ABORTED) == (aborted == [run.id])
            replies = [m for m in await transcript_of(gateway) if m.run_id == run.id and m.role is Role.ASSISTANT]
            if run.state is RunState.OK:
                assert [message.text for message in replies] == ["all of it"]
            else:
                assert run.state is RunState.ABORTED
                assert [message.stop_reason for message in replies] in ([], ["aborted"])
        assert gateway.runtime.running == 0
    assert outcomes == {RunState.ABORTED, RunState.OK}
    assert not model.refused


async def test_an_abort_that_races_with_rounds_of_tools_leaves_no_call_open(tmp_path: Path) -> None:
    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def post() -> str:
            return "posted"

        @gateway.tool(effects="none")
        async def look() -> str:
            return "seen"

    def reply(request: ModelRequest) -> Scripted:
        if request.messages[-1].role is Role.TOOL_RESULT:
            return "done"
        return Reply(text="calling", calls=(call("post"), call("look"), call("post")))

    model = ScriptedModel(replies=reply)
    async with running(tmp_path, model, equip=equip) as gateway:
        await gateway.ask("main", "first")
        for n in range(80):
            await gateway.submit("main", f"m{n}", run_id=f"r{n}")
            for _ in range(n % 40):
                await asyncio.sleep(0)
            await gateway.runtime.abort(MAIN, f"r{n}")
            run = await ended(gateway, f"r{n}")
            assert await gateway.store.open_calls(run.id) == []
            mine = [message for message in await transcript_of(gateway) if message.run_id == run.id]
            planned = [block.id for message in mine for block in message.tool_calls]
            assert sorted(m.tool_call_id or "" for m in mine if m.role is Role.TOOL_RESULT) == sorted(planned)
    assert not model.refused


async def test_many_aborts_of_one_run_are_one(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held("half"), "next"])
    async with running(tmp_path, model) as gateway:
        run_id = (await gateway.submit("main", "go")).id
        await model.asked()
        await asyncio.gather(*(gateway.runtime.abort(MAIN, run_id) for _ in range(20)))
        assert (await ended(gateway, run_id)).state is RunState.ABORTED
        assert await gateway.ask("main", "go on") == "next"
        assert len([m for m in await transcript_of(gateway) if m.stop_reason == "aborted"]) <= 1


async def test_an_aborted_run_stays_aborted_after_a_crash(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held("half")])

    async with dying(tmp_path, model) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await model.asked()
        assert await gateway.store.request_abort(MAIN, "r")
    second = ScriptedModel(replies=["next"])
    async with running(tmp_path, second) as gateway:
        assert (await ended(gateway, "r")).state is RunState.ABORTED
        assert (await session_of(gateway)).aborted_last_run
        assert await gateway.ask("main", "go on") == "next"
    assert len(second.requests) == 1
    assert not second.refused


async def test_a_crash_right_after_the_commit_of_an_abort_changes_nothing_of_it(tmp_path: Path) -> None:
    stuck = asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="outside")
        async def hang() -> str:
            stuck.set()
            assert gateway.failed is not None
            try:
                await asyncio.Event().wait()
            finally:  # holds on to the run, so that only the abort's own row is there when the process dies
                await asyncio.wait([gateway.failed])
            return "never"

    async with dying(tmp_path, ScriptedModel(replies=[[call("hang")]]), equip=equip) as gateway:
        await gateway.submit("main", "go", run_id="r")
        await stuck.wait()
        assert await gateway.runtime.abort(MAIN, "r") == ["r"]
        assert (await stored(gateway, "r")).state is RunState.RUNNING
    model = ScriptedModel(replies=["next"])
    async with running(tmp_path, model, equip=equip) as gateway:
        assert (await ended(gateway, "r")).state is RunState.ABORTED
        [result] = [message for message in await transcript_of(gateway) if message.role is Role.TOOL_RESULT]
        assert result.is_error and "unknown" in result.text
        assert await gateway.ask("main", "go on") == "next"
    assert not model.refused


async def test_a_run_whose_agent_is_gone_can_be_aborted(tmp_path: Path) -> None:
    def with_helper(gateway: Gateway) -> None:
        async def helper(context: FunctionContext) -> str:
            await asyncio.Event().wait()
            return "never"

        gateway.add_agent("helper", helper)

    async with dying(tmp_path, equip=with_helper) as gateway:
        await gateway.submit("agent:helper:main", "go", run_id="active")
        await gateway.submit("agent:helper:main", "go", run_id="queued")
    async with running(tmp_path) as gateway:
        assert await gateway.runtime.abort("agent:helper:main", "queued") == ["queued"]
        assert await gateway.runtime.abort("agent:helper:main", None) == ["active"]
        assert (await ended(gateway, "active")).state is RunState.ABORTED
        await settled(gateway)


async def test_a_run_that_waits_for_other_suspects_can_be_aborted_and_then_retried(tmp_path: Path) -> None:
    begun: dict[str, asyncio.Event] = {name: asyncio.Event() for name in "ab"}
    release = asyncio.Event()

    def equip(gateway: Gateway) -> None:
        async def agent(context: FunctionContext) -> str:
            begun[context.text].set()
            await release.wait()
            return "done"

        gateway.add_agent("main", agent)

    for _ in range(2):
        async with dying(tmp_path, equip=equip) as gateway:
            for name in "ab":
                await gateway.submit(f"agent:main:{name}", name, run_id=name)
                await begun[name].wait()
                begun[name].clear()
    async with running(tmp_path, equip=equip) as gateway:
        await begun["a"].wait()
        assert await gateway.runtime.abort("agent:main:b", "b") == ["b"]
        assert (await ended(gateway, "b")).state is RunState.ABORTED
        assert not begun["b"].is_set()
        release.set()
        await gateway.store.retry_run("b")
        assert (await ended(gateway, "b")).reply == "done"
        assert (await ended(gateway, "a")).reply == "done"


async def test_a_session_can_be_deleted_when_nobody_works_on_its_run(tmp_path: Path) -> None:
    async def helper(context: FunctionContext) -> str:
        await asyncio.Event().wait()
        return "never"

    async with dying(tmp_path, equip=lambda gateway: gateway.add_agent("helper", helper)) as gateway:
        await gateway.submit("agent:helper:side", "go", run_id="active")
    async with running(tmp_path) as gateway, asyncio.timeout(20):
        session = await gateway.runtime.delete(SessionKey.parse("agent:helper:side"))
        assert session.archived_at is not None


async def test_an_abort_ends_the_run_also_when_the_clock_stands_still(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[held("half"), "next"])
    async with running(tmp_path, model, clock=StageClock()) as gateway:
        run_id = (await gateway.submit("main", "go")).id
        await model.asked()
        await gateway.runtime.abort(MAIN, run_id)
        run = await ended(gateway, run_id)
        assert run.state is RunState.ABORTED
        assert run.ended_at is not None and run.started_at is not None and run.ended_at >= run.started_at


async def test_a_run_that_is_stopped_while_it_waits_for_another_session_says_that_the_message_was_sent(
    tmp_path: Path,
) -> None:
    gate = asyncio.Event()
    says = {"a": {"person": send(timeoutSeconds=30)}, "b": {"request": Reply(text="here", gate=gate)}}
    async with talking(tmp_path, config("a", "b"), clock=None, faults=None, **says) as talk:
        run = await talk.gateway.submit(A, "go")
        await talk.players["b"].model.asked()
        await talk.gateway.runtime.abort(A, run.id)
        await ended(talk.gateway, run.id)
        result = next(text for text in await texts_of(talk.gateway, A) if text.startswith("The run ended"))
        gate.set()

    assert "its message was sent" in result and "not started" not in result
