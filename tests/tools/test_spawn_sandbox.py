"""A sandboxed session spawns only where its sub-agents stay in the sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.children import Family, family, spawn
from tests.support.gateways import MAIN
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

SIDE = "agent:main:cron:x"
MODES = ("off", "non-main", "all")


def settings(own: str, other: str) -> dict[str, Any]:
    return {
        "agents": {
            "list": [
                {
                    "id": "main",
                    "model": "scripted/test",
                    "sandbox": {"mode": own},
                    "subagents": {"allowAgents": ["ops"]},
                },
                {"id": "ops", "model": "scripted/test", "sandbox": {"mode": other}},
            ]
        }
    }


def is_sandboxed(mode: str, key: str) -> bool:
    return mode == "all" or (mode == "non-main" and key != MAIN)


@pytest.mark.parametrize("key", [MAIN, SIDE])
@pytest.mark.parametrize("other", MODES)
@pytest.mark.parametrize("own", MODES)
async def test_a_sandboxed_caller_spawns_only_where_children_are_sandboxed_too(
    shelf: Shelf, own: str, other: str, key: str
) -> None:
    shelf.session(SIDE)
    async with family(shelf.state, settings(own, other)) as household:
        before = household.counts()
        result = await household.gateway.tools(key).sessions_spawn(task="dig", agentId="ops")
        if is_sandboxed(own, key) and other == "off":
            assert result["status"] == "forbidden"
            assert "sandbox.mode" in result["error"] and "'ops'" in result["error"]
            assert household.counts() == before
        else:
            assert result["status"] == "accepted"
        listed = await household.gateway.tools(key).agents_list()
        assert [agent["id"] for agent in listed["agents"]][1:] == (["ops"] if result["status"] == "accepted" else [])
        assert (await household.gateway.tools(key).sessions_spawn(task="dig"))["status"] == "accepted"
        await household.over()


async def test_a_sandboxed_run_cannot_get_out_by_spawning(tmp_path: Path) -> None:
    household: Family
    async with family(tmp_path, settings("all", "off"), person=[[spawn("dig", agentId="ops")]]) as household:
        await household.ask()
        (result,) = await household.results()
        assert result["status"] == "forbidden"
        assert household.counts()["spawns"] == 0


async def test_an_operator_is_in_no_sandbox(tmp_path: Path) -> None:
    async with family(tmp_path, settings("all", "off")) as household:
        result = await household.spawned("dig", key=None, agentId="ops")
        assert result["childSessionKey"].startswith("agent:ops:subagent:")
        await household.over()


async def test_a_sandboxed_caller_is_not_told_which_unseen_session_has_a_label(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "state")
    shelf.session(SIDE)
    shelf.session("agent:main:secret-plans", label="plans")
    async with family(shelf.state, settings("non-main", "off")) as household:
        result = await household.gateway.tools(SIDE).sessions_spawn(task="dig", label="plans")
        assert result == {"status": "error", "error": "this label is in use: choose another"}
        seen = await household.gateway.tools(MAIN).sessions_spawn(task="dig", label="plans")
        assert "agent:main:secret-plans" in seen["error"]  # it is not sandboxed, and is told
