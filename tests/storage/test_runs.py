"""A run's life: accepted, queued, started, stopped, ended, interrupted and started once more."""

from __future__ import annotations

from contextlib import closing

import pytest
from msgspec.structs import replace

from backchannel.core.contracts import Timer
from backchannel.core.facts import RunChanged
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Usage
from backchannel.core.runs import Chain, Fence, Outcome, Run, RunKind, RunStarted, RunState
from backchannel.core.sessions import Address, NewSession, SessionPatch, read_address, write_address
from backchannel.errors import (
    FenceLost,
    IdempotencyConflict,
    InvalidRequest,
    LabelInUse,
    RunNotFound,
    SessionIdReplaced,
    SessionNotFound,
    StopRequested,
)
from backchannel.storage.store import Store
from tests.storage.support import (
    ABORTED,
    CRON,
    FAILED,
    MAIN,
    Host,
    accept,
    answer,
    begin,
    converse,
    note,
    partial_reply,
    request,
    result_of,
    step,
    texts,
    transcript,
)
from tests.support.databases import as_stored, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]


async def load(store: Store, run_id: str) -> Run:
    run = await store.run(run_id)
    assert run is not None
    return run


async def fail(store: Store, started: RunStarted, outcome: Outcome = FAILED) -> None:
    await store.finish_run(started.fence, outcome, reply=None, at_step=0, ran_ms=7)


async def next_run(store: Store, key: SessionKey = MAIN) -> RunStarted:
    started = await store.start_next(str(key))
    assert started is not None
    return started


# Accepted


async def test_a_message_for_a_free_lane_is_accepted_and_started_in_one_commit(host: Host) -> None:
    before = host.store.driver.commits
    started = await begin(host.store, "hello")
    assert host.store.driver.commits == before + 1
    assert (started.run.state, started.run.message) == (RunState.RUNNING, None)
    assert started.fence == Fence.of(started.run, host.store.number)
    (message,) = await transcript(host.store)
    assert (message.text, message.run_id, message.id) == ("hello", started.run.id, started.run.message_id)
    assert (await host.store.pending(str(MAIN), 100)).messages == []


async def test_what_units_say_of_new_and_changed_rows_is_what_the_rows_say(store: Store) -> None:
    """They do not read back what they have written, so each value must be the one that the database has."""
    started = await begin(store, "first", timeout_s=5.0, thinking="low", instructions="be brief")
    queued = (await accept(store, "second")).run
    for run in (started.run, queued):
        assert await store.run(run.id) == run
    kept = await store.session(str(MAIN))
    assert kept == replace(started.session, running_run=started.run.id, queued=1)
    taken = await store.commit_reply(started.fence, step(started, "a step", ["look"]))
    assert await store.run(taken.run.id) == taken.run
    await store.commit_result(started.fence, result_of(taken.calls[0]), 7)
    ended = (await store.commit_reply(started.fence, step(started, "the end", number=1))).run
    assert await store.run(ended.id) == ended
    assert (ended.state, ended.step, ended.reply) == (RunState.OK, 2, "the end")


async def test_a_message_for_a_busy_lane_waits_outside_the_transcript(store: Store) -> None:
    await begin(store, "first")
    accepted = await accept(store, "second")
    assert accepted.started is None
    assert accepted.run.state is RunState.QUEUED
    assert await texts(store) == ["first"]
    assert [message.text for message in (await store.pending(str(MAIN), 100)).messages] == ["second"]


async def test_a_message_accepted_without_a_slot_waits_though_the_lane_is_free(store: Store) -> None:
    accepted = await store.accept_run(request("waits"), start=False)
    assert accepted.started is None
    later = await accept(store, "behind it")
    assert later.started is None
    assert (await next_run(store)).run.id == accepted.run.id


async def test_runs_of_a_session_start_in_the_order_of_acceptance_one_at_a_time(store: Store) -> None:
    started = await begin(store, "0")
    for n in range(1, 4):
        await accept(store, str(n))
    for n in range(1, 4):
        assert await store.start_next(str(MAIN)) is None  # the lane is taken
        await answer(store, started, f"re: {n - 1}")
        started = await next_run(store)
    await answer(store, started, "re: 3")
    assert await store.start_next(str(MAIN)) is None
    assert await texts(store) == [text for n in range(4) for text in (str(n), f"re: {n}")]


