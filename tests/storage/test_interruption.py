"""Ending what a session has accepted: a bounded part in each commit, and all of it in the end."""

from __future__ import annotations

import time

import pytest

from backchannel.core.commands.commands import Command, CommandName, Rank
from backchannel.core.keys import SessionKey
from backchannel.core.runs import RunKind, RunState
from backchannel.errors import Unavailable
from backchannel.storage.store import Store
from backchannel.storage.units.flows.interruption import INTERRUPTION_PART, INTERRUPTION_TIMER
from tests.storage.support import CRON, Host, accept, begin

pytestmark = pytest.mark.anyio


async def carry_out_all(store: Store, limit: int = 1000) -> int:
    """Do what is due until nothing is; returns how many commits that took."""
    for count in range(limit):
        due = [timer for timer in (await store.due(10)).timers if timer.kind == INTERRUPTION_TIMER]
        if not due:
            return count
        await store.carry_out_timer(due[0])
    raise AssertionError("it never ends")


async def test_deleting_a_session_with_many_queued_runs_goes_part_by_part(host: Host) -> None:
    store = host.store
    await begin(store, "working", CRON)
    queued = [(await accept(store, str(n), CRON)).run.id for n in range(3 * INTERRUPTION_PART)]
    await store.delete_session(CRON)
    session = await store.session(str(CRON))
    assert session is not None and session.deleting
    assert 3 * INTERRUPTION_PART - session.queued <= INTERRUPTION_PART
    with pytest.raises(Unavailable, match="is being deleted"):
        await accept(store, "too late", CRON)
    assert await carry_out_all(store) >= 2
    states = {(await store.run(run_id)).state for run_id in queued}  # type: ignore[union-attr]  # they are there
    assert states == {RunState.ABORTED}


async def test_stopping_a_session_with_many_turns_goes_part_by_part_and_leaves_what_people_wrote(host: Host) -> None:
    store = host.store
    await begin(store, "working", CRON)
    turns = [(await accept(store, str(n), CRON, kind=RunKind.TURN)).run.id for n in range(3 * INTERRUPTION_PART)]
    written = (await accept(store, "from a person", CRON)).run.id
    await store.carry_out(Command(CommandName.STOP), CRON, Rank.OWNER, None)
    ended = await store.runs(limit=999, states=[RunState.ABORTED])
    assert 0 < len(ended) <= INTERRUPTION_PART + 1
    assert await carry_out_all(store) >= 2
    states = {(await store.run(run_id)).state for run_id in turns}  # type: ignore[union-attr]  # they are there
    assert states == {RunState.ABORTED}
    person = await store.run(written)
    assert person is not None and person.state is RunState.QUEUED


async def test_no_queued_run_of_a_session_that_is_being_deleted_starts(host: Host) -> None:
    store = host.store
    for n in range(3 * INTERRUPTION_PART):
        await accept(store, str(n), CRON)
    await store.delete_session(CRON)
    assert await store.start_next(str(CRON)) is None


async def test_a_crash_in_between_leaves_the_rest_to_the_next_start(host: Host) -> None:
    for n in range(3 * INTERRUPTION_PART):
        await accept(host.store, str(n), CRON)
    await host.store.delete_session(CRON)
    store = await host.restart()
    for entry in await store.interrupted_runs():
        assert await store.resume_run(entry.run_id) is None
    await carry_out_all(store)
    session = await store.session(str(CRON))
    assert session is not None
    assert (session.archived_at is not None, session.queued) == (True, 0)


async def test_no_part_takes_long(host: Host) -> None:
    store, tries = host.store, []
    for attempt in range(3):  # a machine that is busy with something else is so for a moment only
        key = SessionKey.of("main", "cron", f"job-{attempt}")
        for n in range(600):
            await accept(store, str(n), key)
        began = time.thread_time()
        await store.delete_session(key)
        longest = time.thread_time() - began
        while due := (await store.due(1)).timers:
            began = time.thread_time()
            await store.carry_out_timer(due[0])
            longest = max(longest, time.thread_time() - began)
        tries.append(longest)
    assert min(tries) < 0.05
