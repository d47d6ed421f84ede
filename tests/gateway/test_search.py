"""`chat.search` and `sessions.search`: finding a message again in transcripts of any length, through a socket."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.core.messages import Message, Role, TextBlock, ToolCallBlock
from backchannel.storage import full_text
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


async def test_a_text_is_found_in_whatever_case_newest_first_with_what_stands_around_it(shelf: Shelf) -> None:
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
        quoted = await at.client.ask("chat.search", sessionKey="main", query='"shoes"')
        by_id = await at.client.ask("chat.search", sessionKey="main", query="toolResult")

    assert [(match["messageId"], match["role"], match["messageSeq"]) for match in told["matches"]] == [
        ("four", "toolResult", 4),
        ("three", "assistant", 3),
        ("one", "user", 1),
    ]
    four, three, one = [match["excerpt"] for match in told["matches"]]
    assert four.startswith("…yyy") and " red shoes zzz" in four and four.endswith("…") and len(four) < 210
    assert three.startswith('fetch {"what"') and one.startswith("I want RED shoes.")
    assert told["matches"][1]["runId"] == "r" and told["hasMore"] is False and "nextBefore" not in told
    assert by_id["matches"] == [], "only what was said counts"
    assert quoted["matches"] == [], "the arguments of a call are read as JSON"


async def test_a_long_transcript_is_searched_part_by_part_and_every_match_is_found_once(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_text, "_MOST_ROWS", 40)
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
    assert calls >= 5


async def test_what_cannot_be_searched_is_refused(shelf: Shelf) -> None:
    shelf.session(KEY, said("one", "hello"))
    async with doors(shelf, {}) as at:
        empty = await at.client.refused("chat.search", {"sessionKey": "main", "query": ""})
        assert empty["details"]["param"] == "query"
        unknown = await at.client.refused("chat.search", {"sessionKey": "cron:none", "query": "x"})
        assert unknown["details"]["code"] == "session_not_found"
        before = await at.client.refused("chat.search", {"sessionKey": "main", "query": "x", "before": "nothing"})
        assert before["code"] == "NOT_FOUND"


async def test_the_sessions_in_which_a_text_was_said_are_found_the_newest_first(shelf: Shelf) -> None:
    shelf.session("agent:main:old", said("one", "RED shoes"), at=1)
    shelf.session("agent:main:none", said("two", "blue ones"), at=2)
    shelf.session(
        "agent:main:new",
        said("three", "red shoes, please"),
        said("four", "red", Role.TOOL_RESULT, tool_call_id="c", tool_name="fetch"),
        said("five", "no red ones", Role.ASSISTANT),
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
        ("agent:main:new", "three", "user"),
        ("agent:main:old", "one", "user"),
    ]
    assert told["results"][2]["snippet"] == "RED shoes" and told.keys() == {"results"}
    assert [each["messageId"] for each in named["results"]] == ["one"]
    assert [row["key"] for row in first["sessions"]] == ["agent:main:new"] and first["truncated"] is True
    assert archived == {"results": [], "sessions": []}


async def test_of_many_sessions_a_bounded_part_is_searched_and_that_is_said(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_text, "_MOST_ROWS", 3)
    for n in range(4):
        shelf.session(f"agent:main:s{n}", said(f"m{n}", "a needle"), said(f"h{n}", "hay"), at=n)
    async with doors(shelf, {}) as at:
        told = await at.client.ask("sessions.search", query="needle", limit=25)
    assert ([each["messageId"] for each in told["results"]], told["truncated"]) == (["m3"], True)


async def test_what_stands_around_a_text_is_shown_also_behind_letters_whose_small_form_is_longer(shelf: Shelf) -> None:
    shelf.session(KEY, said("one", "İ" * 500 + "needle here"))
    async with doors(shelf, {}) as at:
        told = await at.client.ask("chat.search", sessionKey="main", query="NEEDLE")
    assert told["matches"][0]["excerpt"] == "…" + "İ" * 60 + "needle here"


async def test_an_id_that_a_reset_replaced_is_passed_over_among_the_sessions_to_search(shelf: Shelf) -> None:
    shelf.session(KEY, said("one", "red shoes"))
    shelf.session("agent:main:cron:a", said("two", "red hats"))
    async with doors(shelf, {}) as at:
        old = (await at.client.ask("sessions.describe", key="main"))["session"]["sessionId"]
        await at.client.ask("sessions.reset", key="main")
        told = await at.client.ask("sessions.search", query="red", sessionKeys=[old, "agent:main:cron:a"])
    assert [found["messageId"] for found in told["results"]] == ["two"]