async def test_lanes_of_different_sessions_do_not_wait_for_each_other(store: Store) -> None:
    await begin(store)
    assert (await accept(store, key=CRON)).started is not None


async def test_a_lane_that_does_not_exist_has_nothing_to_start(store: Store) -> None:
    assert await store.start_next("agent:main:nobody") is None


async def test_a_run_keeps_all_that_was_asked_of_it(store: Store) -> None:
    started = await begin(
        store,
        kind=RunKind.CRON,
        deliver=True,
        model="a/b",
        thinking="high",
        timeout_s=1.5,
        chain=Chain("chain", 3),
        reply_to=Address(channel="telegram", to="Ann", account_id="a", thread_id="t"),
    )
    run = started.run
    assert (run.kind, run.deliver, run.model, run.thinking, run.timeout_s) == (RunKind.CRON, True, "a/b", "high", 1.5)
    assert (run.chain_id, run.hop) == ("chain", 3)
    assert run.reply_to is not None
    assert read_address(run.reply_to) == Address(channel="telegram", to="Ann", account_id="a", thread_id="t")
    assert await store.run(run.id) == run


async def test_a_run_outside_a_chain_begins_its_own(store: Store) -> None:
    run = (await begin(store)).run
    assert (run.chain_id, run.hop) == (run.id, 0)


async def test_a_message_for_another_session_id_is_refused_and_leaves_nothing(store: Store) -> None:
    session = await store.patch_session(MAIN, SessionPatch())
    with pytest.raises(SessionIdReplaced):
        await accept(store, expected_session_id="another", id="key", digest="d")
    assert await store.runs(limit=10) == []
    assert (await accept(store, expected_session_id=session.session_id, id="key", digest="d")).started is not None


async def test_a_message_for_a_session_id_does_not_make_or_revive_a_session(store: Store) -> None:
    with pytest.raises(SessionIdReplaced):
        await accept(store, key=CRON, expected_session_id="another")
    assert await store.session(str(CRON)) is None
    made = await store.patch_session(CRON, SessionPatch())
    await store.delete_session(CRON)
    with pytest.raises(SessionIdReplaced) as refused:
        await accept(store, key=CRON, expected_session_id=made.session_id)
    assert "sessionId" not in refused.value.details, "there is no new one to tell of"
    session = await store.session(str(CRON))
    assert session is not None and session.archived_at is not None and await store.runs(limit=10) == []


@pytest.mark.parametrize("text", ["", "a\0b", "null", "x" * 1_048_576, "line\nbreak\u2028and\u2029more", "🙂"])
async def test_any_text_goes_through_a_run_unchanged(store: Store, text: str) -> None:
    started = await begin(store, text)
    await answer(store, started, text)
    assert await texts(store) == [text, text]
    assert (await load(store, started.run.id)).reply == as_stored(text)


async def test_a_text_that_no_file_can_hold_is_refused_and_its_neighbours_are_not(store: Store) -> None:
    good, bad = store.accept_run(request("good"), start=True), store.accept_run(request("\ud800"), start=True)
    assert (await good).started is not None
    with pytest.raises(UnicodeError):
        await bad
    assert [run.id for run in await store.runs(limit=10)] == [(await good).run.id]
    session = await store.session(str(MAIN))
    assert session is not None
    assert session.queued == 0


# Reply address


async def test_the_reply_address_is_the_sessions_when_the_message_was_accepted(host: Host) -> None:
    store = host.store
    await store.patch_session(MAIN, SessionPatch())
    await _set_address(host, Address(channel="telegram", to="Ann"))
    started = await begin(store, "first")
    queued = await accept(store, "second")
    await _set_address(host, Address(channel="discord", to="room"))
    await answer(store, started)
    run = (await next_run(store)).run
    assert run.id == queued.run.id
    assert run.reply_to is not None
    assert read_address(run.reply_to) == Address(channel="telegram", to="Ann")


async def _set_address(host: Host, address: Address) -> None:
    """Write the return address as an inbound message does."""
    with closing(open_database(host.path)) as connection, connection:
        connection.execute("UPDATE sessions SET delivery_context = ?", (write_address(address),))


