"""Everything that is stored can be read, a little at a time."""

from __future__ import annotations

import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, text_content
from backchannel.core.records import ExportPlace, Passage
from backchannel.core.sessions import SessionPatch
from backchannel.storage.store import Store
from backchannel.storage.views.exports import EXPORT_LINES
from tests.storage.support import CRON, MAIN, Host, converse, note, transcript

pytestmark = pytest.mark.anyio

A, AB, B = (SessionKey.of(agent, "main") for agent in ("a", "a-b", "b"))


async def _add(store: Store, *texts: str) -> str:
    """Put notes into the main session's transcript, and tell its id."""
    for text in texts:
        await store.add_note(MAIN, note(text))
    await converse(store)
    session = await store.session(str(MAIN))
    assert session is not None
    return session.session_id


async def _read_all(store: Store, session_id: str, size: int, until: int = 10_000) -> tuple[list[str], list[Passage]]:
    """Read a transcript as a client does; returns its lines, and how they came."""
    lines: list[str] = []
    passages: list[Passage] = []
    parts = ""
    place: ExportPlace | None = ExportPlace(0)
    while place is not None:
        passage = await store.read_transcript(session_id, place, until, size)
        passages.append(passage)
        lines += passage.lines
        parts += passage.part or ""
        place = passage.next
        if parts and (place is None or not place.offset):
            lines.append(parts)
            parts = ""
    return lines, passages


async def test_sessions_come_by_their_keys_with_the_length_of_their_transcripts(store: Store) -> None:
    await converse(store)
    for key in (B, AB, A):
        await store.patch_session(key, SessionPatch())

    listed = await store.sessions_by_key("", 10)
    assert [(one.session.key, one.length) for one in listed] == [(str(AB), 0), (str(A), 0), (str(B), 0), (str(MAIN), 2)]
    assert listed[3].session == await store.session(str(MAIN))
    assert [one.session.key for one in await store.sessions_by_key(str(AB), 2)] == [str(A), str(B)]
    assert [one.session.key for one in await store.sessions_by_key("", 10, agent_id="a")] == [str(A)]
    assert await store.sessions_by_key(str(A), 10, agent_id="a") == []
    named = await store.sessions_by_key("", 10, keys=[str(MAIN), str(A), "agent:main:none"])
    assert [one.session.key for one in named] == [str(A), str(MAIN)]
    assert [one.session.key for one in await store.sessions_by_key(str(A), 1, keys=[str(A), str(MAIN)])] == [str(MAIN)]


async def test_an_archived_session_is_listed_with_its_last_transcript(store: Store) -> None:
    await converse(store, key=CRON)
    await store.delete_session(CRON)
    (listed,) = await store.sessions_by_key("", 10)
    assert (listed.session.archived_at is not None, listed.length) == (True, 2)


@pytest.mark.parametrize("size", [1, 7, 100, 300, 10_000])
async def test_a_transcript_is_read_whole_whatever_the_size_of_a_page(host: Host, size: int) -> None:
    session_id = await _add(host.store, "one", "", "zwölf 🦀" * 40, "three")
    bodies = [body for (body,) in host.rows("SELECT body FROM messages ORDER BY seq")]
    lines, passages = await _read_all(host.store, session_id, size)

    assert lines == bodies
    assert all(sum(map(len, passage.lines)) + len(passage.part or "") <= size for passage in passages)
    assert any(passage.part for passage in passages) == (size < max(map(len, bodies)))


async def test_what_comes_after_the_end_that_was_asked_for_is_not_read(store: Store) -> None:
    session_id = await _add(store, *map(str, range(5)))
    whole, _ = await _read_all(store, session_id, 10_000)
    for size in (10, 10_000):
        lines, passages = await _read_all(store, session_id, size, until=3)
        assert lines == whole[:3]
        assert passages[-1].lines or passages[-1].part  # it is known without another question that this was the end


async def test_a_page_has_a_limited_number_of_messages(store: Store) -> None:
    session_id = await _add(store, *("x" for _ in range(EXPORT_LINES)))
    lines, passages = await _read_all(store, session_id, 10**6, until=EXPORT_LINES + 2)
    assert (len(lines), [len(passage.lines) for passage in passages]) == (EXPORT_LINES + 2, [EXPORT_LINES, 2])


@pytest.mark.parametrize("place", [ExportPlace(50), ExportPlace(0, 10**9), ExportPlace(2**53, 2**53)])
async def test_a_place_that_is_not_there_is_the_end(store: Store, place: ExportPlace) -> None:
    session_id = await _add(store)
    passage = await store.read_transcript(session_id, place, 1, 100)
    assert (list(passage.lines), passage.part or "", passage.next) == ([], "", None)
    assert await store.read_transcript("unknown", ExportPlace(0), 10, 100) == Passage()


async def test_a_message_that_is_too_long_does_not_hold_back_the_next(store: Store) -> None:
    large = Message(id="large", role=Role.USER, content=text_content("y" * 1000), timestamp=1)
    await store.add_note(MAIN, large)
    session_id = await _add(store, "small")
    lines, passages = await _read_all(store, session_id, 600)

    assert len(lines) == len(await transcript(store)) == 4
    assert [bool(passage.part) for passage in passages[:3]] == [True, True, False]
