"""Sessions: made, changed, reset, archived and made anew; and the lists that show them."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.core.facts import SessionChanged, TranscriptClosed
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Usage
from backchannel.core.sessions import Address, Page, Session, SessionFilter, SessionPatch, SessionStatus
from backchannel.errors import LabelInUse, MainSessionKept, SessionIdReplaced, SessionNotFound, Unavailable
from backchannel.storage.store import Store
from tests.storage.support import (
    ABORTED,
    CRON,
    MAIN,
    Host,
    accept,
    answer,
    begin,
    converse,
    note,
    partial_reply,
    request,
    step,
    texts,
)
from tests.support.databases import as_stored, is_postgres

pytestmark = pytest.mark.anyio

OTHER = SessionKey.of("main", "project")
GROUP = SessionKey.parse("agent:main:telegram:group:42")


async def load(store: Store, key: SessionKey = MAIN) -> Session:
    session = await store.session(str(key))
    assert session is not None
    return session


async def listed(store: Store, **wanted: Any) -> list[str]:
    return [session.key for session in await store.sessions(SessionFilter(**wanted), after=None, limit=1000)]


# Made


async def test_a_first_message_makes_the_session(store: Store) -> None:
    assert await store.session(str(GROUP)) is None
    await begin(store, key=GROUP)
    session = await load(store, GROUP)
    assert (session.agent_id, session.kind, session.channel) == ("main", "group", "telegram")
    assert session.status is SessionStatus.RUNNING
    assert not session.system_sent


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("agent:main:main", "main"),
        ("agent:main:cron:nightly", "cron"),
        ("agent:main:hook:x", "hook"),
        ("agent:main:node-7", "node"),
        ("agent:main:slack:channel:c1", "group"),
        ("agent:main:direct:ann", "other"),
        ("agent:main:subagent:1", "other"),
    ],
)
async def test_a_session_knows_its_kind(store: Store, written: str, kind: str) -> None:
    session = await store.patch_session(SessionKey.parse(written), SessionPatch())
    assert session.kind == kind


async def test_a_session_that_was_never_made_is_not_found(store: Store) -> None:
    with pytest.raises(SessionNotFound, match=str(OTHER)):
        await store.delete_session(OTHER)


async def test_a_reset_makes_a_session_that_was_never_made_and_one_that_is_archived(store: Store) -> None:
    made = await store.reset_session(OTHER)
    assert await store.session(str(OTHER)) == made

    await store.delete_session(OTHER)
    again = await store.reset_session(OTHER)
    assert again.archived_at is None
    assert again.session_id != made.session_id


# Patched


async def test_a_patch_changes_what_it_names_clears_what_is_none_and_leaves_the_rest(store: Store) -> None:
    await store.patch_session(OTHER, SessionPatch(label="one", model="a/b", thinking_level="high", send_policy="deny"))
    session = await store.patch_session(OTHER, SessionPatch(model=None, verbose_level="on"))
    assert (session.label, session.model, session.thinking_level) == ("one", None, "high")
    assert (session.verbose_level, session.send_policy) == ("on", "deny")


async def test_an_empty_patch_makes_the_session_and_changes_nothing_else(host: Host) -> None:
    first = await host.store.patch_session(OTHER, SessionPatch(label="kept"))
    host.clock.tick(1000)
    assert await host.store.patch_session(OTHER, SessionPatch()) == first


async def test_a_patch_for_another_session_id_is_refused_and_makes_nothing(store: Store) -> None:
    with pytest.raises(SessionIdReplaced, match=str(OTHER)):
        await store.patch_session(OTHER, SessionPatch(label="x"), expected_session_id="another")
    assert await store.session(str(OTHER)) is None
    session = await store.patch_session(OTHER, SessionPatch())
    changed = await store.patch_session(OTHER, SessionPatch(label="x"), expected_session_id=session.session_id)
    assert changed.label == "x"


@pytest.mark.parametrize(
    "text", ["", "null", "true", "1", "a\0b", "'; DROP TABLE sessions; --", "🙂 ünï", "%_\\", "x" * 1_048_576]
)
async def test_any_text_comes_back_as_it_was_written(store: Store, text: str) -> None:
    label = text if len(text) < 2000 or not is_postgres() else "short"
    session = await store.patch_session(OTHER, SessionPatch(label=label, display_name=text, model=text))
    kept = as_stored(text)
    assert (session.label, session.display_name, session.model) == (as_stored(label), kept, kept)
    assert [found.key for found in await store.sessions_labelled(label, None)] == [str(OTHER)]


async def test_a_lone_surrogate_is_refused_and_nothing_changes(store: Store) -> None:
    await store.patch_session(OTHER, SessionPatch(label="kept"))
    with pytest.raises(UnicodeError):
        await store.patch_session(OTHER, SessionPatch(label="\ud800"))
    assert (await load(store, OTHER)).label == "kept"


# Labels


async def test_a_label_belongs_to_one_session_of_an_agent(store: Store) -> None:
    await store.patch_session(MAIN, SessionPatch(label="work"))
    with pytest.raises(LabelInUse, match=str(MAIN)):
        await store.patch_session(OTHER, SessionPatch(label="work", model="a/b"))
    assert await store.session(str(OTHER)) is None  # the refused patch made nothing


async def test_sessions_of_different_agents_may_share_a_label(store: Store) -> None:
    theirs = SessionKey.of("research", "main")
    await store.patch_session(MAIN, SessionPatch(label="work"))
    await store.patch_session(theirs, SessionPatch(label="work"))
    assert [session.key for session in await store.sessions_labelled("work", None)] == [str(MAIN), str(theirs)]
    assert [session.key for session in await store.sessions_labelled("work", "research")] == [str(theirs)]
    assert await store.sessions_labelled("Work", None) == []


async def test_a_session_keeps_its_own_label_and_can_give_it_away(store: Store) -> None:
    await store.patch_session(MAIN, SessionPatch(label="work"))
    await store.patch_session(MAIN, SessionPatch(label="work"))
    await store.patch_session(MAIN, SessionPatch(label=None))
    assert (await store.patch_session(OTHER, SessionPatch(label="work"))).label == "work"


async def test_the_label_of_an_archived_session_is_free(store: Store) -> None:
    await store.patch_session(OTHER, SessionPatch(label="work"))
    await store.delete_session(OTHER)
    assert await store.sessions_labelled("work", None) == []
    await store.patch_session(MAIN, SessionPatch(label="work"))
    revived = await store.patch_session(OTHER, SessionPatch())
    assert revived.label is None


# Reset


async def test_a_reset_starts_a_new_transcript_and_keeps_the_settings(host: Host) -> None:
    store = host.store
    change = SessionPatch(label="l", model="a/b", thinking_level="high", verbose_level="on", send_policy="deny")
    await store.patch_session(MAIN, change)
    started = await begin(store)
    await store.commit_reply(started.fence, step(started, context_tokens=1000))
    before = await load(store)
    assert (before.system_sent, before.total_tokens, before.context_tokens) == (True, 12, 1000)
    after = await store.reset_session(MAIN)
    assert after.session_id != before.session_id
    assert (after.system_sent, after.aborted_last_run, after.total_tokens) == (False, False, None)
    kept = ("key", "label", "model", "thinking_level", "verbose_level", "send_policy", "delivery_context")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert await texts(store) == []
    assert len((await store.history(before.session_id, limit=10)).messages) == 2


async def test_a_replaced_session_id_still_tells_its_key(store: Store) -> None:
    old = (await store.patch_session(MAIN, SessionPatch())).session_id
    new = (await store.reset_session(MAIN)).session_id
    entry, current = await store.session_by_id(old), await store.session_by_id(new)
    assert entry is not None
    assert current is not None
    assert (entry.key, entry.is_current, entry.end_reason) == (str(MAIN), False, "reset")
    assert (current.key, current.is_current) == (str(MAIN), True)
    assert entry.mark != current.mark
    assert await store.session_by_id("no such id") is None


async def test_a_reset_while_running_writes_the_partial_reply_to_the_old_transcript(store: Store) -> None:
    started = await begin(store, "long")
    old = (await load(store)).session_id
    await store.reset_session(MAIN)
    run = await store.run(started.run.id)
    assert run is not None
    assert run.abort_requested
    await store.finish_run(started.fence, ABORTED, reply=partial_reply(started, "so f"), at_step=0, ran_ms=1)
    page = await store.history(old, limit=10)
    assert [message.text for message in page.messages] == ["long", "so f"]
    assert page.messages[-1].stop_reason == "aborted"
    assert await texts(store) == []


async def test_a_run_of_the_old_transcript_says_nothing_about_the_new_one(store: Store) -> None:
    started = await begin(store)
    await store.commit_reply(started.fence, step(started, calls=["look"], usage=Usage(input=100, output=5)))
    await store.reset_session(MAIN)
    await store.finish_run(started.fence, ABORTED, reply=None, at_step=1, ran_ms=1)
    session = await load(store)
    assert (session.aborted_last_run, session.total_tokens, session.system_sent) == (False, None, False)
    assert session.tokens_in == 100  # what it cost is the session's all the same


async def test_what_was_queued_at_a_reset_runs_in_the_new_transcript(store: Store) -> None:
    started = await begin(store, "first")
    await accept(store, "second")
    await store.reset_session(MAIN)
    await store.finish_run(started.fence, ABORTED, reply=None, at_step=0, ran_ms=1)
    assert await store.start_next(str(MAIN)) is not None
    assert await texts(store) == ["second"]


# Archived


async def test_the_main_session_cannot_be_deleted(store: Store) -> None:
    await converse(store)
    with pytest.raises(MainSessionKept, match=r"sessions\.reset"):
        await store.delete_session(MAIN)
    assert (await load(store)).archived_at is None


async def test_a_deleted_session_leaves_the_lists_and_its_transcript_is_closed(host: Host) -> None:
    store = host.store
    await converse(store, key=OTHER)
    session = await store.delete_session(OTHER)
    assert session.archived_at == host.clock.ms
    assert await listed(store) == []
    assert await listed(store, archived=True) == [str(OTHER)]
    assert TranscriptClosed(str(OTHER), session.session_id, host.clock.ms) in host.facts
    assert SessionChanged(str(OTHER), "delete") in host.facts
    with pytest.raises(SessionNotFound):
        await store.delete_session(OTHER)


async def test_a_deleted_session_starts_afresh_under_a_new_id(store: Store) -> None:
    await converse(store, "old", OTHER)
    old = await store.delete_session(OTHER)
    await begin(store, "new", OTHER)
    session = await load(store, OTHER)
    assert session.session_id != old.session_id
    assert (session.archived_at, session.system_sent, session.total_tokens) == (None, False, None)
    assert await texts(store, OTHER) == ["new"]
    entry = await store.session_by_id(old.session_id)
    assert entry is not None
    assert entry.end_reason == "deleted"
    assert await listed(store) == [str(OTHER)]


async def test_a_session_can_be_deleted_again_and_again(store: Store) -> None:
    seen = set()
    for n in range(3):
        await converse(store, f"life {n}", OTHER)
        seen.add((await store.delete_session(OTHER)).session_id)
    assert len(seen) == 3


async def test_deleting_a_session_with_an_active_run_archives_it_when_that_has_ended(host: Host) -> None:
    store = host.store
    started = await begin(store, "first", OTHER)
    queued = await accept(store, "second", OTHER)
    session = await store.delete_session(OTHER)
    assert session.deleting
    assert session.archived_at is None
    waiting = await store.run(queued.run.id)
    assert waiting is not None
    assert waiting.state == "aborted"
    await store.finish_run(started.fence, ABORTED, reply=partial_reply(started, "par"), at_step=0, ran_ms=1)
    session = await load(store, OTHER)
    assert session.archived_at == host.clock.ms
    assert not session.deleting
    assert session.status is SessionStatus.IDLE
    assert [message.text for message in (await store.history(session.session_id, limit=9)).messages] == ["first", "par"]


async def test_nothing_is_accepted_for_a_session_that_is_being_deleted(store: Store) -> None:
    failed = await begin(store, "zero", OTHER)
    await store.finish_run(failed.fence, ABORTED, reply=None, at_step=0, ran_ms=1)
    started = await begin(store, "first", OTHER)
    await store.delete_session(OTHER)
    for attempt in (
        accept(store, "late", OTHER),
        store.add_note(OTHER, note("late")),
        store.patch_session(OTHER, SessionPatch(label="late")),
        store.reset_session(OTHER),
        store.retry_run(failed.run.id),
    ):
        with pytest.raises(Unavailable, match="being deleted"):
            await attempt
    await store.delete_session(OTHER)  # asking again is no fault
    await store.finish_run(started.fence, ABORTED, reply=None, at_step=0, ran_ms=1)
    assert (await load(store, OTHER)).archived_at is not None
    assert await store.start_next(str(OTHER)) is None


async def test_notes_that_wait_when_a_session_is_deleted_stay_with_the_old_transcript(store: Store) -> None:
    started = await begin(store, "first", OTHER)
    await store.add_note(OTHER, note("waiting"))
    await store.delete_session(OTHER)
    await store.finish_run(started.fence, ABORTED, reply=None, at_step=0, ran_ms=1)
    old = (await load(store, OTHER)).session_id
    await begin(store, "new", OTHER)
    assert [message.text for message in (await store.history(old, limit=9)).messages] == ["first", "waiting"]
    assert await texts(store, OTHER) == ["new"]


async def test_a_process_killed_while_a_session_waits_for_deletion_finishes_it_at_the_next_start(host: Host) -> None:
    started = await begin(host.store, "first", OTHER)
    await host.store.delete_session(OTHER)
    store = await host.restart()
    assert await store.resume_run(started.run.id) is None
    assert (await load(store, OTHER)).archived_at is not None


# Lists


async def test_the_list_is_newest_first(host: Host) -> None:
    for name in ("a", "b", "c"):
        host.clock.tick()
        await host.store.patch_session(SessionKey.of("main", name), SessionPatch(label=name))
    host.clock.tick()
    await host.store.patch_session(SessionKey.of("main", "a"), SessionPatch(label="a again"))
    assert await listed(host.store) == ["agent:main:a", "agent:main:c", "agent:main:b"]


async def test_filters_hold_together(host: Host) -> None:
    store = host.store
    keys = ["agent:main:main", "agent:main:cron:x", "agent:main:hook:x", "agent:ops:cron:x", "agent:ops:main"]
    for key in keys:
        host.clock.tick()
        await store.patch_session(SessionKey.parse(key), SessionPatch(label=key[-6:]))
    assert set(await listed(store, kinds=("cron",))) == {"agent:main:cron:x", "agent:ops:cron:x"}
    assert set(await listed(store, kinds=("cron", "hook"), agent_id="main")) == {keys[1], keys[2]}
    assert await listed(store, agent_id="ops", label="s:main") == ["agent:ops:main"]
    assert await listed(store, updated_since=host.clock.ms) == ["agent:ops:main"]
    assert await listed(store, updated_since=host.clock.ms + 1) == []
    assert await listed(store, spawned_by="agent:main:main") == []
    assert await listed(store, agent_id="nobody") == []


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("100%", ["agent:main:pct"]),
        ("%", ["agent:main:pct"]),
        ("_", ["agent:main:under"]),
        ("\\", ["agent:main:slash"]),
        ("A_B", ["agent:main:under"]),
        ("PCT", ["agent:main:pct"]),
        ("Ärger", ["agent:main:umlaut"]),
        ("ÄRGER", ["agent:main:umlaut"]),
        ("ger IM", ["agent:main:umlaut"]),
        ("' OR 1=1 --", []),
        ("agent:main:", ["agent:main:pct", "agent:main:slash", "agent:main:umlaut", "agent:main:under"]),
    ],
)
async def test_a_search_finds_text_in_key_label_and_name_and_takes_no_sign_for_a_pattern(
    store: Store, search: str, found: list[str]
) -> None:
    for name, label in (("pct", "100% sure"), ("under", "a_b"), ("slash", "c:\\x"), ("umlaut", "Ärger im Büro")):
        key = SessionKey.of("main", name)
        change = SessionPatch(display_name=label) if name == "umlaut" else SessionPatch(label=label)
        await store.patch_session(key, change)
    assert sorted(await listed(store, search=search)) == found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
async def test_paging_reaches_every_row_once_even_when_times_are_equal(host: Host, size: int) -> None:
    store = host.store
    made = set()
    for n in range(23):
        host.clock.tick(1 if n in (3, 11, 12) else 0)
        key = SessionKey.of("main", f"s{n * 7 % 23}")
        await store.patch_session(key, SessionPatch(label=str(n)))
        made.add(str(key))
    seen: list[str] = []
    after: Page | None = None
    while page := await store.sessions(SessionFilter(agent_id="main"), after=after, limit=size):
        seen += [session.key for session in page]
        after = Page(page[-1].updated_at, page[-1].key)
    assert len(seen) == 23
    assert set(seen) == made
    assert seen == await listed(store)


async def test_an_offset_skips_rows(host: Host) -> None:
    for n in range(5):
        host.clock.tick()
        await host.store.patch_session(SessionKey.of("main", f"s{n}"), SessionPatch(label=str(n)))
    page = await host.store.sessions(SessionFilter(), after=None, limit=2, offset=1)
    assert [session.key for session in page] == ["agent:main:s3", "agent:main:s2"]


async def test_a_row_says_whether_its_session_is_idle_queued_or_running(store: Store) -> None:
    await store.accept_run(request(key=CRON), start=False)
    assert (await load(store, CRON)).status is SessionStatus.QUEUED
    started = await store.start_next(str(CRON))
    assert started is not None
    assert (await load(store, CRON)).status is SessionStatus.RUNNING
    await answer(store, started)
    assert (await load(store, CRON)).status is SessionStatus.IDLE


async def test_only_what_the_session_recorded_is_its_return_address(store: Store) -> None:
    started = await begin(store, reply_to=Address(channel="telegram", to="Ann"))
    await answer(store, started)
    assert (await load(store)).address is None