# Idempotency


async def test_the_same_key_again_answers_with_the_first_run_and_starts_none(store: Store) -> None:
    started = await begin(store, id="key", digest="d")
    assert started.run.id == "key"
    again = await accept(store, id="key", digest="d")
    assert (again.run.id, again.is_repeat, again.started) == ("key", True, None)
    await answer(store, started, "done")
    ended = await accept(store, id="key", digest="d")
    assert (ended.run.state, ended.run.reply, ended.is_repeat) == (RunState.OK, "done", True)
    assert await texts(store) == ["hello", "done"]


async def test_a_repeat_is_known_after_a_restart(host: Host) -> None:
    await begin(host.store, id="key", digest="d")
    store = await host.restart()
    assert (await accept(store, id="key", digest="d")).is_repeat
    assert len(await store.runs(limit=10)) == 1


async def test_repeats_that_arrive_in_one_group_start_one_run(store: Store) -> None:
    futures = [store.accept_run(request(id="key", digest="d"), start=True) for _ in range(5)]
    accepted = [await future for future in futures]
    assert [entry.is_repeat for entry in accepted] == [False, True, True, True, True]
    assert len(await store.runs(limit=10)) == 1


async def test_the_same_key_for_something_else_is_a_conflict_that_shows_nothing(store: Store) -> None:
    await begin(store, "a secret", id="key", digest="d")
    for digest in ("other", None, ""):
        with pytest.raises(IdempotencyConflict) as refused:
            await accept(store, "another", CRON, id="key", digest=digest)
        assert "secret" not in refused.value.message
        assert str(MAIN) not in str(refused.value.wire())
    assert await store.session(str(CRON)) is None


async def test_the_id_of_a_run_that_was_no_key_is_a_conflict(store: Store) -> None:
    run = (await begin(store)).run
    with pytest.raises(IdempotencyConflict):
        await accept(store, id=run.id, digest="d")


async def test_an_id_without_a_digest_is_known_again(store: Store) -> None:
    await begin(store, id="cron:nightly:1")
    assert (await accept(store, id="cron:nightly:1")).is_repeat


async def test_a_repeat_for_a_session_that_was_deleted_makes_it_no_new_one(store: Store) -> None:
    started = await begin(store, key=CRON, id="key", digest="d")
    await answer(store, started)
    await store.delete_session(CRON)
    assert (await accept(store, key=CRON, id="key", digest="d")).is_repeat
    session = await store.session(str(CRON))
    assert session is not None
    assert session.archived_at is not None


# Ended


async def test_the_last_reply_ends_the_run_in_its_own_commit(host: Host) -> None:
    store = host.store
    started = await begin(store)
    before = store.driver.commits
    host.clock.tick(50)
    committed = await store.commit_reply(
        started.fence, step(started, "bye", usage=Usage(input=3, output=4, cost=0.5), context_tokens=99)
    )
    assert store.driver.commits == before + 1
    run = committed.run
    assert (run.state, run.reply, run.step, run.ended_at, run.ran_ms) == (RunState.OK, "bye", 1, host.clock.ms, 5)
    assert (run.tokens_in, run.tokens_out, run.cost) == (3, 4, 0.5)
    session = await store.session(str(MAIN))
    assert session is not None
    assert (session.total_tokens, session.context_tokens, session.system_sent) == (7, 99, True)
    assert (session.tokens_in, session.tokens_out, session.cost) == (3, 4, 0.5)
    assert session.lane_is_free


@pytest.mark.both_databases
async def test_a_session_gets_its_settings_with_its_message_or_neither(store: Store) -> None:
    named = NewSession(settings=SessionPatch(label="nightly"))
    before = store.driver.commits
    accepted = await accept(store, key=CRON, making=named, id="once", digest="d")
    assert store.driver.commits == before + 1
    session = await store.session(str(CRON))
    assert session is not None and (session.label, session.running_run) == ("nightly", accepted.run.id)
    again = await accept(store, key=CRON, making=named, id="once", digest="d")
    assert again.is_repeat and again.run.id == "once"
    with pytest.raises(LabelInUse):
        await accept(store, making=named, id="twice", digest="d")
    assert await store.session(str(MAIN)) is None and await store.run("twice") is None


