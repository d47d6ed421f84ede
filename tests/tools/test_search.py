"""`sessions_search`: who finds what, in which order, and that a hit can be read."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.messages import CompactionEntry, Role, ToolCallBlock
from backchannel.errors import InvalidRequest
from backchannel.gateway.app import Gateway
from backchannel.runtime.indexing import ENOUGH
from tests.tools.shelf import START_MS, Shelf, agents, message, result

pytestmark = pytest.mark.anyio

MAIN, CRON, CHILD = "agent:main:main", "agent:main:cron:nightly", "agent:main:subagent:u1"
OTHER = "agent:ops:main"
KEY = "ghp_" + "aB3dE5gH7j" * 4


def config(visibility: str = "tree", **more: Any) -> dict[str, Any]:
    return agents("main", "ops", tools={"sessions": {"visibility": visibility}, **more})


@pytest.fixture
async def filled(shelf: Shelf) -> Shelf:
    call = ToolCallBlock(id="r/0/0", name="look", arguments={"where": "the needle shop"})
    shelf.session(MAIN, "a needle in main", message("I look", Role.ASSISTANT, call), result("a needle was found"))
    shelf.session(CRON, "a needle in cron", label="the job", display_name="Nightly")
    shelf.session(CHILD, "a needle in the child", spawned_by=MAIN)
    shelf.session("agent:main:subagent:u2", "an archived needle", spawned_by=MAIN, archived_at=START_MS)
    shelf.session("agent:main:gone", "a deleted needle", archived_at=START_MS)
    shelf.session(OTHER, "a needle of ops")
    return shelf


def keys(answer: dict[str, Any]) -> set[str]:
    return {hit["sessionKey"] for hit in answer["hits"]}


async def test_a_hit_has_what_the_contract_says_and_nothing_else(filled: Shelf) -> None:
    async with filled.opened(config()) as gateway:
        answer = await gateway.tools(CRON).sessions_search("NEEDLE cron")
    (hit,) = answer["hits"]
    assert hit.keys() == {"sessionKey", "messageId", "role", "timestamp", "snippet", "label", "displayName"}
    assert (hit["sessionKey"], hit["role"], hit["snippet"]) == ("cron:nightly", "user", "a needle in cron")
    assert (hit["label"], hit["displayName"], hit["timestamp"]) == ("the job", "Nightly", START_MS)
    assert answer.keys() == {"count", "hits", "visibility"} and answer["count"] == 1
    assert answer["visibility"] == {"mode": "tree", "restricted": True}


@pytest.mark.parametrize(
    ("visibility", "expected"),
    [
        ("self", {"main"}),
        ("tree", {"main", CHILD, "agent:main:subagent:u2"}),
        ("agent", {"main", CHILD, "agent:main:subagent:u2", "cron:nightly"}),
        ("all", {"main", CHILD, "agent:main:subagent:u2", "cron:nightly", OTHER}),
    ],
)
async def test_a_session_finds_what_it_may_see(filled: Shelf, visibility: str, expected: set[str]) -> None:
    async with filled.opened(config(visibility, agentToAgent={"enabled": True})) as gateway:
        assert keys(await gateway.tools(MAIN).sessions_search("needle")) == expected


async def test_an_operator_finds_everything_by_full_keys(filled: Shelf) -> None:
    async with filled.opened(config()) as gateway:
        answer = await gateway.tools().sessions_search("needle")
    assert keys(answer) == {MAIN, CRON, CHILD, OTHER, "agent:main:gone", "agent:main:subagent:u2"}
    assert answer["visibility"] == {"mode": "all", "restricted": False}


async def test_a_sandboxed_session_finds_no_more_than_its_tree(filled: Shelf) -> None:
    settings = agents("main", "ops", defaults={"sandbox": {"mode": "all"}}, tools={"sessions": {"visibility": "all"}})
    async with filled.opened(settings) as gateway:
        answer = await gateway.tools(MAIN).sessions_search("needle")
        refused = await gateway.tools(MAIN).sessions_search("needle", sessionKey="cron:nightly")
    assert keys(answer) == {"main", CHILD, "agent:main:subagent:u2"}
    assert refused["status"] == "forbidden"


async def test_a_search_is_narrowed_by_session_kind_and_time(filled: Shelf) -> None:
    async with filled.opened(config("agent")) as gateway:
        tools = gateway.tools(MAIN)
        assert keys(await tools.sessions_search("needle", sessionKey="cron:nightly")) == {"cron:nightly"}
        assert keys(await tools.sessions_search("needle", kinds=["cron", "main"])) == {"cron:nightly", "main"}
        assert keys(await tools.sessions_search("needle", since=5)) == set()
        minutes = (gateway.clock.now_ms() - START_MS) // 60_000 + 5
        assert "main" in keys(await tools.sessions_search("needle", since=minutes))
        assert (await tools.sessions_search("needle", sessionKey="cron:never"))["status"] == "error"
        assert (await tools.sessions_search("needle", sessionKey=OTHER))["status"] == "forbidden"


async def test_tools_are_searched_only_when_asked_for(filled: Shelf) -> None:
    async with filled.opened(config("self")) as gateway:
        tools = gateway.tools(MAIN)
        plain = await tools.sessions_search("needle")
        wide = await tools.sessions_search("needle", includeTools=True)
        assert [hit["role"] for hit in plain["hits"]] == ["user"]
        assert {hit["role"] for hit in wide["hits"]} == {"user", "assistant", "toolResult"}
        assert (await tools.sessions_search("shop"))["count"] == 0


@pytest.mark.parametrize("query", ["", "  ", "?!", '""'])
async def test_a_query_without_words_is_refused(filled: Shelf, query: str) -> None:
    async with filled.opened(config()) as gateway:
        with pytest.raises(InvalidRequest) as refused:
            await gateway.tools(MAIN).sessions_search(query)
        assert refused.value.details["param"] == "query"


async def test_pages_give_each_hit_once_best_first_and_a_cursor_belongs_to_its_query(shelf: Shelf) -> None:
    shelf.session(MAIN, *("needle " * (n % 5 + 1) + f"in hay {n} " + "hay " * n for n in range(60)))
    async with shelf.opened(config()) as gateway:
        tools = gateway.tools(MAIN)
        found: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            page = await tools.sessions_search("needle", limit=7, **cursor)
            found += [hit["messageId"] for hit in page["hits"]]
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert len(found) == 60 == len(set(found))
        whole = await tools.sessions_search("needle", limit=1000)
        assert whole["count"] == 50, "so many at most"
        assert [hit["messageId"] for hit in whole["hits"]] == found[:50]
        assert (await tools.sessions_search("needle"))["count"] == 20
        with pytest.raises(InvalidRequest, match="cursor"):
            await tools.sessions_search("other", **cursor)


async def test_what_was_said_is_found_and_not_the_summaries_that_repeat_it(shelf: Shelf) -> None:
    entry = CompactionEntry(through_message_id="m", messages=2, tokens_before=9, tokens_after=3, model="a/b")
    repeats = [message("needle needle needle", Role.SYSTEM, compaction=entry) for _ in range(9)]
    shelf.session(MAIN, "one needle", "much hay", *repeats, message("a needle noted", Role.SYSTEM))
    async with shelf.opened(config()) as gateway:
        tools = gateway.tools(MAIN)
        minutes = (gateway.clock.now_ms() - START_MS) // 60_000 + 5
        for more in ({}, {"since": minutes}):
            found = await tools.sessions_search("needle", limit=5, **more)
            assert {hit["snippet"] for hit in found["hits"]} == {"one needle", "a needle noted"}
            assert "nextCursor" not in found


async def test_what_is_hidden_cannot_be_found_out_by_searching_for_it(shelf: Shelf) -> None:
    shelf.session(MAIN, f"the key is {KEY} for the needle", "nothing here")
    async with shelf.opened(config()) as gateway:
        for caller in (MAIN, None):
            tools = gateway.tools(caller) if caller else gateway.tools()
            shown = await tools.sessions_search("needle")
            assert KEY not in str(shown) and "[redacted]" in shown["hits"][0]["snippet"] and shown["redacted"] is True
            for guess in (KEY, "ghp_*", "ghp", KEY[4:10] + "*", f'"key is {KEY[:8]}"'):
                assert (await tools.sessions_search(guess))["count"] == 0, guess


async def test_a_hit_is_read_by_sessions_history_also_after_a_reset(shelf: Shelf) -> None:
    shelf.session(MAIN, "before it", "the old needle", "after it")
    async with shelf.opened(config()) as gateway:
        old = (await gateway.tools(MAIN).sessions_history("current"))["sessionId"]
        await reset(gateway, MAIN)
        for caller, key in ((MAIN, "main"), (None, MAIN)):
            tools = gateway.tools(caller) if caller else gateway.tools()
            (hit,) = (await tools.sessions_search("needle"))["hits"]
            read = await tools.sessions_history(hit["sessionKey"], messageId=hit["messageId"])
            led = await tools.sessions_history(hit["sessionKey"], before=hit["messageId"])
            assert (hit["sessionKey"], read["sessionId"]) == (key, old)
            assert [each["content"][0]["text"] for each in read["messages"]] == ["the old needle"]
            assert [each["content"][0]["text"] for each in led["messages"]] == ["before it"]
            assert (await tools.sessions_history(hit["sessionKey"]))["messages"] == []


async def test_the_former_transcripts_of_others_are_neither_found_nor_read(shelf: Shelf) -> None:
    former = message("the old needle")
    shelf.session(CRON, former)
    shelf.session(MAIN, "hello")
    async with shelf.opened(config("agent")) as gateway:
        assert (await gateway.tools(MAIN).sessions_search("needle"))["count"] == 1
        await reset(gateway, CRON)
        assert (await gateway.tools(MAIN).sessions_search("needle"))["count"] == 0
        read = await gateway.tools(MAIN).sessions_history("cron:nightly", messageId=former.id)
        assert read["status"] == "error"
        assert (await gateway.tools(CRON).sessions_search("needle"))["count"] == 1


async def test_an_operator_reads_a_hit_in_a_session_that_was_deleted(filled: Shelf) -> None:
    async with filled.opened(config()) as gateway:
        (hit,) = (await gateway.tools().sessions_search("deleted needle"))["hits"]
        read = await gateway.tools().sessions_history(hit["sessionKey"], messageId=hit["messageId"])
        assert read["messages"][0]["content"][0]["text"] == "a deleted needle"
        assert (await gateway.tools().sessions_history(hit["sessionKey"]))["status"] == "error"


async def test_older_state_is_indexed_after_the_start_and_is_found_meanwhile(shelf: Shelf) -> None:
    shelf.session(MAIN, *(f"needle {n}" for n in range(ENOUGH * 3)))
    async with shelf.opened(config()) as gateway:
        tools = gateway.tools(MAIN)
        while shelf.count("unindexed"):
            assert (await tools.sessions_search("needle", limit=1))["count"] == 1
        answer = await tools.sessions_search("needle 3")
        assert "note" not in answer and answer["hits"][0]["snippet"] == "needle 3"


async def test_few_messages_are_found_without_being_indexed(shelf: Shelf) -> None:
    shelf.session(MAIN, "a needle")
    async with shelf.opened(config()) as gateway:
        assert (await gateway.tools(MAIN).sessions_search("needle"))["count"] == 1
    assert shelf.count("unindexed") == 1


async def reset(gateway: Gateway, key: str) -> None:
    await gateway.store.reset_session(SessionKey.parse(key))
