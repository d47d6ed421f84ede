"""`agents_list`: under which agents a session may spawn."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.errors import InvalidRequest
from tests.tools.shelf import Shelf, nulls

pytestmark = pytest.mark.anyio


def config(allow: list[str] | None = None, **more: Any) -> dict[str, Any]:
    subagents = {} if allow is None else {"subagents": {"allowAgents": allow}}
    return {
        "agents": {
            "list": [
                {"id": "main", "model": "builtin/demo", **subagents, **more},
                {"id": "zoe", "name": "Zoë", "model": "builtin/demo"},
                {"id": "Ada Bot", "model": "builtin/demo"},
            ]
        }
    }


@pytest.mark.parametrize(
    ("allow", "ids", "allow_any"),
    [
        (None, ["main"], False),
        ([], ["main"], False),
        (["zoe"], ["main", "zoe"], False),
        (["zoe", "main", "zoe"], ["main", "zoe"], False),
        (["Ada Bot", "zoe"], ["main", "ada-bot", "zoe"], False),
        (["*"], ["main", "ada-bot", "zoe"], True),
        (["*", "zoe"], ["main", "ada-bot", "zoe"], True),
    ],
)
async def test_the_requester_comes_first_and_the_others_by_id(
    shelf: Shelf, allow: list[str] | None, ids: list[str], allow_any: bool
) -> None:
    async with shelf.opened(config(allow)) as gateway:
        for caller in ("agent:main:main", "agent:main:cron:x", None):
            answer = await gateway.tools(caller).agents_list()
            assert (answer["requester"], answer["allowAny"]) == ("main", allow_any)
            assert [agent["id"] for agent in answer["agents"]] == ids
            assert list(nulls(answer)) == []


async def test_each_agent_has_its_own_list(shelf: Shelf) -> None:
    async with shelf.opened(config(["*"])) as gateway:
        answer = await gateway.tools("agent:zoe:main").agents_list()
    assert answer == {
        "requester": "zoe",
        "allowAny": False,
        "agents": [{"id": "zoe", "name": "Zoë", "model": "builtin/demo", "configured": True}],
    }


async def test_an_agent_that_is_a_function_has_no_model(shelf: Shelf) -> None:
    async with shelf.opened(config(["*"])) as gateway:

        @gateway.agent("worker")
        async def worker(context: object) -> str:
            return "done"

        answer = await gateway.tools("main").agents_list()
        assert {"id": "worker", "configured": True} in answer["agents"]


async def test_what_all_agents_may_spawn_under_holds_for_one_that_says_nothing(shelf: Shelf) -> None:
    settings = config([])
    settings["agents"]["defaults"] = {"subagents": {"allowAgents": ["zoe"]}}
    async with shelf.opened(settings) as gateway:
        for agent, ids in (("ada-bot", ["ada-bot", "zoe"]), ("main", ["main"]), ("zoe", ["zoe"])):
            listed = (await gateway.tools(f"agent:{agent}:main").agents_list())["agents"]
            assert [shown["id"] for shown in listed] == ids


@pytest.mark.parametrize("allow", [["*"], ["zoe", "ada-bot"]])
async def test_a_sandboxed_session_is_shown_only_agents_whose_children_are_sandboxed_too(
    shelf: Shelf, allow: list[str]
) -> None:
    settings = config(allow, sandbox={"mode": "non-main"})
    settings["agents"]["list"][1]["sandbox"] = {"mode": "non-main"}
    async with shelf.opened(settings) as gateway:
        inside = (await gateway.tools("agent:main:cron:x").agents_list())["agents"]
        outside = (await gateway.tools("agent:main:main").agents_list())["agents"]
        assert [agent["id"] for agent in inside] == ["main", "zoe"]
        assert [agent["id"] for agent in outside] == ["main", "ada-bot", "zoe"]


@pytest.mark.parametrize("arguments", [{"agentId": "main"}, {"limit": 1}, {"": 1}])
async def test_it_takes_no_parameters(shelf: Shelf, arguments: dict[str, Any]) -> None:
    async with shelf.opened(config()) as gateway:
        with pytest.raises(InvalidRequest, match="unknown parameter"):
            await gateway.tools("main").call("agents_list", **arguments)