async def test_usage_adds_up_and_an_unknown_price_stays_unknown(store: Store) -> None:
    first = await begin(store)
    await store.commit_reply(first.fence, step(first, usage=Usage(input=1, output=1)))
    assert (await load(store, first.run.id)).cost is None
    for _ in range(2):
        started = await begin(store)
        await store.commit_reply(started.fence, step(started, usage=Usage(input=1, output=1, cost=0.25)))
    session = await store.session(str(MAIN))
    assert session is not None
    assert (session.tokens_in, session.tokens_out, session.cost) == (3, 3, 0.5)


async def test_a_failed_run_keeps_its_error_and_what_it_had_written(store: Store) -> None:
    started = await begin(store)
    run = await store.finish_run(started.fence, FAILED, reply=partial_reply(started, "half"), at_step=0, ran_ms=7)
    assert (run.state, run.error_code, run.error) == (RunState.ERROR, "provider", "the provider said no")
    assert (run.reply, run.ran_ms) == ("half", 7)
    assert await texts(store) == ["hello", "half"]


async def test_a_partial_reply_of_a_step_that_was_committed_after_all_is_not_written_twice(store: Store) -> None:
    started = await begin(store)
    (call,) = (await store.commit_reply(started.fence, step(started, "whole", ["look"]))).calls
    await store.commit_result(started.fence, result_of(call), 5)
    await store.finish_run(started.fence, ABORTED, reply=partial_reply(started, "who"), at_step=0, ran_ms=7)
    assert await texts(store) == ["hello", "whole", "done"]
    assert (await load(store, started.run.id)).reply == "whole"


@pytest.mark.parametrize("state", [RunState.TIMEOUT, RunState.ERROR, RunState.ABORTED])
async def test_only_an_aborted_run_marks_its_session_as_aborted(store: Store, state: RunState) -> None:
    await fail(store, await begin(store), Outcome(state=state, error="x", error_code="x"))
    session = await store.session(str(MAIN))
    assert session is not None
    assert session.aborted_last_run is (state is RunState.ABORTED)
    await converse(store)
    session = await store.session(str(MAIN))
    assert session is not None
    assert not session.aborted_last_run


async def test_a_run_that_has_ended_takes_no_more_steps(store: Store) -> None:
    started = await begin(store)
    await answer(store, started)
    with pytest.raises(FenceLost):
        await answer(store, started, "again")
    with pytest.raises(FenceLost):
        await fail(store, started)
    assert await texts(store) == ["hello", "hi"]


async def test_every_change_of_a_run_is_told(host: Host) -> None:
    await begin(host.store)
    queued = await accept(host.store, "second")
    await host.store.request_abort(str(MAIN), queued.run.id)
    told = [fact.run.state for fact in host.facts if isinstance(fact, RunChanged)]
    assert told == [RunState.RUNNING, RunState.QUEUED, RunState.ABORTED]


# Aborted


async def test_an_abort_of_the_running_run_is_a_row_and_stops_its_next_step(host: Host) -> None:
    started = await begin(host.store)
    (asked,) = await host.store.request_abort(str(MAIN), None)
    assert (asked.id, asked.abort_requested, asked.state) == (started.run.id, True, RunState.RUNNING)
    with pytest.raises(StopRequested):
        await answer(host.store, started)
    assert await texts(host.store) == ["hello"]
    run = await host.store.finish_run(started.fence, ABORTED, reply=partial_reply(started, "h"), at_step=0, ran_ms=1)
    assert run.state is RunState.ABORTED
    assert await texts(host.store) == ["hello", "h"]


async def test_an_aborted_run_stays_aborted_after_a_crash(host: Host) -> None:
    started = await begin(host.store)
    await host.store.request_abort(str(MAIN), started.run.id)
    store = await host.restart()
    assert await store.resume_run(started.run.id) is None
    run = await load(store, started.run.id)
    assert (run.state, run.error_code) == (RunState.ABORTED, "aborted")


