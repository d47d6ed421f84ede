"""`session_status`: what a session is busy with, and what it and its children have used."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.contracts import Price
from backchannel.core.messages import Usage
from backchannel.errors import InvalidRequest
from tests.tools.shelf import START_MS, Shelf, agents, nulls

pytestmark = pytest.mark.anyio

MAIN = "agent:main:main"
DAY_MS = 24 * 3600 * 1000


def config(mode: str = "tree") -> dict[str, Any]:
    return agents("main", "ops", defaults={"model": "scripted/test"}, tools={"sessions": {"visibility": mode}})


async def test_it_is_the_row_and_what_the_session_does(shelf: Shelf) -> None:
    shelf.session(MAIN, "hello", tokens_in=10, tokens_out=5)
    async with shelf.opened(config(), ScriptedModel()) as gateway:
        status = await gateway.tools(MAIN).session_status()
        (row,) = (await gateway.tools(MAIN).sessions_list())["sessions"]
    assert status == {
        **row,
        "queueLength": 0,
        "children": [],
        "exchanges": [],
        "receipts": [],
        "usage": {"input": 10, "output": 5},
        "treeUsage": {"input": 10, "output": 5},
    }


async def test_without_a_key_it_is_the_callers_own_and_the_operators_is_main(shelf: Shelf) -> None:
    shelf.session(MAIN)
    shelf.session("agent:main:cron:x")
    async with shelf.opened(config(), ScriptedModel()) as gateway:
        assert (await gateway.tools("cron:x").session_status())["key"] == "cron:x"
        assert (await gateway.tools("cron:x").session_status(sessionKey=None))["key"] == "cron:x"
        assert (await gateway.tools().session_status())["key"] == MAIN


async def test_a_caller_that_has_no_session_yet_has_no_status_and_gets_none_made(shelf: Shelf) -> None:
    async with shelf.opened(config(), ScriptedModel()) as gateway:
        assert (await gateway.tools("main").session_status())["status"] == "error"
        assert (await gateway.tools("main").sessions_list())["count"] == 0
        assert shelf.count("sessions") == 0


async def test_a_session_at_work_shows_its_run_and_its_queue(shelf: Shelf) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    held = Reply(text="done", gate=gate, reached=reached)
    model = ScriptedModel(replies=lambda request: held)
    async with shelf.opened(config(), model) as gateway:
        runs = [await gateway.submit("main", text) for text in ("one", "two", "three")]
        async with asyncio.timeout(20):
            await reached.wait()
        status = await gateway.tools("main").session_status()
        assert (status["status"], status["queueLength"]) == ("running", 2)
        active = status["activeRun"]
        assert active["runId"] == runs[0].id and active["status"] == "running" and active["sessionKey"] == "main"
        assert list(nulls(status)) == []
        gate.set()
        for run in runs:
            await gateway.runtime.wait(run.id, 20)
        status = await gateway.tools("main").session_status()
        assert status["status"] == "idle" and "activeRun" not in status and status["queueLength"] == 0


async def test_what_was_used_is_told_of_it_alone_and_of_its_tree(shelf: Shelf) -> None:
    shelf.session("agent:main:subagent:a", spawned_by=MAIN, tokens_in=100, tokens_out=50, cost=0.25, label="first")
    shelf.session("agent:ops:subagent:b", spawned_by=MAIN, tokens_in=1, tokens_out=2, archived_at=5, at=START_MS + 1)
    shelf.session("agent:main:subagent:c", spawned_by="agent:main:cron:x", tokens_in=1000)
    model = ScriptedModel(replies=[Reply(text="hi", usage=Usage(input=7, output=3))], price=Price(1_000_000, 0))
    async with shelf.opened(config(), model) as gateway:
        await gateway.ask("main", "hello")
        status = await gateway.tools("main").session_status()
    assert status["usage"] == {"input": 7, "output": 3, "cost": 7.0}
    assert status["treeUsage"] == {"input": 108, "output": 55, "cost": 7.25}
    assert status["children"] == [
        {
            "key": "agent:main:subagent:a",
            "status": "idle",
            "usage": {"input": 100, "output": 50, "cost": 0.25},
            "label": "first",
        },
        {"key": "agent:ops:subagent:b", "status": "idle", "usage": {"input": 1, "output": 2}, "archivedAt": 5},
    ]


async def test_the_part_of_the_last_request_that_came_from_the_cache_is_told(shelf: Shelf) -> None:
    replies = [Reply(text="one", usage=Usage(input=10)), Reply(text="two", usage=Usage(input=20, cache_read=60))]
    async with shelf.opened(config(), ScriptedModel(replies=replies)) as gateway:
        await gateway.ask("main", "hello")
        assert "cachedShare" not in await gateway.tools("main").session_status()
        await gateway.ask("main", "and again")
        assert (await gateway.tools("main").session_status())["cachedShare"] == 0.75


async def test_children_that_the_caller_may_not_see_are_not_named(shelf: Shelf) -> None:
    shelf.session(MAIN)
    shelf.session("agent:main:cron:x")
    shelf.session("agent:main:subagent:a", spawned_by=MAIN, tokens_in=1)
    shelf.session("agent:ops:subagent:b", spawned_by=MAIN, tokens_in=2, label="secret plan")
    expected = {"self": [], "tree": ["agent:main:subagent:a", "agent:ops:subagent:b"]}
    for mode, keys in expected.items():
        async with shelf.opened(config(mode), ScriptedModel()) as gateway:
            assert [child["key"] for child in (await gateway.tools(MAIN).session_status())["children"]] == keys
    async with shelf.opened(config("agent"), ScriptedModel()) as gateway:
        status = await gateway.tools("cron:x").session_status(sessionKey="main")
        assert [child["key"] for child in status["children"]] == ["agent:main:subagent:a"]
        assert "secret plan" not in str(status)
        assert status["treeUsage"] == {"input": 3}


async def test_open_exchanges_are_told_and_those_that_ended_are_not(shelf: Shelf) -> None:
    shelf.session(MAIN)
    insert = (
        "INSERT INTO exchanges (id, requester_key, target_key, state, body, created_at, updated_at) "
        "VALUES (?, ?, ?, ?, '{}', 1, ?)"
    )
    shelf.execute(insert, "asked", MAIN, "agent:ops:main", "loop", 2)
    shelf.execute(insert, "answers", "agent:ops:main", MAIN, "primary", 1)
    shelf.execute(insert, "with itself", MAIN, MAIN, "announce", 3)
    shelf.execute(insert, "over", MAIN, "agent:ops:main", "done", 4)
    shelf.execute(insert, "of others", "agent:ops:main", "agent:ops:cron:x", "loop", 5)
    async with shelf.opened(config(), ScriptedModel()) as gateway:
        exchanges = (await gateway.tools("main").session_status())["exchanges"]
    assert exchanges == [
        {"id": "answers", "state": "primary", "updatedAt": 1},
        {"id": "asked", "state": "loop", "updatedAt": 2},
        {"id": "with itself", "state": "announce", "updatedAt": 3},
    ]


async def test_receipts_are_those_that_are_open_and_those_settled_within_a_day(shelf: Shelf) -> None:
    shelf.session(MAIN)
    insert = "INSERT INTO deliveries (id, session_key, state, error, created_at, updated_at) VALUES (?, ?, ?, ?, 1, ?)"
    async with shelf.opened(config(), ScriptedModel()) as gateway:
        now = gateway.clock.now_ms()
        old, new = now - DAY_MS - 60_000, now - DAY_MS + 60_000
        for state in ("pending", "sending", "failed", "uncertain"):
            shelf.execute(
                insert, f"old {state}", MAIN, state, "the channel said no" if state == "failed" else None, old
            )
        shelf.execute(insert, "old sent", MAIN, "sent", None, old)
        shelf.execute(insert, "new sent", MAIN, "sent", None, new)
        shelf.execute(insert, "another's", "agent:ops:main", "pending", None, new)
        receipts = (await gateway.tools("main").session_status())["receipts"]
    assert [receipt["id"] for receipt in receipts] == [
        *("old pending", "old sending", "old failed", "old uncertain", "new sent"),
    ]
    assert receipts[2] == {"id": "old failed", "state": "failed", "updatedAt": old, "error": "the channel said no"}


@pytest.mark.parametrize("arguments", [{"sessionKey": 7}, {"key": "main"}, {"sessionKey": ["main"]}])
async def test_input_that_does_not_fit_is_an_error(shelf: Shelf, arguments: dict[str, Any]) -> None:
    async with shelf.opened(config(), ScriptedModel()) as gateway:
        with pytest.raises(InvalidRequest):
            await gateway.tools().call("session_status", **arguments)
