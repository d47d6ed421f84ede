"""`chat.search` and `sessions.search`: finding a message again in transcripts of any length, through a socket."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.core.messages import Message, Role, TextBlock, ToolCallBlock
from tests.tools.door import doors
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

KEY = "agent:main:main"


def said(id: str, text: str, role: Role = Role.USER, **more: Any) -> Message:
    content = (TextBlock(text=text), *more.pop("calls", ()))
    return Message(id=id, role=role, content=content, timestamp=7, **more)


@pytest.fixture
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("state"))


async def test_words_are_found_in_whatever_case_newest_first_with_what_stands_around_them(shelf: Shelf) -> None:
    call = ToolCallBlock(id="r/0/0", name="fetch", arguments={"what": 'Red "Shoes"\nnow'})
    shelf.session(
        KEY,
        said("one", "I want RED shoes. " + "x" * 500),
        said("two", "blue ones?", Role.ASSISTANT),
        said("three", "", Role.ASSISTANT, run_id="r", calls=(call,)),
        said(
            "four", "y" * 500 + " red\n\nshoes " + "z" * 500, Role.TOOL_RESULT, tool_call_id="r/0/0", tool_name="fetch"
        ),
    )
    async with doors(shelf, {}) as at:
        told = await at.client.ask("chat.search", sessionKey="main", query="red")
        typed = await at.client.ask("chat.search", sessionKey="main", query="blu")
        phrase = await at.client.ask("chat.search", sessionKey="main", query='"want red"')
        by_id = await at.client.ask("chat.search", sessionKey="main", query="toolResult")

    assert [(match["messageId"], match["role"], match["messageSeq"]) for match in told["matches"]] == [
        ("four", "toolResult", 4),
        ("three", "assistant", 3),
        ("one", "user", 1),
    ]
    four, three, one = [match["excerpt"] for match in told["matches"]]
    assert four.startswith("…yyy") and " red shoes zzz" in four and four.endswith("…") and len(four) < 210
    assert 'fetch {"what"' in three and one.startswith("I want RED shoes.")
    assert told["matches"][1]["runId"] == "r" and told["hasMore"] is False and "nextBefore" not in told
    assert [match["messageId"] for match in typed["matches"]] == ["two"], "the last word may be unfinished"
    assert [match["messageId"] for match in phrase["matches"]] == ["one"]
    assert by_id["matches"] == [], "only what was said counts"


async def test_a_long_transcript_is_searched_page_by_page_and_every_match_is_found_once(shelf: Shelf) -> None:
    words = [said(f"m{n}", "a needle" if n % 25 == 0 else "hay") for n in range(200)]
    shelf.session(KEY, *words)
    async with doors(shelf, {}) as at:
        found: list[str] = []
        calls = 0
        page: dict[str, Any] = {"hasMore": True}
        while page["hasMore"]:
            before = {"before": page["nextBefore"]} if "nextBefore" in page else {}
            page = await at.client.ask("chat.search", sessionKey="main", query="Needle", limit=2, **before)
            found += [match["messageId"] for match in page["matches"]]
            calls += 1
    assert found == [f"m{n}" for n in range(175, -1, -25)]
    assert calls <= 5


async def test_what_cannot_be_searched_is_refused(shelf: Shelf) -> None:
    shelf.session(KEY, said("one", "hello"))
    async with doors(shelf, {}) as at:
        empty = await at.client.refused("chat.search", {"sessionKey": "main", "query": ""})
        assert empty["details"]["param"] == "query"
        for method in ("chat.search", "sessions.search"):
            key = {"sessionKey": "main"} if method == "chat.search" else {}
            signs = await at.client.refused(method, {"query": "?!", **key})
            assert signs["details"]["param"] == "query"
        unknown = await at.client.refused("chat.search", {"sessionKey": "cron:none", "query": "x"})
        assert unknown["details"]["code"] == "session_not_found"
        before = await at.client.refused("chat.search", {"sessionKey": "main", "query": "x", "before": "nothing"})
        assert before["code"] == "NOT_FOUND"


async def test_messages_are_found_in_all_sessions_the_best_first(shelf: Shelf) -> None:
    shelf.session("agent:main:old", said("one", "RED shoes"), at=1)
    shelf.session("agent:main:none", said("two", "blue ones"), at=2)
    shelf.session(
        "agent:main:new",
        said("three", "red shoes, please: " + "any that fit will do, " * 9),
        said("four", "red", Role.TOOL_RESULT, tool_call_id="c", tool_name="fetch"),
        said("five", "no red ones, " * 3, Role.ASSISTANT),
        at=3,
    )
    async with doors(shelf, {}) as at:
        told = await at.client.ask("sessions.search", query="Red")
        named = await at.client.ask("sessions.search", query="red", sessionKeys=["agent:main:old", "agent:main:gone"])
        first = await at.client.ask("sessions.search", query="red", limit=1, scope={"archived": "all", "ownerFirst": 1})
        archived = await at.client.ask("sessions.search", query="red", scope={"archived": True})

    found = [(each["sessionKey"], each["messageId"], each["role"]) for each in told["results"]]
    assert found == [
        ("agent:main:new", "five", "assistant"),
        ("agent:main:old", "one", "user"),
        ("agent:main:new", "three", "user"),
    ]
    scores = [each["score"] for each in told["results"]]
    assert scores == sorted(scores, reverse=True) and 0 < scores[-1] < scores[0] < 1
    assert told["results"][1]["snippet"] == "RED shoes" and told.keys() == {"results"}
    assert [each["messageId"] for each in named["results"]] == ["one"]
    assert [row["key"] for row in first["sessions"]] == ["agent:main:new"] and first["truncated"] is True
    assert archived == {"results": [], "sessions": []}


async def test_a_transcript_that_a_reset_replaced_is_found_and_read_by_its_id(shelf: Shelf) -> None:
    shelf.session(KEY, said("one", "red shoes"))
    shelf.session("agent:main:cron:a", said("two", "old hats"))
    async with doors(shelf, {}) as at:
        old = (await at.client.ask("sessions.describe", key="main"))["session"]["sessionId"]
        await at.client.ask("sessions.reset", key="main")
        now = await at.client.ask("sessions.search", query="red", scope={})
        ever = await at.client.ask("sessions.search", query="red")
        past = await at.client.ask("chat.history", sessionKey="main", transcriptId=old)
        within = await at.client.ask("chat.search", sessionKey="main", transcriptId=old, query="shoes")
        other = await at.client.refused("chat.history", {"sessionKey": "cron:a", "transcriptId": old})
        present = await at.client.ask("chat.history", sessionKey="main")
        await at.client.ask("sessions.delete", key="agent:main:cron:a")
        deleted = (await at.client.ask("sessions.search", query="hats"))["results"][0]
        gone = await at.client.ask("chat.history", sessionKey=deleted["sessionId"])
    assert now["results"] == [] and other["details"]["code"] == "session_not_found"
    assert [(each["messageId"], each["sessionId"]) for each in ever["results"]] == [("one", old)]
    assert [message["id"] for message in past["messages"]] == ["one"] and past["sessionId"] == old
    assert [match["messageId"] for match in within["matches"]] == ["one"]
    assert present["messages"] == [] and present["follows"]["sessionId"] == old
    assert [message["id"] for message in gone["messages"]] == ["two"]


async def test_what_stands_around_a_word_is_shown_also_behind_letters_whose_small_form_is_longer(shelf: Shelf) -> None:
    shelf.session(KEY, said("one", "İ" * 500 + " needle here"))
    async with doors(shelf, {}) as at:
        told = await at.client.ask("chat.search", sessionKey="main", query="NEEDLE")
    assert told["matches"][0]["excerpt"] == "…" + "İ" * 59 + " needle here"


async def test_an_id_that_a_reset_replaced_is_passed_over_among_the_sessions_to_search(shelf: Shelf) -> None:
    shelf.session(KEY, said("one", "red shoes"))
    shelf.session("agent:main:cron:a", said("two", "red hats"))
    async with doors(shelf, {}) as at:
        old = (await at.client.ask("sessions.describe", key="main"))["session"]["sessionId"]
        await at.client.ask("sessions.reset", key="main")
        told = await at.client.ask("sessions.search", query="red", sessionKeys=[old, "agent:main:cron:a"])
    assert [found["messageId"] for found in told["results"]] == ["two"]