async def test_an_abort_of_a_queued_run_ends_it_and_frees_its_place(store: Store) -> None:
    started = await begin(store, "first")
    second, third = await accept(store, "second"), await accept(store, "third")
    (aborted,) = await store.request_abort(str(MAIN), second.run.id)
    assert aborted.state is RunState.ABORTED
    await answer(store, started)
    assert (await next_run(store)).run.id == third.run.id
    assert await texts(store) == ["first", "hi", "third"]
    session = await store.session(str(MAIN))
    assert session is not None
    assert session.queued == 0


async def test_an_abort_of_a_finished_run_or_an_idle_session_does_nothing(store: Store) -> None:
    started = await begin(store)
    await answer(store, started)
    assert await store.request_abort(str(MAIN), started.run.id) == []
    assert await store.request_abort(str(MAIN), None) == []
    assert (await load(store, started.run.id)).state is RunState.OK


async def test_a_run_of_another_session_cannot_be_aborted(store: Store) -> None:
    started = await begin(store, key=CRON)
    await begin(store)
    for run_id in (started.run.id, "no such run"):
        with pytest.raises(RunNotFound):
            await store.request_abort(str(MAIN), run_id)
    assert not (await load(store, started.run.id)).abort_requested


# Fences


async def test_a_run_that_another_process_took_over_takes_no_step_of_the_old_one(host: Host) -> None:
    started = await begin(host.store)
    (call,) = (await host.store.commit_reply(started.fence, step(started, "", ["look"]))).calls
    store = await host.restart()
    taken = await store.resume_run(started.run.id)
    assert taken is not None
    assert taken.fence != started.fence
    for attempt in (
        store.commit_reply(started.fence, step(started, number=1)),
        store.commit_result(started.fence, result_of(call), 1),
        store.start_call(started.fence, call.id),
        store.finish_run(started.fence, FAILED, reply=None, at_step=1, ran_ms=1),
    ):
        with pytest.raises(FenceLost):
            await attempt
    assert await texts(store) == ["hello", ""]
    await store.commit_result(taken.fence, result_of(call), 1)
    assert await texts(store) == ["hello", "", "done"]


async def test_a_run_that_does_not_exist_has_no_holder(store: Store) -> None:
    with pytest.raises(RunNotFound):
        await store.commit_reply(Fence("nobody", 1), step(await begin(store)))


# After a crash


async def crash_in_a_step(host: Host, run_id: str) -> RunStarted | None:
    """Die while the run is at work, and take it up again."""
    store = await host.restart()
    return await store.resume_run(run_id)


async def test_a_crash_is_counted_for_runs_the_dead_process_held_and_only_for_them(host: Host) -> None:
    running = await begin(host.store, "running")
    queued = await accept(host.store, "queued")
    other = await begin(host.store, "other", CRON)
    await answer(host.store, other)
    store = await host.restart()
    assert [(entry.run_id, entry.crashes) for entry in await store.interrupted_runs()] == [(running.run.id, 1)]
    assert (await load(store, queued.run.id)).crashes == 0
    assert (await load(store, other.run.id)).crashes == 0


async def test_a_process_that_dies_before_it_took_the_run_up_counts_nothing(host: Host) -> None:
    started = await begin(host.store)
    await host.restart()
    await host.restart()
    store = await host.restart()
    assert (await load(store, started.run.id)).crashes == 1


async def test_a_clean_shutdown_is_not_counted(host: Host) -> None:
    started = await begin(host.store)
    for _ in range(5):
        store = await host.restart(clean=True)
        assert [(entry.run_id, entry.crashes) for entry in await store.interrupted_runs()] == [(started.run.id, 0)]
        assert await store.resume_run(started.run.id) is not None


async def test_a_run_is_set_aside_when_the_process_died_three_times_in_one_step(host: Host) -> None:
    started = await begin(host.store)
    assert await crash_in_a_step(host, started.run.id) is not None
    assert await crash_in_a_step(host, started.run.id) is not None
    assert await crash_in_a_step(host, started.run.id) is None
    run = await load(host.store, started.run.id)
    assert (run.state, run.resume_at) == (RunState.QUEUED, host.clock.ms + 60_000)
    assert [(timer.kind, timer.ref) for timer in await due_later(host)] == [("resume", run.id)]
    session = await host.store.session(str(MAIN))
    assert session is not None
    assert session.lane_is_free
    assert (await accept(host.store, "next")).started is not None


