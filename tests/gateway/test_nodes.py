"""Nodes through a real socket: what they may do, and what they may not pretend to be."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from backchannel.core.messages import ProvenanceKind, Role
from backchannel.core.runs import RunKind, RunState
from backchannel.gateway.table import METHODS
from tests.support.gateways import ended, session_of, stored, texts_of, transcript_of

from .client import OPERATOR, Client, Refused, opened
from .conftest import AGENTS, MakeWorld, World

pytestmark = pytest.mark.anyio
KITCHEN = "agent:main:node-kitchen"
PUBLISHED = ["node.pluginTools.update", "node.runnerInventory.update", "node.skills.update"]
NODE_METHODS = ["node.event", "node.history", "node.message", *PUBLISHED]


def node(
    world: World, id: str = "kitchen", token: str = OPERATOR, **params: Any
) -> AbstractAsyncContextManager[Client]:
    return world.client(token, role="node", nodeId=id, **params)


def answered_by(make_world: MakeWorld, agent: str, **config: Any) -> AbstractAsyncContextManager[World]:
    """Make a gateway whose default agent is another than `main`."""
    others = [listed for listed in AGENTS if listed["id"] != agent]
    (chosen,) = (listed for listed in AGENTS if listed["id"] == agent)
    return make_world({"agents": {"list": [{**chosen, "default": True}, *others]}, **config})


async def turned_away(world: World, token: str, **params: Any) -> dict[str, Any]:
    """Connect as a node that must not be let in; returns the error."""
    async with opened(world.url) as client:
        with pytest.raises(Refused) as refused:
            await client.connect(token, **{"role": "node", **params})
        assert await client.closed() == 1008
    return refused.value.error


async def token_for(client: Client, key: str) -> str:
    token: str = (await client.ask("tokens.create", sessionKey=key))["token"]
    return token


# Coming in


async def test_what_a_node_publishes_of_itself_is_taken_and_not_used(world: World, client: Client) -> None:
    async with node(world) as kitchen:
        told = await kitchen.ask("node.event", event="node.host.stats", payloadJSON='{"cpu": 3}')
        assert (told["ok"], told["event"], told["handled"]) == (True, "node.host.stats", False)
        tools, runners, skills = [
            await kitchen.ask(method, tools=[{"name": "lamp"}], skills=[{"name": "light"}]) for method in PUBLISHED
        ]
    assert tools == {"nodeId": "kitchen", "tools": []}
    assert (skills, runners) == ({"nodeId": "kitchen", "skills": []}, {"nodeId": "kitchen"})
    for method in ("node.event", *PUBLISHED):
        assert (await client.refused(method, {"event": "x"}))["details"]["code"] == "forbidden"


async def test_a_node_is_greeted_with_what_it_may_do(world: World) -> None:
    async with node(world) as kitchen:
        hello = kitchen.hello
    assert hello["auth"] == {"role": "node", "scopes": []}
    assert hello["features"]["methods"] == NODE_METHODS
    assert hello["features"]["events"] == ["connect.challenge", "chat", "tick", "shutdown"]


@pytest.mark.parametrize("node_id", [None, "", "a b", "a:b", "../a", "a%3ab", "x" * 65, "a\x00", "é", "*"])
async def test_what_is_no_id_is_turned_away(world: World, node_id: str | None) -> None:
    error = await turned_away(world, OPERATOR, **({} if node_id is None else {"nodeId": node_id}))
    assert (error["code"], error["details"]) == ("INVALID_REQUEST", {"code": "bad_params", "param": "nodeId"})


async def test_an_id_of_the_wrong_type_is_named(world: World) -> None:
    assert "nodeId" in (await turned_away(world, OPERATOR, nodeId=7))["message"]


async def test_an_operators_token_needs_to_write(client: Client, world: World) -> None:
    made = await client.ask("tokens.create", scopes=["read"])
    for token, scopes in ((made["token"], None), (OPERATOR, ["read"])):
        error = await turned_away(world, token, nodeId="kitchen", scopes=scopes)
        assert (error["code"], error["details"]["code"]) == ("FORBIDDEN", "scope_missing")
    async with node(world, scopes=["write"]) as kitchen:
        assert kitchen.hello["auth"]["scopes"] == []


async def test_a_bound_token_comes_in_as_exactly_its_node(client: Client, world: World) -> None:
    token = await token_for(client, "agent:speaker:node-kitchen")  # before anything was said there
    async with node(world, token=token) as kitchen:
        sent = await kitchen.ask("node.message", text="hello")
        told = await kitchen.event("chat", runId=sent["runId"], state="final")
        assert told["sessionKey"] == "agent:speaker:node-kitchen"
    for other in ("Kitchen", "hall", "kitchen2", "node-kitchen"):
        error = await turned_away(world, token, nodeId=other)
        assert (error["code"], error["details"]["code"]) == ("FORBIDDEN", "forbidden")


async def test_a_token_of_another_session_is_for_no_node(client: Client, world: World) -> None:
    await client.run(message="hi", sessionKey="agent:main:node-kitchen:door")
    for key in ("main", "agent:main:node-kitchen:door"):
        token = await token_for(client, key)
        for node_id in ("kitchen", "main"):
            assert (await turned_away(world, token, nodeId=node_id))["code"] == "FORBIDDEN"


async def test_a_token_can_be_bound_only_to_what_can_be_a_node(client: Client) -> None:
    for key in ("agent:main:node-a%3ab", "agent:main:node-kitchen:door", "hook:x"):
        error = await client.refused("tokens.create", {"sessionKey": key})
        assert error["details"]["code"] == "session_not_found"
    error = await client.refused("tokens.create", {"sessionKey": "agent:ghost:node-kitchen"})
    assert error["details"]["code"] == "unknown_agent"


async def test_a_revoked_token_loses_its_node(client: Client, world: World) -> None:
    made = await client.ask("tokens.create", sessionKey="node-kitchen")
    async with node(world, token=made["token"]) as kitchen:
        await client.ask("tokens.revoke", id=made["id"])
        assert await kitchen.closed() == 1008


# What it may do


async def test_what_a_node_says_is_answered_by_chat_events(make_world: MakeWorld) -> None:
    async with answered_by(make_world, "speaker") as world:
        async with node(world) as kitchen:
            sent = await kitchen.ask("node.message", text="/new it is 30 °C here")
            assert set(sent) == {"runId", "status"} and sent["status"] == "started"
            final = await kitchen.event("chat", runId=sent["runId"], state="final")
            assert final["sessionKey"] == "agent:speaker:node-kitchen"
            assert final["message"]["content"] == [{"type": "text", "text": "one two three"}]
            deltas = [event["deltaText"] for event in kitchen.seen("chat") if event["state"] == "delta"]
            assert "".join(deltas) == "one two three"
            assert {frame["event"] for frame in kitchen.events} == {"connect.challenge", "chat"}
            assert [frame["seq"] for frame in kitchen.events] == list(range(1, len(kitchen.events) + 1))
        run = await stored(world.gateway, sent["runId"])
        assert (run.kind, run.state, run.deliver) == (RunKind.NODE, RunState.OK, False)
        assert (run.chain_id, run.hop) == (run.id, 0)
        said = (await transcript_of(world.gateway, run.session_key))[0]
        assert said.role is Role.USER and said.text == "/new it is 30 °C here" and said.provenance is not None
        assert (said.provenance.kind, said.provenance.source_channel) == (ProvenanceKind.EXTERNAL_USER, "node")
        session = await session_of(world.gateway, run.session_key)
        assert (session.kind, session.address) == ("node", None)


@pytest.mark.parametrize(("agent", "state"), [("broken", "error"), ("held", "aborted")])
async def test_a_run_that_fails_or_is_stopped_is_told(make_world: MakeWorld, agent: str, state: str) -> None:
    async with answered_by(make_world, agent) as world, node(world) as kitchen, world.client() as operator:
        sent = await kitchen.ask("node.message", text="hello")
        if state == "aborted":
            await operator.ask("chat.abort", sessionKey="node-kitchen")
        assert await kitchen.event("chat", runId=sent["runId"], state=state)


async def test_the_policy_does_not_stop_a_node(make_world: MakeWorld) -> None:
    denied = {"sendPolicy": {"default": "deny"}}
    async with answered_by(make_world, "echo", session=denied) as world, node(world) as kitchen:
        sent = await kitchen.ask("node.message", text="hello")
        assert await kitchen.event("chat", runId=sent["runId"], state="final")


async def test_a_node_reads_its_own_history_a_page_at_a_time(make_world: MakeWorld) -> None:
    async with answered_by(make_world, "echo") as world, node(world) as kitchen:
        empty = await kitchen.ask("node.history")
        assert empty == {"sessionKey": "agent:echo:node-kitchen", "messages": [], "pending": [], "hasMore": False}
        for text in ("one", "two"):
            sent = await kitchen.ask("node.message", text=text)
            await kitchen.event("chat", runId=sent["runId"], state="final")
        page = await kitchen.ask("node.history", limit=1)
        assert _texts(page) == ["echo two"] and page["hasMore"] is True
        before = await kitchen.ask("node.history", limit=2, before=page["messages"][0]["id"])
        assert _texts(before) == ["echo one", "two"]
        after = await kitchen.ask("node.history", after=before["messages"][0]["id"])
        assert _texts(after) == ["two", "echo two"]
        both = {"before": "a", "after": "b"}
        assert (await kitchen.refused("node.history", both))["details"]["code"] == "bad_params"
        assert (await kitchen.refused("node.history", {"after": "nothing"}))["details"]["code"] == "not_found"


def _texts(page: dict[str, Any]) -> list[str]:
    return [message["content"][0]["text"] for message in page["messages"]]


async def test_a_node_that_comes_back_hears_the_end_and_reads_what_it_missed(make_world: MakeWorld) -> None:
    async with answered_by(make_world, "held") as world:
        async with node(world) as kitchen:
            sent = await kitchen.ask("node.message", text="hello", idempotencyKey="m-1")
        assert sent == {"runId": "agent:held:node-kitchen/m-1", "status": "started"}
        async with node(world) as kitchen, node(world) as twin:
            again = await kitchen.ask("node.message", text="hello", idempotencyKey="m-1")
            assert again == sent
            world.release.set()
            for either in (kitchen, twin):  # whoever connects under the id hears its session
                assert await either.event("chat", runId=sent["runId"], state="final")
        async with node(world) as kitchen:
            late = await kitchen.ask("node.message", text="hello", idempotencyKey="m-1")
            assert late == {"runId": sent["runId"], "status": "ok"}
            assert _texts(await kitchen.ask("node.history")) == ["hello", "released hello"]
            other = await kitchen.refused("node.message", {"text": "other", "idempotencyKey": "m-1"})
            assert other["details"]["code"] == "idempotency_conflict"


async def test_the_keys_of_nodes_and_of_operators_are_apart(make_world: MakeWorld) -> None:
    async with answered_by(make_world, "echo") as world, node(world) as kitchen, node(world, "hall") as hall:
        async with world.client() as operator:
            await operator.run(message="mine", idempotencyKey="k")
        runs = [(await each.ask("node.message", text="ours", idempotencyKey="k"))["runId"] for each in (kitchen, hall)]
        assert len({"k", *runs}) == 3
        for run_id in runs:
            assert (await ended(world.gateway, run_id)).reply == "echo ours"


async def test_a_node_has_sessions_of_its_own(make_world: MakeWorld) -> None:
    async with answered_by(make_world, "echo") as world, node(world) as kitchen:
        sent = await kitchen.ask("node.message", text="ding", sessionKey="node:kitchen:door")
        told = await kitchen.event("chat", runId=sent["runId"], state="final")
        assert told["sessionKey"] == "agent:echo:node-kitchen:door"
        assert _texts(await kitchen.ask("node.history", sessionKey="node-kitchen:door")) == ["ding", "echo ding"]
        assert (await kitchen.ask("node.history"))["messages"] == []


async def test_a_node_hears_what_others_say_in_its_session_and_nothing_of_other_sessions(
    make_world: MakeWorld,
) -> None:
    async with (
        answered_by(make_world, "echo") as world,
        node(world) as kitchen,
        node(world, "hall") as hall,
        world.client() as operator,
    ):
        await operator.ask("sessions.subscribe")
        await operator.run(message="secret")
        sent = await operator.ask("chat.send", sessionKey="node-kitchen", message="open the door")
        assert await kitchen.event("chat", runId=sent["runId"], state="final")
        assert {event["sessionKey"] for event in kitchen.seen("chat")} == {"agent:echo:node-kitchen"}
        assert [frame["event"] for frame in hall.events] == ["connect.challenge"]
        assert operator.seen("agent")


async def test_a_node_hears_what_is_announced_in_its_session(make_world: MakeWorld) -> None:
    async with answered_by(make_world, "echo") as world, node(world) as kitchen, world.client() as operator:
        sent = await operator.ask("chat.send", sessionKey="node-kitchen", message="hello")
        await kitchen.event("chat", runId=sent["runId"], state="final")
        args = {"sessionKey": "agent:echo:node-kitchen", "message": "dinner is ready"}
        asked = await operator.ask("tools.invoke", tool="sessions_send", args=args)
        assert asked["result"]["status"] == "ok"
        await operator.event("delivery", state="sent", channel="webchat")
        await kitchen.ask("node.history")
        *_, announced = kitchen.seen("chat")
        assert announced["state"] == "final" and "dinner is ready" in announced["message"]["content"][0]["text"]
        assert {frame["event"] for frame in kitchen.events} == {"connect.challenge", "chat"}


async def test_a_session_that_was_deleted_is_empty_for_its_node(make_world: MakeWorld) -> None:
    async with answered_by(make_world, "echo") as world, node(world) as kitchen, world.client() as operator:
        sent = await kitchen.ask("node.message", text="hello")
        await kitchen.event("chat", runId=sent["runId"], state="final")
        await operator.ask("sessions.delete", key="node-kitchen")
        assert (await kitchen.ask("node.history"))["messages"] == []
        sent = await kitchen.ask("node.message", text="again")
        await kitchen.event("chat", runId=sent["runId"], state="final")
        assert await texts_of(world.gateway, "agent:echo:node-kitchen") == ["again", "echo again"]


# What it may not


async def test_a_node_may_call_nothing_else(client: Client, world: World) -> None:
    token = await token_for(client, KITCHEN)
    for given in (OPERATOR, token):
        async with node(world, token=given) as kitchen:
            for name in METHODS.keys() - set(NODE_METHODS):
                error = await kitchen.refused(name, {})
                assert (error["code"], error["details"]["code"]) == ("FORBIDDEN", "forbidden"), name
                assert "node.history, node.message" in error["message"]


async def test_nobody_else_may_call_what_is_a_nodes(client: Client, world: World) -> None:
    token = await token_for(client, KITCHEN)
    for given in (OPERATOR, token):
        async with world.client(given, nodeId="kitchen") as other:
            for name in NODE_METHODS:
                error = await other.refused(name, {"text": "x"})
                assert (error["code"], error["details"]["code"]) == ("FORBIDDEN", "forbidden")
                assert "role node" in error["message"]
    assert await world.gateway.store.session(KITCHEN) is None


@pytest.mark.parametrize(
    "key",
    [
        "main",
        "agent:main:main",
        "node-hall",
        "node:hall",
        "NODE-hall",
        "node-%68all",
        "node-Kitchen",
        "node-kitchen2",
        "node-kitchen%3adoor",
        "node-kitchen\x00",
        "agent:echo:node-kitchen",
        "hook:node-kitchen",
    ],
)
async def test_a_key_of_somebody_else_is_forbidden_however_it_is_spelt(client: Client, world: World, key: str) -> None:
    hall = await client.run(message="the hall's secret", sessionKey="agent:main:node-hall")
    async with node(world) as kitchen:
        for name, params in (("node.message", {"text": "x"}), ("node.history", {})):
            error = await kitchen.refused(name, {**params, "sessionKey": key})
            assert (error["code"], error["details"]["code"]) == ("FORBIDDEN", "forbidden")
            assert "secret" not in error["message"]
    assert [run.id for run in await world.gateway.store.runs(limit=9)] == [hall["runId"]]


async def test_a_session_id_is_no_way_into_another_session(client: Client, world: World) -> None:
    await client.run(message="secret", sessionKey="agent:main:node-hall")
    session_id = (await session_of(world.gateway, "agent:main:node-hall")).session_id
    messages = await transcript_of(world.gateway, "agent:main:node-hall")
    async with node(world) as kitchen:
        assert (await kitchen.refused("node.history", {"sessionKey": session_id}))["code"] == "FORBIDDEN"
        sent = await kitchen.ask("node.message", text="x")
        await kitchen.event("chat", runId=sent["runId"], state="final")
        error = await kitchen.refused("node.history", {"after": messages[0].id})
        assert error["details"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({}, "text"),
        ({"text": " "}, "text"),
        ({"text": 7}, "text"),
        ({"text": "x", "sessionKey": 1}, "sessionKey"),
        ({"text": "x", "idempotencyKey": "a\n"}, "idempotencyKey"),
        ({"text": "x", "deliver": True}, "deliver"),
        ({"text": "x", "nodeId": "hall"}, "nodeId"),
    ],
)
async def test_a_wrong_parameter_is_named(world: World, params: dict[str, Any], param: str) -> None:
    async with node(world) as kitchen:
        error = await kitchen.refused("node.message", params)
        assert error["details"] == {"code": "bad_params", "param": param}
