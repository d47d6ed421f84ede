"""Reading transcripts back: pages in both directions, the last of many, and what a model is given."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backchannel.core.cut import Cut, read_cut
from backchannel.core.facts import MessageAppended
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role, decode_message, encode_message
from backchannel.core.requests import TranscriptPart
from backchannel.errors import NotFound
from backchannel.storage.store import Store
from tests.storage.support import MAIN, Host, begin, converse, note, result_of, step, texts, transcript
from tests.support.databases import broken_constraint

pytestmark = pytest.mark.anyio


async def fill(store: Store, count: int, key: SessionKey = MAIN) -> str:
    """Make a transcript of so many notes; returns its id."""
    for n in range(count):
        await store.add_note(key, note(str(n)))
    session = await store.session(str(key))
    assert session is not None
    return session.session_id


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.text) for message in messages]


async def test_the_newest_page_is_oldest_first(store: Store) -> None:
    session_id = await fill(store, 10)
    page = await store.history(session_id, limit=3)
    assert numbers(page.messages) == [7, 8, 9]
    assert page.has_more


@pytest.mark.parametrize("limit", [1, 3, 5, 10, 11])
async def test_paging_backwards_reaches_every_message_once(store: Store, limit: int) -> None:
    session_id = await fill(store, 10)
    seen: list[int] = []
    before = None
    while True:
        page = await store.history(session_id, limit=limit, before=before)
        seen = numbers(page.messages) + seen
        if not page.has_more:
            break
        before = page.messages[0].id
    assert seen == list(range(10))


@pytest.mark.parametrize("limit", [1, 3, 5, 10])
async def test_paging_forwards_reaches_every_later_message_once(store: Store, limit: int) -> None:
    session_id = await fill(store, 10)
    seen: list[int] = []
    after = (await transcript(store))[0].id
    while True:
        page = await store.history(session_id, limit=limit, after=after)
        seen += numbers(page.messages)
        if not page.has_more:
            break
        after = page.messages[-1].id
    assert seen == list(range(1, 10))


@pytest.mark.parametrize("is_forward", [True, False])
async def test_pages_of_messages_of_megabytes_are_short_and_reach_every_one_once(
    store: Store, is_forward: bool
) -> None:
    session_id = await fill(store, 1)
    at = (await transcript(store))[0].id if is_forward else None
    for n in range(1, 30):
        await store.add_note(MAIN, note(str(n) + " " * 3_000_000))
    seen: list[int] = []
    sizes: list[int] = []
    while True:
        before, after = (None, at) if is_forward else (at, None)
        page = await store.history(session_id, limit=1000, before=before, after=after)
        sizes.append(len(page.messages))
        seen = seen + numbers(page.messages) if is_forward else numbers(page.messages) + seen
        if not page.has_more:
            break
        at = page.messages[-1 if is_forward else 0].id
    assert seen == list(range(1 if is_forward else 0, 30))
    assert max(sizes) < 10


async def test_a_page_between_two_messages_has_neither_of_them(store: Store) -> None:
    session_id = await fill(store, 10)
    ids = [message.id for message in await transcript(store)]
    page = await store.history(session_id, limit=9, after=ids[2], before=ids[6])
    assert numbers(page.messages) == [3, 4, 5]
    assert not page.has_more


async def test_before_the_first_and_after_the_last_there_is_nothing(store: Store) -> None:
    session_id = await fill(store, 3)
    ids = [message.id for message in await transcript(store)]
    for page in (
        await store.history(session_id, limit=9, before=ids[0]),
        await store.history(session_id, limit=9, after=ids[-1]),
    ):
        assert (page.messages, page.has_more) == ([], False)


async def test_an_unknown_message_is_not_found(store: Store) -> None:
    session_id = await fill(store, 1)
    await fill(store, 1, SessionKey.of("main", "other"))
    foreign = (await transcript(store, SessionKey.of("main", "other")))[0].id
    for message_id in (foreign, "0 OR 1=1", ""):
        with pytest.raises(NotFound, match="history returned"):
            await store.history(session_id, limit=9, before=message_id)
        with pytest.raises(NotFound):
            await store.history(session_id, limit=9, after=message_id)


async def test_tool_results_are_left_out_before_the_limit_counts(store: Store) -> None:
    started = await begin(store)
    for number in range(3):
        (call,) = (await store.commit_reply(started.fence, step(started, str(number), ["a"], number=number))).calls
        await store.commit_result(started.fence, result_of(call), 1)
    session_id = started.run.session_id
    assert session_id is not None
    page = await store.history(session_id, limit=3, with_tools=False)
    assert [message.text for message in page.messages] == ["0", "1", "2"]
    assert page.has_more
    assert all(message.role is not Role.TOOL_RESULT for message in page.messages)
    older = await store.history(session_id, limit=3, with_tools=False, before=page.messages[0].id)
    assert [message.text for message in older.messages] == ["hello"]


async def test_a_transcript_that_does_not_exist_is_empty(store: Store) -> None:
    assert (await store.history("nobody", limit=9)).messages == []


async def test_the_last_messages_of_many_sessions_come_in_one_answer(store: Store) -> None:
    ids = {name: await fill(store, count, SessionKey.of("main", name)) for name, count in (("a", 5), ("b", 1))}
    await converse(store)
    found = await store.last_messages([*ids.values(), "nobody"], 2, with_tools=False)
    assert numbers(found[ids["a"]]) == [3, 4]
    assert numbers(found[ids["b"]]) == [0]
    assert set(found) == set(ids.values())
    assert await store.last_messages([], 2, with_tools=False) == {}
    assert await store.last_messages([*ids.values()] * 2, 2, with_tools=False) == found


async def test_the_last_messages_of_thousands_of_sessions_are_one_query_still(store: Store) -> None:
    session_id = await fill(store, 3)
    found = await store.last_messages([session_id, *(f"nobody {n}" for n in range(5000))], 2, with_tools=True)
    assert numbers(found[session_id]) == [1, 2]


async def test_the_last_messages_leave_tool_results_out_before_they_are_counted(store: Store) -> None:
    started = await begin(store)
    calls = (await store.commit_reply(started.fence, step(started, "look", ["a", "b", "c"]))).calls
    for call in calls:
        await store.commit_result(started.fence, result_of(call), 1)
    session_id = started.run.session_id or ""
    without = await store.last_messages([session_id], 2, with_tools=False)
    assert [message.text for message in without[session_id]] == ["hello", "look"]
    with_them = await store.last_messages([session_id], 2, with_tools=True)
    assert [message.text for message in with_them[session_id]] == ["done", "done"]


def read_numbers(part: TranscriptPart) -> list[int]:
    return numbers([message for _, message in part.lines])


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 8, 9, 263, 264, 265])
async def test_a_model_gets_the_whole_transcript_when_it_fits(store: Store, count: int) -> None:
    started = await begin(store, "-1")
    await store.commit_reply(started.fence, step(started, "-1"))
    session_id = await fill(store, count) if count else started.run.session_id or ""
    part = await store.context(session_id, max_bytes=1_000_000)
    assert part.head.next_seq == count + 2
    assert read_numbers(part) == [-1, -1, *range(count)]
    assert part.is_whole


async def test_a_model_gets_the_newest_part_when_not_all_fits(store: Store) -> None:
    session_id = await fill(store, 200)
    part = await store.context(session_id, max_bytes=1)
    assert read_numbers(part) == list(range(200))[-8:]
    assert (part.begins, part.is_whole) == (192, False)


@pytest.mark.parametrize("count", [7, 8, 9, 40, 128])
async def test_the_newest_part_has_the_calls_of_its_results(store: Store, count: int) -> None:
    await fill(store, 20)
    started = await begin(store)
    calls = (await store.commit_reply(started.fence, step(started, "look", ["a"] * count))).calls
    for call in calls:
        await store.commit_result(started.fence, result_of(call), 1)
    part = await store.context(started.run.session_id or "", max_bytes=1)
    roles = [message.role for _, message in part.lines]
    assert roles[roles.index(Role.ASSISTANT) :] == [Role.ASSISTANT, *[Role.TOOL_RESULT] * count]
    assert Role.TOOL_RESULT not in roles[: roles.index(Role.ASSISTANT)]
    assert not part.is_whole


async def test_all_of_a_short_transcript_is_read_though_it_does_not_fit(store: Store) -> None:
    session_id = await fill(store, 8)
    part = await store.context(session_id, max_bytes=1)
    assert read_numbers(part) == list(range(8))
    assert (part.begins, part.is_whole) == (0, True)


async def test_a_model_gets_a_transcript_from_its_cut_on_with_the_summary_and_the_open_question(store: Store) -> None:
    session_id = await fill(store, 38)
    started = await begin(store, "38")
    summary = (await store.history(session_id, limit=100)).messages[1].id
    cut = Cut(from_seq=31, question_seq=0, summary_id=summary)
    stored = await store.move_cut(started.fence, session_id, None, cut)
    part = await store.context(session_id, max_bytes=1_000_000)
    assert part.head.cut == stored and part.summary is not None and part.summary.id == summary
    assert [seq for seq, _ in part.lines] == [0, *range(31, 39)]
    assert (part.begins, part.is_whole) == (31, True)


async def test_a_cut_that_another_has_moved_meanwhile_stays(store: Store) -> None:
    started = await begin(store)
    session_id = started.run.session_id or ""
    first = await store.move_cut(started.fence, session_id, None, Cut(from_seq=1))
    assert await store.move_cut(started.fence, session_id, None, Cut(from_seq=2)) == first
    moved = await store.move_cut(started.fence, session_id, first, Cut(from_seq=3))
    assert read_cut(moved).from_seq == 3 and read_cut(moved).moved_at is not None


async def test_what_a_run_did_before_a_place_is_read_without_what_others_did(store: Store) -> None:
    started = await begin(store, "mine")
    session_id, run = started.run.session_id or "", started.run
    await store.commit_reply(started.fence, step(started, "done"))
    await fill(store, 5)
    own = await store.own_lines(session_id, run.id, run.message_id, 6)
    assert [(seq, message.text) for seq, message in own] == [(0, "mine"), (1, "done")]
    assert await store.own_lines(session_id, run.id, "no such message", 6) == []


async def test_a_context_of_a_transcript_that_does_not_exist_is_an_error(store: Store) -> None:
    with pytest.raises(LookupError):
        await store.context("nobody", max_bytes=1)


async def test_every_appended_message_is_told_with_its_number_and_line(host: Host) -> None:
    await converse(host.store)
    await host.store.reset_session(MAIN)
    await converse(host.store)
    told = [fact for fact in host.facts if isinstance(fact, MessageAppended)]
    assert [fact.seq for fact in told] == [0, 1, 0, 1]
    assert [decode_message(fact.line) for fact in told] == [fact.message for fact in told]


async def test_a_message_of_a_failed_unit_leaves_no_gap_in_the_numbers(host: Host) -> None:
    store = host.store
    started = await begin(store)
    good = step(started)
    twin = msgspec.structs.replace(good.reply, id=started.run.message_id)
    with pytest.raises(broken_constraint()):
        await store.commit_reply(started.fence, msgspec.structs.replace(good, reply=twin))
    await store.commit_reply(started.fence, good)
    assert host.rows("SELECT seq FROM messages ORDER BY seq") == [(0,), (1,)]
    assert host.rows("SELECT next_seq FROM session_ids") == [(2,)]


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
@settings(max_examples=200)
async def test_a_message_is_one_line_that_reads_back_as_it_was(text: str) -> None:
    message = note(text)
    line = encode_message(message)
    assert b"\n" not in line
    assert decode_message(line) == message


async def test_two_sessions_share_nothing(store: Store) -> None:
    other = SessionKey.of("main", "other")
    await converse(store, "mine")
    await converse(store, "theirs", other)
    assert await texts(store) == ["mine", "re: mine"]
    assert await texts(store, other) == ["theirs", "re: theirs"]
