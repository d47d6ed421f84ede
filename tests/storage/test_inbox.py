"""Notes wait for a boundary: at once in an idle session, else when the run ends."""

from __future__ import annotations

import pytest

from backchannel.core.facts import SessionChanged
from backchannel.core.runs import Outcome
from backchannel.storage.store import Store
from backchannel.storage.units.inbox import NOTES_PART
from tests.storage.support import (
    ABORTED,
    CRON,
    FAILED,
    MAIN,
    Host,
    accept,
    answer,
    begin,
    note,
    request,
    texts,
)
from tests.support.databases import broken_constraint

pytestmark = pytest.mark.anyio


async def pending(store: Store) -> list[str]:
    return [message.text for message in (await store.pending(str(MAIN), 100)).messages]


async def test_a_note_enters_an_idle_session_in_the_commit_that_accepts_it(host: Host) -> None:
    before = host.store.driver.commits
    await host.store.add_note(MAIN, note("hello"))
    assert host.store.driver.commits == before + 1
    assert await texts(host.store) == ["hello"]
    assert await pending(host.store) == []
    assert SessionChanged(str(MAIN), "note") in host.facts


async def test_a_note_makes_the_session_and_starts_no_run(store: Store) -> None:
    await store.add_note(CRON, note("hello"))
    session = await store.session(str(CRON))
    assert session is not None
    assert session.lane_is_free
    assert await store.runs(limit=9) == []


async def test_a_note_enters_a_session_that_only_has_a_queue_at_once(store: Store) -> None:
    await store.accept_run(request("queued"), start=False)
    await store.add_note(MAIN, note("note"))
    assert await texts(store) == ["note"]
    await store.start_next(str(MAIN))
    assert await texts(store) == ["note", "queued"]


async def test_a_note_waits_until_the_running_run_has_ended(host: Host) -> None:
    store = host.store
    started = await begin(store)
    await store.add_note(MAIN, note("one"))
    await store.add_note(MAIN, note("two"))
    assert await texts(store) == ["hello"]
    assert await pending(store) == ["one", "two"]
    await answer(store, started)
    assert await texts(store) == ["hello", "hi", "one", "two"]
    assert await pending(store) == []


@pytest.mark.parametrize("outcome", [ABORTED, FAILED])
async def test_notes_enter_however_the_run_ended(store: Store, outcome: Outcome) -> None:
    started = await begin(store)
    await store.add_note(MAIN, note("one"))
    await store.finish_run(started.fence, outcome, reply=None, at_step=0, ran_ms=1)
    assert await texts(store) == ["hello", "one"]


async def test_notes_that_waited_come_before_the_message_of_the_next_run(store: Store) -> None:
    started = await begin(store, "first")
    await accept(store, "second")
    await store.add_note(MAIN, note("note"))
    await answer(store, started)
    await store.start_next(str(MAIN))
    assert await texts(store) == ["first", "hi", "note", "second"]


async def test_notes_that_wait_survive_a_crash(host: Host) -> None:
    started = await begin(host.store)
    await host.store.add_note(MAIN, note("note"))
    store = await host.restart()
    assert await pending(store) == ["note"]
    resumed = await store.resume_run(started.run.id)
    assert resumed is not None
    await answer(store, resumed)
    assert await texts(store) == ["hello", "hi", "note"]


async def test_pending_shows_messages_and_notes_in_the_order_of_acceptance(host: Host) -> None:
    store = host.store
    await begin(store)
    for n in range(6):
        at = host.clock.tick()
        await (store.add_note(MAIN, note(str(n), at)) if n % 2 else accept(store, str(n)))
    assert await pending(store) == [str(n) for n in range(6)]


async def test_pending_keeps_the_order_of_messages_when_the_clock_is_set_back(host: Host) -> None:
    await begin(host.store)
    for n in range(4):
        host.clock.tick(-1000)
        await accept(host.store, str(n))
    assert await pending(host.store) == ["0", "1", "2", "3"]


async def test_pending_of_a_session_that_does_not_exist_is_empty(store: Store) -> None:
    assert (await store.pending("agent:main:nobody", 100)).messages == []


async def test_the_same_note_twice_is_refused_and_the_first_stays(store: Store) -> None:
    await begin(store)
    once = note("once")
    await store.add_note(MAIN, once)
    with pytest.raises(broken_constraint()):
        await store.add_note(MAIN, once)
    assert await pending(store) == ["once"]


async def test_notes_of_one_session_do_not_reach_another(store: Store) -> None:
    mine, theirs = await begin(store), await begin(store, "theirs", CRON)
    await store.add_note(MAIN, note("for main"))
    await answer(store, theirs)
    assert await texts(store, CRON) == ["theirs", "hi"]
    await answer(store, mine)
    assert await texts(store) == ["hello", "hi", "for main"]


async def test_of_many_that_wait_the_first_are_read_and_all_are_counted(store: Store) -> None:
    await begin(store, "working")
    for n in range(5):
        await accept(store, f"run {n}")
        await store.add_note(MAIN, note(f"note {n}"))
    pending = await store.pending(str(MAIN), 4)
    assert (len(pending.messages), pending.total) == (4, 10)
    assert pending.messages[0].text == "run 0"


async def carry_out_all(store: Store) -> int:
    """Do what is due until nothing is; returns how many commits that took."""
    count = 0
    while due := (await store.due(1)).timers:
        await store.carry_out_timer(due[0])
        count += 1
    return count


async def test_very_many_notes_enter_part_by_part_before_the_next_run_starts(store: Store) -> None:
    started = await begin(store, "working")
    for n in range(3 * NOTES_PART):
        await store.add_note(MAIN, note(f"note {n}"))
    await accept(store, "next")
    await answer(store, started)
    assert await store.start_next(str(MAIN)) is None
    assert (await accept(store, "last")).started is None
    await store.add_note(MAIN, note("the newest"))
    assert await carry_out_all(store) == 3
    assert (await store.start_next(str(MAIN))) is not None
    said = await texts(store)
    assert said[2:] == [*(f"note {n}" for n in range(3 * NOTES_PART)), "the newest", "next"]


async def test_a_session_that_is_deleted_while_its_notes_enter_is_archived_after_the_last(host: Host) -> None:
    started = await begin(host.store, "working", CRON)
    for n in range(3 * NOTES_PART):
        await host.store.add_note(CRON, note(f"note {n}"))
    await host.store.delete_session(CRON)
    await host.store.finish_run(started.fence, ABORTED, reply=None, at_step=0, ran_ms=1)
    store = await host.restart()
    await carry_out_all(store)
    session = await store.session(str(CRON))
    assert session is not None and session.archived_at is not None
    assert (await store.pending(str(CRON), 10)).total == 0