async def due_later(host: Host) -> list[Timer]:
    host.clock.tick(3_600_000)
    return (await host.store.due(10)).timers


async def test_a_step_that_was_committed_clears_the_count(host: Host) -> None:
    started: RunStarted | None = await begin(host.store)
    for number in range(4):
        for _ in range(2):
            assert started is not None
            started = await crash_in_a_step(host, started.run.id)
        assert started is not None
        (call,) = (await host.store.commit_reply(started.fence, step(started, "", ["look"], number=number))).calls
        assert (await load(host.store, started.run.id)).crashes == 0
        for _ in range(2):
            started = await crash_in_a_step(host, started.run.id)
            assert started is not None
        await host.store.commit_result(started.fence, result_of(call), 1)
        assert (await load(host.store, started.run.id)).crashes == 0


async def test_runs_without_a_crash_are_listed_first(host: Host) -> None:
    suspect = await begin(host.store, "suspect")
    await host.restart()
    fresh = await begin(host.store, "fresh", CRON)
    store = await host.restart(clean=True)
    assert [entry.run_id for entry in await store.interrupted_runs()] == [fresh.run.id, suspect.run.id]


async def test_a_run_goes_on_after_its_last_committed_step(host: Host) -> None:
    started = await begin(host.store)
    committed = await host.store.commit_reply(started.fence, step(started, "let me see", ["look", "look"]))
    await host.store.commit_result(started.fence, result_of(committed.calls[0]), 5)
    resumed = await crash_in_a_step(host, started.run.id)
    assert resumed is not None
    assert (resumed.run.step, resumed.run.ran_ms) == (1, 5)
    assert [call.id for call in await host.store.open_calls(resumed.run.id)] == [committed.calls[1].id]
    assert await texts(host.store) == ["hello", "let me see", "done"]


async def test_time_at_work_goes_on_after_a_crash_where_it_was(host: Host) -> None:
    started = await begin(host.store)
    assert started.run.at_work_since == started.run.started_at
    host.clock.tick(4_000)
    await host.store.commit_reply(started.fence, step(started, "let me see", ["look"], ran_ms=4_000))
    host.clock.tick(60_000)  # nobody holds it meanwhile
    resumed = await crash_in_a_step(host, started.run.id)
    assert resumed is not None
    host.clock.tick(1_000)
    assert resumed.run.at_work_since == host.clock.ms - 5_000
    ended = await host.store.finish_run(resumed.fence, FAILED, reply=None, at_step=1, ran_ms=5_000)
    assert (ended.at_work_since, ended.ran_ms) == (None, 5_000)


async def test_a_run_that_ended_is_not_resumed(host: Host) -> None:
    started = await begin(host.store)
    await answer(host.store, started)
    store = await host.restart()
    assert await store.interrupted_runs() == []
    assert await store.resume_run(started.run.id) is None
    assert (await load(store, started.run.id)).state is RunState.OK


async def test_sessions_with_a_queue_are_named_in_the_order_of_their_first_message(host: Host) -> None:
    for name in ("c", "a", "b", "c"):
        await host.store.accept_run(request(key=SessionKey.of("main", name)), start=False)
    store = await host.restart()
    assert await store.sessions_with_queue() == ["agent:main:c", "agent:main:a", "agent:main:b"]
    assert await store.run_counts() == {"queued": 4}


# Once more


async def test_a_failed_run_that_nobody_spoke_after_goes_on_without_repeating_its_message(store: Store) -> None:
    started = await begin(store, "try")
    await fail(store, started)
    queued = await store.retry_run(started.run.id)
    assert (queued.state, queued.error, queued.error_code, queued.ended_at) == (RunState.QUEUED, None, None, None)
    again = await next_run(store)
    assert again.run.id == started.run.id
    await answer(store, again, "worked")
    assert await texts(store) == ["try", "worked"]


async def test_a_failed_run_that_others_spoke_after_does_not_repeat_its_message_either(store: Store) -> None:
    started = await begin(store, "try")
    await fail(store, started)
    await converse(store, "meanwhile")
    await store.retry_run(started.run.id)
    await answer(store, await next_run(store), "worked")
    assert await texts(store) == ["try", "meanwhile", "re: meanwhile", "worked"]


