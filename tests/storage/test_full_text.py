"""The index of words in the database: what is in it, what waits for it, and that a search finds both."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backchannel.core.full_text.queries import SearchPlace, SearchWanted, parse_query
from backchannel.core.full_text.ranking import SearchText
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.errors import InvalidRequest
from backchannel.storage.full_text import IndexEntry
from backchannel.storage.sqlite.full_text import SqliteFullText
from backchannel.storage.store import Store
from tests.storage.support import MAIN, Host, converse
from tests.support.databases import is_postgres

pytestmark = [pytest.mark.both_databases, pytest.mark.anyio]


async def index_all(store: Store) -> int:
    """Take all that waits into the index; returns how many messages that were."""
    count = 0
    while entries := await store.unindexed(64):
        count += await store.take_into_index(entries)
    return count


async def found(store: Store, query: str, **more: object) -> list[str]:
    """Search everything, and return the texts found, best first."""
    wanted = SearchWanted(query=parse_query(query), **more)  # type: ignore[arg-type]  # as its fields are called
    page = await store.search_ranked(wanted, place=SearchPlace(now=1), since=None, limit=100)
    return [each.match.message.text for each in page.found]


TEXTS = [
    "I want RED shoes",
    "the shoes are red, and red again",
    "im Café gibt es grünen Tee",
    "call foo_bar.baz of ann@example.org",
    "東京都に住む",
    "สวัสดีครับ",
    "done 👍🏽 in 1,234 ms",
    'line\nbreak, a "quote" and 100% _x_',
]
QUERIES = {
    "red shoes": TEXTS[:2],
    '"red shoes"': TEXTS[:1],
    "sho*": TEXTS[:2],
    "GRUNEN cafe": [TEXTS[2]],
    "foo_bar": [TEXTS[3]],
    "ann@example.org": [TEXTS[3]],
    "京都": [TEXTS[4]],
    "京": [TEXTS[4]],
    "สดี": [TEXTS[5]],
    "👍": [TEXTS[6]],
    "1234": [],
    "1,234": [TEXTS[6]],
    "line break": [TEXTS[7]],
    "sho": [],
    "red OR tee": [],
}


@pytest.mark.parametrize("is_indexed", [False, True])
async def test_a_message_is_found_by_its_words_whether_it_waits_or_is_indexed(host: Host, is_indexed: bool) -> None:
    for text in TEXTS:
        await converse(host.store, text, reply="well")
    if is_indexed:
        await index_all(host.store)
        assert await host.store.count_unindexed() == 0
    for query, expected in QUERIES.items():
        assert sorted(await found(host.store, query)) == sorted(expected), query


async def test_a_message_can_be_found_right_after_the_commit_that_wrote_it(host: Host) -> None:
    await converse(host.store, "a needle")
    assert "a needle" in await found(host.store, "needle")
    await host.restart()
    assert "a needle" in await found(host.store, "needle")


async def test_messages_are_indexed_once_however_often_that_is_begun(host: Host) -> None:
    await converse(host.store, "a needle", reply="hay")
    if is_postgres():
        host.rows("UPDATE messages SET words = NULL RETURNING id")
    entries = await host.store.unindexed(10)
    assert len(entries) == 2
    await host.store.take_into_index(entries)
    await host.store.take_into_index(entries)
    await host.restart()
    assert await host.store.count_unindexed() == 0
    assert await found(host.store, "needle") == ["a needle"]


async def test_pages_go_on_where_the_last_ended_while_others_write(host: Host) -> None:
    for n in range(9):
        await converse(host.store, "needle " * (1 + n % 4) + str(n), reply="hay")
    wanted = SearchWanted(query=parse_query("needle"))
    texts: list[str] = []
    place: SearchPlace | None = SearchPlace(now=1)
    while place is not None:
        page = await host.store.search_ranked(wanted, place=place, since=None, limit=2)
        texts += [each.match.message.text for each in page.found]
        place = page.next
        await converse(host.store, "needle needle needle needle needle new", reply="hay")
        await index_all(host.store)
    assert len(texts) == 9 == len(set(texts)), "each once, and none that came later"
    assert [text.count("needle") for text in texts] == sorted((text.count("needle") for text in texts), reverse=True)


async def test_many_matches_are_ranked_window_by_window_and_each_is_given_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backchannel.storage.views.searching.WINDOW", 4)
    for n in range(11):
        await converse(host.store, f"needle {n}", reply="hay")
    await index_all(host.store)
    wanted = SearchWanted(query=parse_query("needle"))
    texts: list[str] = []
    place: SearchPlace | None = SearchPlace(now=1)
    while place is not None:
        page = await host.store.search_ranked(wanted, place=place, since=None, limit=3)
        texts += [each.match.message.text for each in page.found]
        place = page.next
    assert sorted(texts) == sorted(f"needle {n}" for n in range(11))
    assert set(texts[:4]) == {f"needle {n}" for n in range(7, 11)}, "the newest window comes first"


async def test_while_many_messages_wait_a_search_says_that_it_is_not_complete(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        await converse(host.store, f"needle {n}", reply="hay")
    if is_postgres():
        host.rows("UPDATE messages SET words = NULL RETURNING id")
    monkeypatch.setattr("backchannel.storage.views.searching.MOST_UNINDEXED", 4)
    wanted = SearchWanted(query=parse_query("needle"))
    page = await host.store.search_ranked(wanted, place=SearchPlace(now=1), since=None, limit=9)
    assert ([each.match.message.text for each in page.found], page.is_complete) == (["needle 3", "needle 2"], False)
    await host.store.take_into_index(await host.store.unindexed(4))
    page = await host.store.search_ranked(wanted, place=SearchPlace(now=1), since=None, limit=9)
    assert (len(page.found), page.is_complete) == (4, True)


async def test_one_transcript_is_searched_newest_first_and_before_a_message(host: Host) -> None:
    for n in range(3):
        await converse(host.store, f"needle {n}")
    await converse(host.store, "needle elsewhere", key=SessionKey.cron("main", "other"))
    session = await host.store.session(str(MAIN))
    assert session is not None
    seqs: list[int] = []
    before = None
    while True:
        page = await host.store.search(session.session_id, parse_query("needle"), before=before, limit=2)
        seqs += [match.seq for match in page.found]
        if page.next_below is None:
            break
        before = page.found[-1].message.id
    assert seqs == [5, 4, 3, 2, 1, 0]


async def test_a_transcript_that_is_removed_takes_its_words_along(host: Host) -> None:
    from backchannel.storage.units import messages

    await converse(host.store, "a needle", reply="ein Café")
    await index_all(host.store)
    await converse(host.store, "a second needle", reply="hay")
    session = await host.store.session(str(MAIN))
    assert session is not None
    await host.store.driver.write(messages.remove_all, str(MAIN), session.session_id)
    assert await found(host.store, "needle") == []
    assert await host.store.count_unindexed() == 0
    assert is_postgres() or words_left(host) == 0


def words_left(host: Host) -> int:
    """Count what the index itself still finds, whatever became of the messages."""
    rows = host.rows("SELECT count(*) FROM message_words WHERE message_words MATCH 'needle OR cafe OR second OR hay'")
    return int(rows[0][0])


@given(query=st.text(max_size=60))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_no_text_of_a_query_fails(shared_host: Host, query: str) -> None:
    try:
        parsed = parse_query(query, is_open=True)
    except InvalidRequest:
        return
    for with_tools in (False, True):
        wanted = SearchWanted(query=parsed, with_tools=with_tools, keys=(str(MAIN),))
        await shared_host.store.search_ranked(wanted, place=SearchPlace(now=1), since=None, limit=5)


@pytest.fixture
async def shared_host(host: Host) -> Host:
    for text in TEXTS:
        await converse(host.store, text)
    await index_all(host.store)
    return host


async def test_roles_and_kinds_narrow_a_search(host: Host) -> None:
    await converse(host.store, "a needle", reply="another needle")
    await converse(host.store, "needle of a job", key=SessionKey.cron("main", "nightly"), reply="hay")
    assert await found(host.store, "needle", roles=(Role.ASSISTANT.value,)) == ["another needle"]
    assert await found(host.store, "needle", kinds=("cron",)) == ["needle of a job"]
    assert await found(host.store, "needle", keys=("agent:main:cron:nightly",)) == ["needle of a job"]
    assert await found(host.store, "needle", keys=()) == []
    assert await found(host.store, "needle", agent_id="other") == []


class Statements:
    """Notes the texts of statements."""

    def __init__(self) -> None:
        self.texts: set[str] = set()

    def all(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        self.texts.add(sql)
        return []

    def run(self, sql: str, *values: object) -> None:
        self.texts.add(sql)

    run_long = run


def test_each_batch_for_the_index_is_written_with_the_same_statements() -> None:
    # A connection keeps 512 statements: with numbers in their texts they took 20 MB, and the others had no room.
    seen = Statements()
    for start in range(3):
        entries = [IndexEntry(n, f"m{n}", SearchText("said", ""), ()) for n in range(start, start + 9)]
        SqliteFullText().add(seen, entries)
    assert len(seen.texts) == 3
