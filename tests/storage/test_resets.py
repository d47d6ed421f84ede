"""Automatic resets: in the commit of the message that comes next, and only on a session at rest."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import tzinfo
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backchannel.config.zones import last_mark
from backchannel.core.facts import SessionBegunAnew, SessionChanged
from backchannel.core.keys import SessionKey
from backchannel.core.policy.queues import SessionRules
from backchannel.core.policy.resets import ResetMode, ResetSchedule, ResetSettings
from backchannel.core.runs import RunKind
from backchannel.core.sessions import SessionIdEntry, SessionPatch
from backchannel.errors import IdempotencyConflict
from backchannel.storage.store import Store
from tests.storage.support import CRON, MAIN, Host, accept, answer, begin, converse, digest_of, note, request, texts
from tests.support.clocks import moment
from tests.support.databases import open_database

pytestmark = [pytest.mark.both_databases, pytest.mark.anyio]
BERLIN = ZoneInfo("Europe/Berlin")
EVENING, MORNING = "2027-03-01T20:00Z", "2027-03-02T08:00Z"


async def start(host: Host, at: str = EVENING, zone: tzinfo = BERLIN, **settings: Any) -> Store:
    """Start with daily resets, unless the settings say otherwise, at a time."""
    host.rules = SessionRules(
        ResetSchedule(ResetSettings(**{"mode": ResetMode.DAILY, **settings}), partial(last_mark, zone))
    )
    host.clock.set_to(at)
    return await host.restart(clean=True)


async def entry(store: Store, session_id: str) -> SessionIdEntry:
    found = await store.session_by_id(session_id)
    assert found is not None
    return found


async def current(store: Store, key: SessionKey = MAIN) -> str:
    session = await store.session(str(key))
    assert session is not None
    return session.session_id


async def test_the_first_message_after_the_mark_begins_a_new_transcript(host: Host) -> None:
    store = await start(host)
    await store.patch_session(MAIN, SessionPatch(label="mine", model="a/b"))
    await converse(store, "good evening")
    old = await current(store)
    host.clock.set_to(MORNING)
    host.facts.clear()
    await converse(store, "good morning")

    assert await texts(store) == ["good morning", "re: good morning"]
    new = await current(store)
    before, after = await entry(store, old), await entry(store, new)
    assert (before.end_reason, before.ended_at) == ("daily", moment(MORNING))
    assert (after.follows, after.carries_from, after.is_current) == (old, None, True)
    assert SessionBegunAnew(str(MAIN), "daily", old, new) in host.facts
    assert SessionChanged(str(MAIN), "reset") in host.facts
    session = await store.session(str(MAIN))
    assert session is not None
    assert (session.label, session.model) == ("mine", "a/b")


async def test_a_session_used_since_the_mark_goes_on(host: Host) -> None:
    store = await start(host, at="2027-03-02T04:30Z")
    await converse(store, "up early")
    host.clock.set_to("2027-03-03T02:59Z")
    await converse(store, "up late")

    assert await texts(store) == ["up early", "re: up early", "up late", "re: up late"]


async def test_the_hour_is_that_of_the_time_zone(host: Host) -> None:
    store = await start(host, at="2027-03-27T12:00Z")
    await converse(store, "winter")
    host.clock.set_to("2027-03-28T01:59Z")  # 03:59 in summer time, which has just begun
    await converse(store, "still")
    assert len(await texts(store)) == 4
    host.clock.set_to("2027-03-28T02:01Z")
    await converse(store, "summer")

    assert await texts(store) == ["summer", "re: summer"]


async def test_an_idle_session_begins_anew_and_says_so(host: Host) -> None:
    store = await start(host, mode=ResetMode.IDLE, idle_minutes=30)
    await converse(store, "one")
    old = await current(store)
    host.clock.move_on(29 * 60)
    await converse(store, "two")
    host.clock.move_on(30 * 60)
    await converse(store, "three")

    assert await texts(store) == ["three", "re: three"]
    assert (await entry(store, old)).end_reason == "idle"


async def test_a_new_transcript_knows_which_one_it_carries_over(host: Host) -> None:
    store = await start(host, carry=True)
    await converse(store)
    old = await current(store)
    host.clock.set_to(MORNING)
    await converse(store)

    assert (await entry(store, await current(store))).carries_from == old


async def test_a_message_that_comes_again_resets_nothing(host: Host) -> None:
    store = await start(host)
    await converse(store)
    host.clock.set_to(MORNING)
    started = await begin(store, "once", id="k", digest=digest_of("a"))
    await answer(store, started)
    new = await current(store)
    host.clock.set_to("2027-03-03T08:00Z")

    again = await accept(store, "once", id="k", digest=digest_of("a"))
    assert again.is_repeat
    assert await current(store) == new


async def test_of_messages_that_come_at_once_one_resets(host: Host) -> None:
    store = await start(host)
    await converse(store)
    old = await current(store)
    host.clock.set_to(MORNING)
    accepted = await asyncio.gather(*(store.accept_run(request(f"m{n}"), start=True) for n in range(10)))

    assert sum(one.started is not None for one in accepted) == 1
    assert host.rows("SELECT follows FROM session_ids WHERE follows IS NOT NULL") == [(old,)]


async def test_a_refused_message_resets_nothing(host: Host) -> None:
    store = await start(host)
    await answer(store, await begin(store, id="k", digest=digest_of("a")))
    old = await current(store)
    host.clock.set_to(MORNING)

    with pytest.raises(IdempotencyConflict):
        await accept(store, "other", id="k", digest=digest_of("b"))

    def refuse(_: object) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.accept_run(request("denied"), start=True, check=refuse)
    assert await current(store) == old


async def test_a_session_at_work_waits_for_the_next_message(host: Host) -> None:
    store = await start(host)
    started = await begin(store, "a long task")
    old = await current(store)
    host.clock.set_to(MORNING)
    await accept(store, "are you there?")

    assert await current(store) == old
    await answer(store, started)
    following = await store.start_next(str(MAIN))
    assert following is not None
    await answer(store, following)
    await converse(store, "thanks")
    assert await current(store) == old  # the run that ended this morning was a use
    host.clock.set_to("2027-03-03T08:00Z")
    await converse(store, "a new day")
    assert await texts(store) == ["a new day", "re: a new day"]


@pytest.mark.parametrize("kind", [RunKind.HOOK, RunKind.CRON, RunKind.NODE])
async def test_messages_of_programs_reset_nothing_and_are_no_use(host: Host, kind: RunKind) -> None:
    store = await start(host)
    await converse(store, "evening")
    old = await current(store)
    host.clock.set_to(MORNING)
    await answer(store, await begin(store, "beep", kind=kind))
    assert await current(store) == old
    await store.add_note(MAIN, note("a note"))
    await store.patch_session(MAIN, SessionPatch(label="renamed"))
    await converse(store, "morning")

    assert await texts(store) == ["morning", "re: morning"]


async def test_a_message_for_a_certain_transcript_goes_there(host: Host) -> None:
    store = await start(host)
    await converse(store)
    old = await current(store)
    host.clock.set_to(MORNING)
    await answer(store, await begin(store, expected_session_id=old))

    assert await current(store) == old


async def test_an_empty_transcript_is_not_replaced(host: Host) -> None:
    store = await start(host)
    made = await store.patch_session(MAIN, SessionPatch(label="empty"))
    host.clock.set_to(MORNING)
    await converse(store)

    assert await current(store) == made.session_id


async def test_sessions_of_jobs_never_begin_anew(host: Host) -> None:
    store = await start(host)
    await converse(store, key=CRON)
    old = await current(store, CRON)
    host.clock.set_to(MORNING)
    await converse(store, key=CRON)

    assert await current(store, CRON) == old


async def test_nothing_begins_anew_without_the_setting(host: Host) -> None:
    store = host.store
    await converse(store)
    old = await current(store)
    host.clock.move_on(400 * 86_400)
    await converse(store)

    assert await current(store) == old


async def test_a_clock_that_was_set_back_resets_nothing(host: Host) -> None:
    store = await start(host, at=MORNING)
    await converse(store)
    old = await current(store)
    host.clock.set_to(EVENING)
    store = await host.restart()
    await converse(store)

    assert await current(store) == old


async def test_a_session_of_an_older_version_counts_from_its_last_change(host: Host) -> None:
    store = await start(host, at=MORNING)
    await converse(store)
    old = await current(store)
    await host.die()
    with closing(open_database(host.path)) as database, database:
        database.execute("UPDATE sessions SET used_at = NULL, updated_at = ?", (moment(EVENING),))
    store = await host.start()
    await converse(store)

    assert (await entry(store, old)).end_reason == "daily"


async def test_a_revived_session_is_not_reset_once_more(host: Host) -> None:
    store = await start(host)
    key = SessionKey.of("main", "notes")
    await converse(store, key=key)
    await store.delete_session(key)
    host.clock.set_to(MORNING)
    await converse(store, key=key)

    new = await entry(store, await current(store, key))
    assert new.follows is None
