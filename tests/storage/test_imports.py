"""Sessions from elsewhere are taken whole, once, and never over what is here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backchannel.core.facts import MessageAppended, SessionChanged
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, text_content
from backchannel.core.sessions import Session, SessionPatch
from backchannel.storage.databases import database_at
from backchannel.storage.store import Store
from backchannel.storage.units.imports import Batch, ImportState, MessageOffered, TakenBatch, rehearse
from tests.storage.support import MAIN, SCHEME, Host, converse, texts, transcript

pytestmark = pytest.mark.anyio

ID = "11111111-2222-4333-8444-555555555555"
OTHER_ID = "66666666-2222-4333-8444-555555555555"
OTHER = SessionKey.of("main", "other")
OWN = SessionKey.of("main", "imported", ID)


def session(key: SessionKey = MAIN, session_id: str = ID, **more: Any) -> Session:
    fields: dict[str, Any] = {field.name: None for field in msgspec.structs.fields(Session) if field.required}
    fields |= {"deleting": False, "system_sent": False, "aborted_last_run": False}
    fields |= {"tokens_in": 0, "tokens_out": 0, "queued": 0, "created_at": 5, "updated_at": 9}
    fields |= {"key": str(key), "agent_id": key.agent, "kind": SCHEME.kind(key).value, "session_id": session_id}
    return Session(**(fields | more))


def offered(*words: str, session_id: str = ID) -> list[MessageOffered]:
    """Messages whose ids are the same words."""
    return [
        MessageOffered(
            line,
            (word, f"{session_id}/{word}", f"{session_id}/{word}/{line}"),
            Message(id="", role=Role.USER, content=text_content(word), timestamp=line),
        )
        for line, word in enumerate(words, 1)
    ]


async def take(store: Store, taken: Session, *words: str, place: int = 0, is_last: bool = True) -> TakenBatch:
    batch = Batch(place, offered(*words, session_id=taken.session_id), is_last)
    return await store.take_session(taken, batch)


async def ids(store: Store, key: SessionKey = MAIN) -> list[str]:
    return [message.id for message in await transcript(store, key)]


def everything(host: Host) -> list[list[tuple[Any, ...]]]:
    return [host.rows(f"SELECT * FROM {table}") for table in ("sessions", "session_ids", "messages")]


async def test_a_session_is_there_with_its_last_batch_and_not_before(host: Host) -> None:
    wanted = session(label="home", delivery_context='{"channel":"desk"}', system_sent=True, total_tokens=7)
    first = await take(host.store, wanted, "a", "b", is_last=False)
    assert (first.state, first.place, first.written) == (ImportState.NEW, 2, 2)
    assert await host.store.session(str(MAIN)) is None

    last = await take(host.store, wanted, "c", place=2)
    assert (last.place, last.written) == (3, 1)
    assert await host.store.session(str(MAIN)) == wanted
    assert await ids(host.store) == ["a", "b", "c"]
    assert host.facts == [SessionChanged(str(MAIN), "created")]


async def test_a_session_that_was_taken_goes_on_like_any_other(host: Host) -> None:
    await take(host.store, session(), "a", "b")
    await converse(host.store, "hello")

    assert await texts(host.store) == ["a", "b", "hello", "re: hello"]
    assert [fact.seq for fact in host.facts if isinstance(fact, MessageAppended)] == [2, 3]


async def test_each_transcript_that_was_taken_gets_a_mark_of_its_own(host: Host) -> None:
    await take(host.store, session(), "a")
    await take(host.store, session(OTHER, OTHER_ID), "b")

    marks = [mark for (mark,) in host.rows("SELECT mark FROM session_ids")]
    assert len({*marks}) == 2
    assert all(len(mark) == 16 for mark in marks)


async def test_the_same_again_changes_nothing(host: Host) -> None:
    await take(host.store, session(), "a", "b")
    before = everything(host)
    again = await take(host.store, session(updated_at=50), "a", "b")

    assert (again.state, again.place, again.written) == (ImportState.HERE, 2, 0)
    assert everything(host) == before


async def test_what_came_since_is_added(store: Store) -> None:
    await take(store, session(), "a", "b")
    more = await take(store, session(updated_at=50), "a", "b", "c")

    assert (more.state, more.place, more.written) == (ImportState.HERE, 3, 1)
    assert await ids(store) == ["a", "b", "c"]
    here = await store.session(str(MAIN))
    assert here is not None and here.updated_at == 50


async def test_a_session_that_has_gone_on_here_is_left_alone(store: Store) -> None:
    await take(store, session(), "a", "b")
    await converse(store, "hello")
    said = await texts(store)

    assert (await take(store, session(), "a", "b")).refusal is None
    refused = await take(store, session(), "a", "b", "c")
    assert refused.refusal == "it has gone on here since it was taken: the two differ from message 3 on"
    assert await texts(store) == said


async def test_a_session_whose_key_is_taken_gets_one_of_its_own(store: Store) -> None:
    here = await store.patch_session(MAIN, SessionPatch())
    wanted = session(label="home", display_name="Home", delivery_context='{"channel":"telegram","to":"7"}')
    taken = await take(store, wanted, "a")

    assert taken == TakenBatch(state=ImportState.NEW, key=str(OWN), place=1, written=1)
    assert await store.session(str(MAIN)) == here
    assert await store.session(str(OWN)) == msgspec.structs.replace(wanted, key=str(OWN), kind="other")
    assert await ids(store, OWN) == ["a"]


async def test_a_session_with_a_key_of_its_own_is_found_there_again(host: Host) -> None:
    store = host.store
    await store.patch_session(MAIN, SessionPatch())
    await take(store, session(), "a")
    before = everything(host)

    assert (await take(store, session(), "a")).state is ImportState.HERE
    assert everything(host) == before
    more = await take(store, session(), "a", "b")
    assert (more.key, more.written) == (str(OWN), 1)
    await store.delete_session(OWN)
    deleted = await take(store, session(), "a", "b", "c")
    assert deleted.refusal == "it was deleted here, and nothing is added to it any more"


async def test_half_of_a_session_whose_key_was_taken_meanwhile_is_completed(store: Store) -> None:
    await take(store, session(), "a", is_last=False)
    here = await store.patch_session(MAIN, SessionPatch())
    taken = await take(store, session(), "a", "b")

    assert (taken.key, taken.state, taken.written) == (str(OWN), ImportState.HALF, 1)
    assert await ids(store, OWN) == ["a", "b"]
    assert await store.session(str(MAIN)) == here


async def test_a_key_of_its_own_that_somebody_else_has_is_refused(store: Store) -> None:
    await store.patch_session(MAIN, SessionPatch())
    holder = await store.patch_session(OWN, SessionPatch())
    refused = await take(store, session(), "a")

    assert refused.refusal == f"the key exists here with session id {holder.session_id}"
    assert await store.session_by_id(ID) is None


async def test_a_transcript_that_belongs_to_another_key_is_refused(store: Store) -> None:
    await take(store, session(), "a")
    refused = await take(store, session(OTHER), "a", "b")

    assert refused.refusal == "its session id belongs to agent:main:main here"
    assert await store.session(str(OTHER)) is None


async def test_a_session_that_was_reset_or_deleted_here_stays_so(store: Store) -> None:
    await take(store, session(OTHER), "a")
    await store.delete_session(OTHER)
    assert (await take(store, session(OTHER), "a")).written == 0
    deleted = await take(store, session(OTHER), "a", "b")
    assert deleted.refusal == "it was deleted here, and nothing is added to it any more"

    await take(store, session(MAIN, OTHER_ID), "x")
    await store.reset_session(MAIN)
    reset = await take(store, session(MAIN, OTHER_ID), "x", "y")
    assert reset.refusal == "its session id belongs to agent:main:main here"


async def test_an_id_that_another_message_has_is_made_unique(store: Store) -> None:
    await take(store, session(), "a", "a")
    await take(store, session(OTHER, OTHER_ID), "a", "a", "a")

    assert await ids(store) == ["a", f"{ID}/a"]
    assert await ids(store, OTHER) == [f"{OTHER_ID}/a", f"{OTHER_ID}/a/2", f"{OTHER_ID}/a/3"]
    again = await take(store, session(OTHER, OTHER_ID), "a", "a", "a")
    assert (again.written, again.place) == (0, 3)


async def test_a_message_for_which_there_is_no_id_is_told_and_left_out(store: Store) -> None:
    words = [f"{ID}/a/4", f"{ID}/a", "a", "b"]
    taken = await take(store, session(), "a", *words)
    assert taken.without_id == (4,)
    assert (await take(store, session(), "a", *words)).written == 0
    assert await texts(store) == ["a", f"{ID}/a/4", f"{ID}/a", "b"]


async def test_a_label_that_is_taken_is_left_to_its_holder(store: Store) -> None:
    await store.patch_session(MAIN, SessionPatch(label="home"))
    taken = await take(store, session(OTHER, label="home"), "a")

    assert taken.label_holder == str(MAIN)
    here = await store.session(str(OTHER))
    assert here is not None and here.label is None


async def test_an_archived_session_is_archived_here(host: Host) -> None:
    wanted = session(OTHER, archived_at=7, label="old")
    await take(host.store, wanted, "a")

    assert await host.store.session(str(OTHER)) == wanted
    assert host.rows("SELECT ended_at, end_reason FROM session_ids") == [(7, "deleted")]


async def test_half_of_a_session_is_completed_later(host: Host) -> None:
    await take(host.store, session(), "a", "b", is_last=False)
    await host.restart()
    assert (await host.store.session_by_id(ID)) is not None

    resumed = await take(host.store, session(), "a", "b", "c")
    assert (resumed.state, resumed.written) == (ImportState.HALF, 1)
    assert await ids(host.store) == ["a", "b", "c"]
    assert host.rows("SELECT ended_at, end_reason FROM session_ids") == [(None, None)]


async def test_half_of_what_is_no_more_like_that_is_started_over(host: Host) -> None:
    await take(host.store, session(), "a", "b", is_last=False)
    over = await take(host.store, session(), "x", "b")
    assert over.starts_over

    assert (await take(host.store, session(), "x", "b")).written == 2
    assert await ids(host.store) == ["x", "b"]


async def test_half_of_a_session_can_come_under_another_key(store: Store) -> None:
    await take(store, session(), "a", is_last=False)
    await take(store, session(OTHER), "a", "b")

    assert await store.session(str(MAIN)) is None
    assert await ids(store, OTHER) == ["a", "b"]
    entry = await store.session_by_id(ID)
    assert entry is not None and entry.key == str(OTHER)


@pytest.mark.parametrize("state", ["new", "half", "here", "longer", "changed", "taken key", "taken label"])
async def test_a_rehearsal_tells_what_would_happen_and_writes_nothing(host: Host, state: str) -> None:
    store, wanted = host.store, session(label="home")
    match state:
        case "half":
            await take(store, wanted, "a", is_last=False)
        case "here":
            await take(store, wanted, "a")
        case "longer":
            await take(store, wanted, "a", "b", "c")
        case "changed":
            await take(store, wanted, "a", "x")
        case "taken key":
            await store.patch_session(MAIN, SessionPatch())
        case "taken label":
            await store.patch_session(OTHER, SessionPatch(label="home"))
    batch = Batch(0, offered("a", "b"), is_last=True)
    before = everything(host)
    with database_at(host.url).open_reader() as reader, reader.snapshot() as tx:
        told = rehearse(tx, wanted, batch)

    assert everything(host) == before
    assert await store.take_session(wanted, batch) == told


async def test_a_rehearsal_counts_all_of_a_session_that_will_be_started_over(host: Host) -> None:
    await take(host.store, session(), "a", "b", "c", is_last=False)
    with database_at(host.url).open_reader() as reader, reader.snapshot() as tx:
        told = rehearse(tx, session(), Batch(0, offered("x", "y"), is_last=False))
        rest = rehearse(tx, session(), Batch(2, offered("z"), is_last=True))

    assert not told.starts_over
    assert (told.place, told.written, rest.place, rest.written) == (2, 2, 3, 1)


async def test_the_size_of_a_transcript_file_is_known(store: Store) -> None:
    await take(store, session(), "a", "b", "ü" * 1000)
    here = await store.session(str(MAIN))
    assert here is not None
    await store.rebuild_transcript(here.session_id)

    assert await store.transcript_bytes(ID) == store.transcript_file(here).stat().st_size
    assert await store.transcript_bytes("unknown") == 0


async def test_a_large_transcript_is_read_a_page_at_a_time(store: Store) -> None:
    large = [
        MessageOffered(
            line, (str(line),), Message(id="", role=Role.USER, content=text_content("x" * 300_000), timestamp=1)
        )
        for line in range(20)
    ]
    await store.take_session(session(), Batch(0, large, is_last=True))
    here = await store.session(str(MAIN))
    assert here is not None

    assert await store.rebuild_transcript(here.session_id) == 20
    assert await store.transcript_bytes(ID) > 20 * 300_000
