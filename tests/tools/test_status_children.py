"""`session_status` and sub-agents: what their requester sees of them, what they see of others, what all have used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply
from backchannel.core.contracts import ModelFailed, Price
from backchannel.core.messages import Usage
from tests.support.children import Family, Gate, config, family, spawn
from tests.support.gateways import MAIN, stored
from tests.tools.shelf import START_MS, Shelf, nulls

pytestmark = pytest.mark.anyio


async def only_child(household: Family, key: str | None = MAIN) -> dict[str, Any]:
    status = await household.gateway.tools(key).session_status(sessionKey=MAIN)
    (child,) = status["children"]
    assert list(nulls(status)) == []
    return dict(child)


async def test_a_child_is_shown_from_its_start_to_its_post(tmp_path: Path) -> None:
    working, reporting = Gate(), Gate()
    says: dict[str, Any] = {"person": [[spawn("dig a hole", label="digger")]], "task": working.holds("dug")}
    async with family(tmp_path, announce=reporting.holds("done"), **says) as household:
        await household.ask()
        await working.reached()
        (result,) = await household.results()
        child = await only_child(household)
        assert (child["key"], child["label"], child["status"]) == (result["childSessionKey"], "digger", "running")
        shown = child["spawn"]
        assert (shown["state"], shown["task"]) == ("run", "dig a hole")
        assert (shown["runId"], shown["runStatus"], shown["receipt"]["state"]) == (
            *(result["runId"], "running", "pending"),
        )
        assert shown.keys() == {"state", "task", "runId", "runStatus", "receipt", "startedAt", "atWorkSince"}
        working.open()
        await reporting.reached()
        shown = (await only_child(household))["spawn"]
        assert (shown["state"], shown["runStatus"], shown["model"]) == ("announce", "ok", "scripted/test")
        assert {"endedAt", "runtimeMs"} <= shown.keys()
        reporting.open()
        await household.over()
        child = await only_child(household)
        assert (child["status"], child["spawn"]["state"], child["spawn"]["outcome"]) == ("idle", "done", "posted")
        run = await stored(household.gateway, result["runId"])
        assert (child["spawn"]["startedAt"], child["spawn"]["endedAt"]) == (run.started_at, run.ended_at)
        # The receipt is the one that the requester's own list has.
        status = await household.gateway.tools(MAIN).session_status()
        assert [receipt["id"] for receipt in status["receipts"]] == [child["spawn"]["receipt"]["id"]]
        assert child["spawn"]["receipt"]["state"] == "no_channel"


@pytest.mark.parametrize(
    ("says", "outcome", "run", "receipt"),
    [
        ({"announce": "ANNOUNCE_SKIP"}, "skipped", "ok", "skipped"),
        ({"task": ModelFailed("no luck", retryable=False)}, "posted", "error", "no_channel"),
    ],
)
async def test_how_it_ended_is_shown(
    tmp_path: Path, says: dict[str, Any], outcome: str, run: str, receipt: str
) -> None:
    async with family(tmp_path, **says) as household:
        await household.spawned("dig")
        await household.over()
        shown = (await only_child(household))["spawn"]
        assert (shown["outcome"], shown["runStatus"], shown["receipt"]["state"]) == (outcome, run, receipt)


async def test_a_child_that_was_stopped_is_shown_as_cancelled(tmp_path: Path) -> None:
    gate = Gate()
    async with family(tmp_path, task=gate.holds("half")) as household:
        await household.spawned("dig")
        await gate.reached()
        await household.stop()
        await household.over()
        shown = (await only_child(household))["spawn"]
        assert (shown["outcome"], shown["runStatus"], shown["receipt"]["state"]) == (
            *("cancelled", "aborted", "cancelled"),
        )


async def test_a_childs_own_status_tells_what_started_it(tmp_path: Path) -> None:
    async with family(tmp_path) as household:
        result = await household.spawned("dig")
        await household.over()
        for caller in (MAIN, None):
            status = await household.gateway.tools(caller).session_status(sessionKey=result["childSessionKey"])
            assert (status["key"], status["children"]) == (result["childSessionKey"], [])
            assert status["spawnedBy"] == ("main" if caller else MAIN)
            assert status["spawn"]["runId"] == result["runId"]
        assert "spawn" not in await household.gateway.tools(MAIN).session_status()


async def test_a_task_is_shown_redacted_and_cut(tmp_path: Path) -> None:
    secret = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
    async with family(tmp_path) as household:
        await household.spawned(f"use {secret} to " + "dig " * 200)
        await household.over()
        task = (await only_child(household))["spawn"]["task"]
        assert secret not in task
        assert task.startswith("use [redacted] to dig")
        assert len(task) == 200


async def test_what_all_have_used_adds_up(tmp_path: Path) -> None:
    says: dict[str, Any] = {
        "person": [Reply(calls=(spawn("dig"), spawn("dig")), usage=Usage(input=10, output=1))],
        "result": Reply(text="on it", usage=Usage(input=20, output=2)),
        "task": Reply(text="dug", usage=Usage(input=100, output=10)),
        "announce": Reply(text="done", usage=Usage(input=1000, output=100)),
    }
    async with family(tmp_path, price=Price(1_000_000, 0), **says) as household:
        await household.ask()
        await household.over()
        status = await household.gateway.tools(MAIN).session_status()
        assert status["usage"] == {"input": 30, "output": 3, "cost": 30.0}
        assert [child["usage"] for child in status["children"]] == [{"input": 1100, "output": 110, "cost": 1100.0}] * 2
        assert status["treeUsage"] == {"input": 2230, "output": 223, "cost": 2230.0}
        child = await household.gateway.tools(MAIN).session_status(sessionKey=status["children"][0]["key"])
        assert child["treeUsage"] == child["usage"] == {"input": 1100, "output": 110, "cost": 1100.0}


async def test_of_very_many_children_those_that_live_and_the_newest_are_shown(shelf: Shelf) -> None:
    shelf.session(MAIN)
    for n in range(105):
        archived = {"archived_at": 5} if n % 2 else {}
        shelf.session(f"agent:main:subagent:{n}", spawned_by=MAIN, at=START_MS + n, tokens_in=1, **archived)
    async with family(shelf.state) as household:
        status = await household.gateway.tools(MAIN).session_status()
        assert (len(status["children"]), status["childrenLeftOut"]) == (100, 5)
        assert status["children"][0]["key"] == "agent:main:subagent:104"
        assert ["archivedAt" in child for child in status["children"]] == [False] * 53 + [True] * 47
        assert status["treeUsage"] == {"input": 105}


# Who sees whom

GIVEN_BACK = {"tools": {"subagents": {"tools": {"allow": ["group:sessions"]}}}}


async def test_a_requester_sees_its_children_and_siblings_do_not_see_each_other(tmp_path: Path) -> None:
    settings = {**config("ops"), **GIVEN_BACK}
    calls = [[spawn("dig one"), spawn("dig two", agentId="ops"), spawn("dig three")]]
    async with family(tmp_path, settings, person=calls) as household:
        await household.ask()
        await household.over()
        children = [result["childSessionKey"] for result in await household.results()]
        parent = household.gateway.tools(MAIN)
        listed = await parent.sessions_list()
        assert {row["key"] for row in listed["sessions"]} == {"main", *children}
        for child in children:
            assert (await parent.session_status(sessionKey=child))["spawn"]["state"] == "done"
            assert (await parent.sessions_history(child))["messages"]
            own = household.gateway.tools(child)
            assert [row["key"] for row in (await own.sessions_list())["sessions"]] == [child]
            assert (await own.session_status())["key"] == child
            for other in (*(key for key in children if key != child), MAIN):
                for refused in (
                    await own.session_status(sessionKey=other),
                    await own.sessions_history(other),
                    await own.sessions_send(sessionKey=other, message="hello", timeoutSeconds=0),
                ):
                    assert refused["status"] == "forbidden", (child, other, refused)


async def test_another_session_sees_neither_the_children_nor_what_they_used(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "state")
    shelf.session("agent:main:cron:x")
    async with family(shelf.state) as household:
        result = await household.spawned("dig", label="digger")
        await household.over()
        other = household.gateway.tools("agent:main:cron:x")
        assert (await other.session_status())["children"] == []
        assert (await other.session_status(sessionKey=result["childSessionKey"]))["status"] == "forbidden"
        sent = await other.sessions_send(label="digger", message="hello", timeoutSeconds=0)
        assert sent["status"] == "error"
