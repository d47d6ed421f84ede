"""The limits on sub-agents: their number, how many run at once, and the length of a chain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.core.contracts import ModelRequest
from tests.support.children import Gate, config, family, spawn
from tests.support.gateways import MAIN, live_runs
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

SETTING = "agents.defaults.subagents.maxChildren"


# How many there may be


async def test_running_queued_and_announcing_children_all_count(tmp_path: Path) -> None:
    working, reporting = Gate(), Gate()
    says: dict[str, Any] = {
        "task": {"report": "dug", "work": working.holds(), "wait": "dug"},
        "announce": {"report": reporting.holds(), "work": "done", "wait": "done"},
    }
    async with family(tmp_path, config(maxChildren=3, maxConcurrent=2), **says) as household:
        await household.spawned("report")
        await reporting.reached()
        await household.spawned("work")
        await working.reached()
        await household.spawned("wait")
        assert household.kinds() == [
            ("child", "ok"),
            ("announce", "running"),
            ("child", "running"),
            ("child", "queued"),
        ]
        before = household.counts()
        refused = await household.gateway.tools(MAIN).sessions_spawn(task="more")
        assert refused["status"] == "forbidden"
        assert SETTING in refused["error"] and " 3" in refused["error"]
        assert household.counts() == before
        reporting.open()
        await household.until("SELECT 1 FROM spawns WHERE state = 'done'")
        await household.spawned("wait")  # there is room again
        working.open()
        await household.over()
        assert len(await household.posts()) == 4


async def test_the_limit_is_the_requesters_own(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "state")
    shelf.session("agent:main:cron:x")
    gate = Gate()
    async with family(shelf.state, config(maxChildren=1), task=gate.holds()) as household:
        await household.spawned("dig")
        await household.spawned("dig", key="agent:main:cron:x")
        assert (await household.gateway.tools(MAIN).sessions_spawn(task="dig"))["status"] == "forbidden"
        gate.open()
        await household.over()


async def test_calls_of_one_reply_cannot_pass_the_limit_together(tmp_path: Path) -> None:
    gate = Gate()
    calls = [[spawn(f"dig {n}") for n in range(8)]]
    async with family(tmp_path, config(maxChildren=5), person=calls, task=gate.holds()) as household:
        await household.ask()
        results = [result["status"] for result in await household.results()]
        assert (results.count("accepted"), results.count("forbidden")) == (5, 3)
        assert household.counts()["spawns"] == 5
        gate.open()
        await household.over()
        assert len(await household.posts()) == 5


async def test_no_children_at_all_can_be_the_limit(tmp_path: Path) -> None:
    async with family(tmp_path, config(maxChildren=0)) as household:
        assert (await household.gateway.tools(MAIN).sessions_spawn(task="dig"))["status"] == "forbidden"


# How many work at once


class Crowd:
    """Counts how many sub-agents are at work at the same time; none goes on before the door is open."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.door = asyncio.Event()

    async def work(self, request: ModelRequest) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.door.wait()
        await asyncio.sleep(0)
        self.now -= 1
        return "dug"


async def test_never_more_work_at_once_than_may_and_the_others_wait(tmp_path: Path) -> None:
    crowd = Crowd()
    async with family(tmp_path, config(maxConcurrent=3), task=crowd.work, announce=crowd.work) as household:
        for n in range(12):
            await household.spawned(f"dig {n}")
        await household.until("SELECT 1 WHERE (SELECT count(*) FROM runs WHERE state = 'running') = 3")
        assert sorted(household.kinds()) == [("child", "queued")] * 9 + [("child", "running")] * 3
        crowd.door.set()
        await household.over()
        assert crowd.most == 3
        assert len(await household.posts()) == 12


async def test_children_that_wait_do_not_hold_their_requester_back(tmp_path: Path) -> None:
    gate = Gate()
    says: dict[str, Any] = {"person": [[spawn("dig"), spawn("dig"), spawn("dig")], "hello"], "task": gate.holds()}
    async with family(tmp_path, config(maxConcurrent=1), **says) as household:
        assert await household.ask() == "on it"
        assert await household.ask("hi") == "hello"
        states = [run.state.value for run in await live_runs(household.gateway)]
        assert sorted(states) == ["queued", "queued", "running"]
        gate.open()
        await household.over()
        assert len(await household.posts()) == 3


# How far one cause may reach