async def test_a_failed_run_repeats_its_message_in_a_transcript_that_was_reset(store: Store) -> None:
    started = await begin(store, "try")
    await fail(store, started)
    await store.reset_session(MAIN)
    await store.retry_run(started.run.id)
    again = await next_run(store)
    assert await texts(store) == ["try"]
    session = await store.session(str(MAIN))
    assert session is not None
    assert again.run.session_id == session.session_id
    await fail(store, again)
    await store.retry_run(started.run.id)
    await next_run(store)
    assert await texts(store) == ["try"]


async def test_a_run_aborted_before_it_started_brings_its_message_with_it(store: Store) -> None:
    started = await begin(store, "first")
    queued = await accept(store, "second")
    await store.request_abort(str(MAIN), queued.run.id)
    await answer(store, started)
    await store.retry_run(queued.run.id)
    assert [message.text for message in (await store.pending(str(MAIN), 100)).messages] == ["second"]
    await next_run(store)
    assert await texts(store) == ["first", "hi", "second"]


async def test_a_run_that_is_set_aside_can_be_retried_and_starts_with_no_count(host: Host) -> None:
    started = await begin(host.store)
    for _ in range(3):
        await crash_in_a_step(host, started.run.id)
    run = await host.store.retry_run(started.run.id)
    assert (run.state, run.crashes, run.abort_requested) == (RunState.QUEUED, 0, False)
    assert run.remaining_s(60) == 60
    await answer(host.store, await next_run(host.store))
    assert (await load(host.store, started.run.id)).state is RunState.OK


async def test_a_retried_run_does_not_disturb_the_one_at_work(store: Store) -> None:
    failed = await begin(store, "first")
    await fail(store, failed)
    working = await begin(store, "second")
    await store.retry_run(failed.run.id)
    assert await store.start_next(str(MAIN)) is None
    await answer(store, working)
    assert (await next_run(store)).run.id == failed.run.id


async def test_only_a_run_that_failed_can_be_retried(store: Store) -> None:
    started = await begin(store)
    queued = await accept(store)
    await answer(store, started)
    for run_id in (started.run.id, queued.run.id):
        with pytest.raises(InvalidRequest, match="only one that ended"):
            await store.retry_run(run_id)
    with pytest.raises(RunNotFound):
        await store.retry_run("no such run")


async def test_a_run_of_an_archived_session_cannot_be_retried(store: Store) -> None:
    started = await begin(store, key=CRON)
    await fail(store, started)
    await store.delete_session(CRON)
    with pytest.raises(SessionNotFound):
        await store.retry_run(started.run.id)


async def test_a_retry_after_a_note_goes_on_behind_it(store: Store) -> None:
    started = await begin(store, "try")
    await fail(store, started)
    await store.add_note(MAIN, note("by the way"))
    await store.retry_run(started.run.id)
    await next_run(store)
    assert await texts(store) == ["try", "by the way"]


# Lists


async def test_runs_are_listed_newest_first_and_paged_by_position(store: Store) -> None:
    for n in range(5):
        await begin(store, str(n), SessionKey.of("main", f"s{n}"))
    seen: list[Run] = []
    before = None
    while page := await store.runs(limit=2, before=before):
        seen += page
        before = page[-1].position
    assert [run.session_key for run in seen] == [f"agent:main:s{n}" for n in reversed(range(5))]


async def test_runs_are_filtered_by_session_and_state(store: Store) -> None:
    await converse(store)
    await begin(store, key=CRON)
    queued = await accept(store, key=CRON)
    assert [run.state for run in await store.runs(session_key=str(MAIN), limit=9)] == [RunState.OK]
    assert [run.id for run in await store.runs(states=[RunState.QUEUED], limit=9)] == [queued.run.id]
    assert len(await store.runs(states=[RunState.QUEUED, RunState.RUNNING], limit=9)) == 2
    assert await store.run_counts() == {"queued": 1, "running": 1}


async def test_a_position_is_never_given_twice(host: Host) -> None:
    first = await begin(host.store)
    store = await host.restart()
    second = await accept(store, key=CRON)
    assert second.run.position > first.run.position
