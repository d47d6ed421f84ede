"""`sessions.tree`, through a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel, call
from backchannel.core.messages import Usage
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import listening
from tests.support.gateways import held, running, settled

from .client import OPERATOR, Client, connected

pytestmark = pytest.mark.anyio

CONFIG: dict[str, Any] = {"agents": {"list": [{"id": "main", "model": "scripted/test"}]}, "gateway": {"port": 0}}
SPENT = Usage(input=10, output=1, cost=0.5)


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
async def gateway(tmp_path: Path, model: ScriptedModel) -> AsyncIterator[Gateway]:
    async with running(tmp_path, model, config=CONFIG) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    async with listening(gateway, OPERATOR) as at, connected(at.websocket_url) as client:
        yield client


def by_key(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["key"]: node for node in told["nodes"]}


async def test_a_sub_agent_stands_under_its_parent_with_its_state_cost_and_receipt(
    gateway: Gateway, client: Client, model: ScriptedModel
) -> None:
    spawn = call("sessions_spawn", task="dig for gold", label="digger")
    model.add(Reply(calls=(spawn,), usage=SPENT), Reply(text="sent", usage=SPENT))
    model.add(Reply(text="dug", usage=SPENT), Reply(text="it is dug", usage=SPENT))
    await gateway.submit("main", "go")
    await settled(gateway)
    told = await client.ask("sessions.tree")

    assert told["roots"] == ["agent:main:main"] and told["count"] == 2 and "truncated" not in told
    root = by_key(told)["agent:main:main"]
    (key,) = root["children"]
    child = by_key(told)[key]
    assert (root["name"], root["status"], root["kind"]) == ("main", "idle", "main") and "receipt" not in root
    assert (child["name"], child["label"], child["task"]) == ("digger", "digger", "dig for gold")
    assert (child["parentKey"], child["runStatus"], child["children"]) == ("agent:main:main", "ok", [])
    assert child["startedAt"] <= child["endedAt"]
    assert child["receipt"]["state"] == (await client.ask("deliveries.get", id=child["receipt"]["id"]))["state"]
    assert (child["tokens"], child["cost"]) == (22, 1.0)
    assert root["treeUsage"]["cost"] == root["cost"] + child["cost"] == 2.0
    assert [node["key"] for node in told["nodes"]] == ["agent:main:main", key]


async def test_one_branch_is_shown_whole_and_a_long_list_says_that_there_is_more(
    gateway: Gateway, client: Client, model: ScriptedModel
) -> None:
    model.add(*[held() for _ in range(3)])
    spawned = [await client.ask("tools.invoke", tool="sessions_spawn", args={"task": f"{n}"}) for n in range(3)]
    keys = [made["result"]["childSessionKey"] for made in spawned]
    told = await client.ask("sessions.tree", key="main")
    assert told["roots"] == ["agent:main:main"]
    assert sorted(by_key(told)["agent:main:main"]["children"]) == sorted(keys)
    assert {by_key(told)[key]["runStatus"] for key in keys} <= {"queued", "running"}

    few = await client.ask("sessions.tree", key="main", limit=2)
    root = by_key(few)["agent:main:main"]
    assert few["truncated"] is True and (len(root["children"]), root["spawned"]) == (1, 3)
    newest = await client.ask("sessions.tree", limit=1)
    assert newest["truncated"] is True and newest["roots"] == ["agent:main:main"], "with those that spawned it"


async def test_what_was_archived_stays_in_the_tree(gateway: Gateway, client: Client, model: ScriptedModel) -> None:
    model.add("dug", "it is dug")
    made = await client.ask("tools.invoke", tool="sessions_spawn", args={"task": "dig", "cleanup": "delete"})
    key = made["result"]["childSessionKey"]
    await settled(gateway)
    for params in ({}, {"key": "main"}, {"key": key}):
        node = by_key(await client.ask("sessions.tree", **params))[key]
        assert node["archived"] is True and node["archivedAt"] > 0


async def test_a_session_that_is_not_there_is_refused(client: Client) -> None:
    assert (await client.refused("sessions.tree", {"key": "cron:none"}))["details"]["code"] == "session_not_found"
    assert (await client.refused("sessions.tree", {"key": "main", "agentId": "main"}))["details"]["param"] == "agentId"
