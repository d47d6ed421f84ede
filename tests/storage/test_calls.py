"""Tool calls: planned, started and done, each with exactly one result, whatever happens to the run."""

from __future__ import annotations

import msgspec
import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.core.runs import (
    FUNCTION_STEP,
    CallState,
    Outcome,
    RunStarted,
    RunState,
    ToolCall,
    function_call_id,
    tool_call_id,
)
from backchannel.errors import FenceLost, StopRequested
from backchannel.storage.store import Store
from tests.storage.support import (
    ABORTED,
    FAILED,
    MAIN,
    Host,
    begin,
    note,
    result_of,
    step,
    texts,
    transcript,
)
from tests.support.databases import broken_constraint

pytestmark = pytest.mark.anyio


async def plan(store: Store, started: RunStarted, *names: str, number: int = 0) -> list[ToolCall]:
    """Commit a reply that asks for these tools."""
    committed = await store.commit_reply(started.fence, step(started, "looking", names, number=number))
    return committed.calls


async def test_a_reply_with_calls_plans_them_under_our_own_ids_and_the_run_goes_on(store: Store) -> None:
    started = await begin(store)
    calls = await plan(store, started, "look", "ask")
    assert [call.id for call in calls] == [tool_call_id(started.run.id, 0, index) for index in range(2)]
    assert [(call.name, call.arguments, call.state) for call in calls] == [
        ("look", '{"n":0}', CallState.PLANNED),
        ("ask", '{"n":1}', CallState.PLANNED),
    ]
    assert await store.open_calls(started.run.id) == calls
    run = await store.run(started.run.id)
    assert run is not None
    assert (run.state, run.step) == (RunState.RUNNING, 1)


async def test_calls_are_opened_in_order_over_several_steps(store: Store) -> None:
    started = await begin(store)
    for number in range(12):
        calls = await plan(store, started, *(["look"] * 12), number=number)
        assert [call.position for call in await store.open_calls(started.run.id)] == list(range(12))
        for call in calls:
            await store.commit_result(started.fence, result_of(call), 1)
    assert await store.open_calls(started.run.id) == []


async def test_a_result_enters_the_transcript_in_the_commit_that_closes_its_call(store: Store) -> None:
    started = await begin(store)
    first, second = await plan(store, started, "look", "ask")
    before = store.driver.commits
    await store.commit_result(started.fence, result_of(second, "later asked, sooner done"), 42)
    assert store.driver.commits == before + 1
    assert [call.id for call in await store.open_calls(started.run.id)] == [first.id]
    last = (await transcript(store))[-1]
    assert (last.role, last.tool_call_id, last.tool_name) == (Role.TOOL_RESULT, second.id, "ask")
    run = await store.run(started.run.id)
    assert run is not None
    assert run.ran_ms == 42


async def test_a_call_keeps_its_first_result(store: Store) -> None:
    started = await begin(store)
    (call,) = await plan(store, started, "look")
    await store.commit_result(started.fence, result_of(call, "first"), 1)
    await store.commit_result(started.fence, result_of(call, "second"), 1)
    assert await texts(store) == ["hello", "looking", "first"]


async def test_a_result_for_a_call_that_nobody_made_is_not_written(store: Store) -> None:
    started = await begin(store)
    (call,) = await plan(store, started, "look")
    stranger = ToolCall(
        id="stranger", run_id=call.run_id, step=0, position=9, name="x", arguments="{}", state=CallState.PLANNED
    )
    await store.commit_result(started.fence, result_of(stranger), 1)
    assert await texts(store) == ["hello", "looking"]


async def test_a_started_call_is_known_as_started_after_a_crash(host: Host) -> None:
    started = await begin(host.store)
    first, _ = await plan(host.store, started, "send", "send")
    await host.store.start_call(started.fence, first.id)
    store = await host.restart()
    assert [call.state for call in await store.open_calls(started.run.id)] == [CallState.STARTED, CallState.PLANNED]


async def test_a_call_that_is_done_cannot_be_started_again(store: Store) -> None:
    started = await begin(store)
    (call,) = await plan(store, started, "send")
    await store.commit_result(started.fence, result_of(call), 1)
    await store.start_call(started.fence, call.id)
    assert await store.open_calls(started.run.id) == []


async def test_after_a_stop_no_call_starts_and_no_result_counts(store: Store) -> None:
    started = await begin(store)
    (call,) = await plan(store, started, "send")
    await store.request_abort(str(MAIN), None)
    with pytest.raises(StopRequested):
        await store.start_call(started.fence, call.id)
    with pytest.raises(StopRequested):
        await store.commit_result(started.fence, result_of(call), 1)
    assert (await store.open_calls(started.run.id))[0].state is CallState.PLANNED


@pytest.mark.parametrize(
    "outcome", [ABORTED, FAILED, Outcome(state=RunState.TIMEOUT, error_code="timeout", error="too long")]
)
async def test_a_run_that_ends_first_answers_every_open_call_with_an_error(store: Store, outcome: Outcome) -> None:
    started = await begin(store)
    done, begun, planned = await plan(store, started, "a", "b", "c")
    await store.commit_result(started.fence, result_of(done), 1)
    await store.start_call(started.fence, begun.id)
    await store.finish_run(started.fence, outcome, reply=None, at_step=1, ran_ms=1)
    results = [message for message in await transcript(store) if message.role is Role.TOOL_RESULT]
    assert [message.tool_call_id for message in results] == [done.id, begun.id, planned.id]
    assert [bool(message.is_error) for message in results] == [False, True, True]
    assert "effect is unknown" in results[1].text
    assert "not carried out" in results[2].text
    assert await store.open_calls(started.run.id) == []