def with_chain(**limits: Any) -> dict[str, Any]:
    return {**config(), "session": {"agentToAgent": limits}}


async def test_a_spawn_beyond_the_hops_is_refused_with_the_path(tmp_path: Path) -> None:
    settings = with_chain(maxHops=1)
    settings["agents"]["defaults"]["subagents"] = {"announce": "wake"}
    says: dict[str, Any] = {"person": [[spawn("dig")]], "wake": [[spawn("dig on")]], "result": "on it"}
    async with family(tmp_path, settings, **says) as household:
        await household.ask()
        await household.over()
        # The wake would have been hop 2: it is not made, and the result is a note.
        assert household.kinds("wake") == []
        assert len(await household.posts()) == 1


async def test_a_wake_goes_one_hop_further_and_its_spawns_two_and_the_path_tells_all(tmp_path: Path) -> None:
    settings = with_chain(maxHops=2)
    settings["agents"]["defaults"]["subagents"] = {"announce": "wake"}
    says: dict[str, Any] = {"person": [[spawn("dig")]], "wake": [[spawn("dig on")]], "result": "on it"}
    async with family(tmp_path, settings, **says) as household:
        await household.ask()
        await household.over()
        first, refused = await household.results()
        assert first["status"] == "accepted"
        assert refused["status"] == "forbidden"
        child = first["childSessionKey"]
        assert "hop 3" in refused["error"] and "session.agentToAgent.maxHops" in refused["error"]
        assert f"{MAIN} → {child} → {MAIN} → agent:main:subagent:" in refused["error"]
        hops = household.rows("SELECT kind, hop FROM runs ORDER BY position")
        assert hops == [("message", 0), ("child", 1), ("announce", 1), ("wake", 2)]
        assert len({chain for (chain,) in household.rows("SELECT chain_id FROM runs")}) == 1
        assert household.counts()["spawns"] == 1


async def test_a_chain_has_only_so_many_runs_and_a_wake_beyond_becomes_notes(tmp_path: Path) -> None:
    settings = with_chain(maxChainRuns=3)
    settings["agents"]["defaults"]["subagents"] = {"announce": "wake"}
    async with family(tmp_path, settings, person=[[spawn("dig")], "hello"]) as household:
        await household.ask()  # the run, the child and its announce: three
        await household.over()
        assert household.kinds() == [("message", "ok"), ("child", "ok"), ("announce", "ok")]
        (post,) = await household.posts()
        assert post["Status"] == "success"
        assert not household.rows("SELECT 1 FROM barriers WHERE state = 'open'")


async def test_a_spawn_in_a_chain_that_has_had_its_runs_is_refused(tmp_path: Path) -> None:
    gate = Gate()
    says: dict[str, Any] = {"person": [[spawn("one")]], "result": [[spawn("two")], [spawn("three")], "on it"]}
    async with family(tmp_path, with_chain(maxChainRuns=3), task=gate.holds(), **says) as household:
        await household.ask()
        results = await household.results()
        assert [result["status"] for result in results] == ["accepted", "accepted", "forbidden"]
        assert "session.agentToAgent.maxChainRuns" in results[-1]["error"]
        assert f"{MAIN} → agent:main:subagent:" in results[-1]["error"]
        gate.open()
        await household.over()
        assert household.counts()["spawns"] == 2


async def test_a_call_from_outside_starts_a_chain_of_its_own(tmp_path: Path) -> None:
    async with family(tmp_path, with_chain(maxHops=1)) as household:
        for _ in range(3):
            result = await household.spawned("dig")
            await household.over()
            chain = household.rows(
                "SELECT DISTINCT chain_id, hop FROM runs WHERE session_key = ?", result["childSessionKey"]
            )
            assert chain == [(result["runId"], 0)]


# Settings at their ends


@pytest.mark.parametrize("value", [1e-9, 1e18, 1e300])
async def test_no_time_that_can_be_configured_is_too_short_or_too_long(tmp_path: Path, value: float) -> None:
    settings = config(announce="wake", archiveAfterMinutes=value, wakeAfterSeconds=value)
    async with family(tmp_path, settings, person=[[spawn("dig")]]) as household:
        await household.ask()
        await household.over()
        rules = household.spawn().rules
        assert rules.archive_after_ms is not None and rules.archive_after_ms > 0
        assert rules.wake_after_ms is not None and rules.wake_after_ms > 0
        assert household.kinds("wake") == [("wake", "ok")]