async def test_nothing_is_ever_written_between_a_reply_with_calls_and_their_results(store: Store) -> None:
    started = await begin(store)
    first, second = await plan(store, started, "a", "b")
    await store.add_note(MAIN, note("note 1"))
    await store.commit_result(started.fence, result_of(second, "2"), 1)
    await store.add_note(MAIN, note("note 2"))
    await store.commit_result(started.fence, result_of(first, "1"), 1)
    await store.add_note(MAIN, note("note 3"))
    assert await texts(store) == ["hello", "looking", "2", "1"]
    await store.commit_reply(started.fence, step(started, "bye", number=1))
    assert await texts(store) == ["hello", "looking", "2", "1", "bye", "note 1", "note 2", "note 3"]


async def test_the_errors_of_open_calls_come_before_the_notes_that_wait(store: Store) -> None:
    started = await begin(store)
    await plan(store, started, "a")
    await store.add_note(MAIN, note("note"))
    await store.finish_run(started.fence, ABORTED, reply=None, at_step=1, ran_ms=1)
    roles = [message.role for message in await transcript(store)]
    assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT, Role.SYSTEM]


async def test_calls_with_the_same_id_are_refused_whole(store: Store) -> None:
    started = await begin(store)
    (call,) = await plan(store, started, "a")
    await store.commit_result(started.fence, result_of(call), 1)
    with pytest.raises(broken_constraint()):
        await plan(store, started, "a", number=0)
    assert await texts(store) == ["hello", "looking", "done"]


async def test_odd_arguments_come_back_as_they_were(store: Store) -> None:
    started = await begin(store)
    reply = step(started, "", ["a"])
    odd = {"nul": "\0", "deep": [[[{"x": None}]]], "number": 1e300, "big": 2**60, "empty": "", "": "🙂"}
    blocks = tuple(msgspec.structs.replace(block, arguments=odd) for block in reply.reply.tool_calls)
    reply = msgspec.structs.replace(reply, reply=msgspec.structs.replace(reply.reply, content=blocks))
    (call,) = (await store.commit_reply(started.fence, reply)).calls
    (stored,) = await store.open_calls(started.run.id)
    assert stored == call
    assert stored.block.arguments == odd
    assert (await transcript(store))[-1].tool_calls[0].arguments == odd


# Function agents


def function_call(started: RunStarted, n: int) -> ToolCall:
    return ToolCall(
        id=function_call_id(started.run.id, n),
        run_id=started.run.id,
        step=FUNCTION_STEP,
        position=n,
        name="look",
        arguments="{}",
        state=CallState.PLANNED,
    )


async def test_a_function_agents_call_returns_what_it_returned_the_first_time(host: Host) -> None:
    started = await begin(host.store)
    call = function_call(started, 1)
    begun = msgspec.structs.replace(call, started_at=host.clock.now_ms())
    assert await host.store.open_function_call(started.fence, call) == begun
    await host.store.commit_function_result(started.fence, result_of(call), "null", 5)
    store = await host.restart()
    resumed = await store.resume_run(started.run.id)
    assert resumed is not None
    known = await store.open_function_call(resumed.fence, call)
    assert (known.state, known.result) == (CallState.DONE, "null")
    _, asked, answered = await transcript(store)
    assert [block.id for block in asked.tool_calls] == [call.id] and asked.model == "function/main"
    assert (answered.role, answered.tool_call_id, answered.text) == (Role.TOOL_RESULT, call.id, "done")


async def test_a_function_agents_call_is_in_the_transcript_once_however_often_it_is_answered(store: Store) -> None:
    started = await begin(store)
    first, second = function_call(started, 1), function_call(started, 2)
    for call in (first, second):
        await store.open_function_call(started.fence, call)
    for call in (second, first, second, first):
        await store.commit_function_result(started.fence, result_of(call), "null", 5)
    assert [message.tool_call_id or message.tool_calls[0].id for message in (await transcript(store))[1:]] == [
        *(second.id, second.id, first.id, first.id)
    ]


async def test_a_function_agents_call_that_had_begun_is_told_with_the_end_of_its_run(store: Store) -> None:
    started = await begin(store)
    call = function_call(started, 1)
    await store.open_function_call(started.fence, call)
    await store.start_call(started.fence, call.id)
    await store.finish_run(started.fence, FAILED, reply=None, at_step=0, ran_ms=1)
    _, asked, answered = await transcript(store)
    assert asked.tool_calls[0].id == answered.tool_call_id == call.id
    assert answered.is_error and "its effect is unknown" in answered.text


async def test_a_function_agents_call_that_did_nothing_is_no_part_of_the_transcript(store: Store) -> None:
    started = await begin(store)
    await store.open_function_call(started.fence, function_call(started, 1))
    await store.finish_run(started.fence, FAILED, reply=None, at_step=0, ran_ms=1)
    assert await texts(store) == ["hello"]
    assert await store.open_calls(started.run.id) == []


async def test_a_function_agent_that_lost_its_run_records_nothing(host: Host) -> None:
    started = await begin(host.store)
    store = await host.restart()
    await store.resume_run(started.run.id)
    with pytest.raises(FenceLost):
        await store.open_function_call(started.fence, function_call(started, 1))
    with pytest.raises(FenceLost):
        await store.commit_function_result(started.fence, result_of(function_call(started, 1)), "x", 5)
    assert await store.open_calls(started.run.id) == []


async def test_the_calls_of_one_run_are_not_those_of_another(store: Store) -> None:
    mine, theirs = await begin(store), await begin(store, key=SessionKey.of("main", "other"))
    await plan(store, mine, "a")
    assert await store.open_calls(theirs.run.id) == []
