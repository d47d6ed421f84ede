"""`sessions_spawn` through every door: who may, what makes a repeated call the same call, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client

from backchannel.gateway.mcp.server import IDEMPOTENCY_KEY
from tests.gateway.client import OPERATOR, Client, connected
from tests.support.children import Cast, Family, Gate, config
from tests.support.gateways import MAIN, session_of
from tests.tools.door import Doors, doors
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

SIDE = "agent:main:side"
CHILD = "agent:main:subagent:u1"
KEPT = {"archiveAfterMinutes": 0}
"""The clock of these tests runs ahead: what has ended would be archived at once."""


class Spawning(Family):
    """A family, and all doors to it."""

    def __init__(self, at: Doors, cast: Cast, database: Path) -> None:
        super().__init__(at.gateway, cast, database)
        self.at = at

    async def by_socket(self, client: Client | None = None, /, **body: Any) -> dict[str, Any]:
        answer = await (client or self.at.client).ask("tools.invoke", **invocation(**body))
        result: dict[str, Any] = answer["result"]
        return result

    async def by_http(self, token: str = OPERATOR, /, **body: Any) -> dict[str, Any]:
        answer = await self.at.invoke(token, **invocation(**body))
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()["result"]
        return result

    @asynccontextmanager
    async def mcp(self, token: str = OPERATOR, session: str | None = None) -> AsyncIterator[McpClient]:
        headers = {"authorization": f"Bearer {token}"}
        if session is not None:
            headers["x-backchannel-session"] = session
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, timeout=20) as http,
            McpClient(streamable_http_client(f"{self.at.at.url}/mcp", http_client=http), mode="auto") as client,
        ):
            yield client

    async def token(self, **params: Any) -> str:
        return str((await self.at.client.ask("tokens.create", **params))["token"])


def invocation(task: str = "dig", *, key: str | None = None, session: str | None = None, **args: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"tool": "sessions_spawn", "args": {"task": task, **args}}
    return body | ({"idempotencyKey": key} if key else {}) | ({"sessionKey": session} if session else {})


@asynccontextmanager
async def spawning(shelf: Shelf, settings: dict[str, Any] | None = None, **says: Any) -> AsyncIterator[Spawning]:
    cast = Cast(**says)
    async with doors(shelf, settings or config("ops", **KEPT), cast.model) as at:
        yield Spawning(at, cast, shelf.state / "backchannel.db")


# Every door


async def test_every_door_answers_the_same(shelf: Shelf) -> None:
    async with spawning(shelf) as house:
        results = [
            await house.by_socket(),
            await house.by_http(),
            await house.gateway.tools().sessions_spawn(task="dig"),
            await house.gateway.tools().call("sessions_spawn", task="dig"),
        ]
        async with house.mcp() as client:
            results.append((await client.call_tool("sessions_spawn", {"task": "dig"})).structured_content)
        for result in results:
            assert result.keys() == {"status", "runId", "childSessionKey", "model"}
            assert result["status"] == "accepted"
        assert len({result["childSessionKey"] for result in results}) == len(results)
        await house.over()
        assert len(await house.posts()) == len(results)


async def test_bad_input_is_an_error_of_each_door_and_refusals_are_results(shelf: Shelf) -> None:
    async with spawning(shelf) as house:
        before = house.counts()
        bad: list[dict[str, Any]] = [{"task": " "}, {"label": "a\nb"}, {"runTimeoutSeconds": -1}]
        for args in bad:
            (name,) = args
            error = await house.at.client.refused("tools.invoke", invocation(**args))
            assert (error["code"], name in error["message"]) == ("INVALID_REQUEST", True)
            answer = await house.at.invoke(**invocation(**args))
            assert (answer.status_code, answer.json()["ok"]) == (400, False)
        assert (await house.by_socket(agentId="nobody"))["status"] == "error"
        assert (await house.by_http(agentId="nobody"))["status"] == "error"
        assert house.counts() == before


# The operator


async def test_an_operators_spawn_makes_the_main_session_when_it_is_not_there(shelf: Shelf) -> None:
    async with spawning(shelf) as house:
        assert house.counts()["sessions"] == 0
        result = await house.by_socket()
        assert (await session_of(house.gateway, result["childSessionKey"])).spawned_by == MAIN
        await house.over()
        (post,) = await house.posts()
        assert post["Status"] == "success"
        assert house.spawn_receipts() == ["no_channel"]


async def test_an_operator_spawns_for_the_default_agent_whichever_that_is(shelf: Shelf) -> None:
    settings = config("ops", **KEPT)
    settings["agents"]["list"][1]["default"] = True
    async with spawning(shelf, settings) as house:
        result = await house.by_socket()
        assert result["childSessionKey"].startswith("agent:ops:subagent:")
        await house.over()
        assert len(await house.posts("agent:ops:main")) == 1


async def test_as_a_session_the_call_is_that_sessions(shelf: Shelf) -> None:
    shelf.session(SIDE, "hello")
    async with spawning(shelf) as house:
        result = await house.by_http(session=SIDE)
        await house.over()
        assert (await session_of(house.gateway, result["childSessionKey"])).spawned_by == SIDE
        assert len(await house.posts(SIDE)) == 1
        ops = await house.by_socket(session="agent:ops:main")  # the main session of an agent need not be there yet
        assert ops["childSessionKey"].startswith("agent:ops:subagent:")
        await house.over()
        assert len(await house.posts("agent:ops:main")) == 1


async def test_nobody_spawns_as_a_sub_agent(shelf: Shelf) -> None:
    shelf.session(CHILD, "hello", spawned_by=MAIN)
    settings = {**config("ops", **KEPT), "tools": {"subagents": {"tools": {"allow": ["group:sessions"]}}}}
    async with spawning(shelf, settings) as house:
        before = house.counts()
        assert (await house.by_socket(session=CHILD))["status"] == "forbidden"
        assert (await house.by_http(session=CHILD))["status"] == "forbidden"
        async with house.mcp(session=CHILD) as client:
            assert "sessions_spawn" not in {tool.name for tool in (await client.list_tools()).tools}
            refused = await client.call_tool("sessions_spawn", {"task": "dig"})
            assert refused.structured_content["status"] == "forbidden"
        assert house.counts() == before


# Scopes and tokens


async def test_it_needs_the_scope_write(shelf: Shelf) -> None:
    async with spawning(shelf) as house:
        reader = await house.token(scopes=["read"])
        writer = await house.token(scopes=["write"])
        before = house.counts()
        async with connected(house.at.at.websocket_url, reader) as client:
            error = await client.refused("tools.invoke", invocation())
            assert (error["code"], error["details"]["code"]) == ("FORBIDDEN", "scope_missing")
        assert (await house.at.invoke(reader, **invocation())).status_code == 403
        async with connected(house.at.at.websocket_url, OPERATOR, scopes=["operator.read"]) as client:
            assert (await client.refused("tools.invoke", invocation()))["code"] == "FORBIDDEN"
        async with house.mcp(reader) as mcp:
            assert "sessions_spawn" not in {tool.name for tool in (await mcp.list_tools()).tools}
            assert (await mcp.call_tool("sessions_spawn", {"task": "dig"})).is_error
        assert house.counts() == before
        assert (await house.by_http(writer))["status"] == "accepted"
        await house.over()


async def test_an_agents_token_spawns_for_its_session_and_waits_for_the_child(shelf: Shelf) -> None:
    shelf.session(SIDE, "hello")
    gate = Gate()
    async with spawning(shelf, task=gate.holds("dug deep")) as house:
        token = await house.token(sessionKey=SIDE)
        other = await house.token(sessionKey=MAIN)
        async with connected(house.at.at.websocket_url, token) as client:
            error = await client.refused("tools.invoke", invocation(session=MAIN))
            assert error["code"] == "FORBIDDEN"
            result = await house.by_socket(client)
            looked = await client.ask("agent.wait", runId=result["runId"], timeoutMs=0)
            assert (looked["status"], looked.get("running") or looked.get("queued")) == ("timeout", True)
            waiting = asyncio.create_task(client.ask("agent.wait", runId=result["runId"]))
            gate.open()
            waited = await waiting
            assert (waited["status"], waited["reply"]) == ("ok", "dug deep")
        async with connected(house.at.at.websocket_url, other) as client:
            assert (await client.refused("agent.wait", {"runId": result["runId"]}))["code"] == "FORBIDDEN"
        await house.over()
        assert (await session_of(house.gateway, result["childSessionKey"])).spawned_by == SIDE
        assert len(await house.posts(SIDE)) == 1


# Idempotency


async def test_the_key_is_the_run_and_the_same_key_again_makes_nothing(shelf: Shelf) -> None:
    async with spawning(shelf) as house:
        first = await house.by_socket(key="k1", label="digger", cleanup="keep")
        assert first["runId"] == "k1"
        await house.over()
        before = house.counts()
        assert await house.by_socket(key="k1", label="digger", cleanup="keep") == first
        assert await house.by_http(key="k1", label="digger") == first
        async with house.mcp() as client:
            arguments = {"task": "dig", "label": "digger"}
            meta: Any = {IDEMPOTENCY_KEY: "k1"}
            called = await client.call_tool("sessions_spawn", arguments, meta=meta)
            assert called.structured_content == first
        waited = await house.at.client.ask("agent.wait", runId="k1")
        assert (waited["status"], waited["reply"]) == ("ok", "dug")
        assert house.counts() == before
        assert len(await house.posts()) == 1


async def test_the_same_key_at_the_same_time_makes_one_child(shelf: Shelf) -> None:
    async with spawning(shelf) as house:
        results = await asyncio.gather(*(house.by_socket(key="k1", label="digger") for _ in range(8)))
        assert len({result["childSessionKey"] for result in results}) == 1
        await house.over()
        assert house.counts()["spawns"] == 1
        assert len(await house.posts()) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"task": "dig more"},
        {"label": "other"},
        {"agentId": "ops"},
        {"thinking": "high"},
        {"runTimeoutSeconds": 7},
        {"cleanup": "delete"},
        {"model": "scripted/test"},
        {"session": SIDE},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_the_same_key_for_something_else_is_a_conflict(shelf: Shelf, other: dict[str, Any]) -> None:
    shelf.session(SIDE, "hello")
    async with spawning(shelf) as house:
        await house.by_socket(key="k1")
        await house.over()
        before = house.counts()
        error = await house.at.client.refused("tools.invoke", invocation(key="k1", **other))
        assert error["details"]["code"] == "idempotency_conflict"
        assert "subagent" not in str(error)
        answer = await house.at.invoke(**invocation(key="k1", **other))
        assert answer.json()["error"]["details"]["code"] == "idempotency_conflict"
        assert house.counts() == before


async def test_a_key_belongs_to_its_token_and_to_its_method(shelf: Shelf) -> None:
    async with spawning(shelf) as house:
        writer = await house.token(scopes=["write"])
        await house.by_socket(key="k1")
        await house.at.client.run(message="hello", idempotencyKey="k2")
        await house.over()
        before = house.counts()
        async with connected(house.at.at.websocket_url, writer) as client:
            error = await client.refused("tools.invoke", invocation(key="k1"))
            assert error["details"]["code"] == "idempotency_conflict"
        for method, params in [
            ("agent", {"message": "dig", "idempotencyKey": "k1"}),
            ("chat.send", {"sessionKey": "main", "message": "dig", "idempotencyKey": "k1"}),
            ("tools.invoke", invocation(key="k2")),
        ]:
            error = await house.at.client.refused(method, params)
            assert error["details"]["code"] == "idempotency_conflict", method
        assert house.counts() == before


async def test_a_refused_spawn_does_not_use_its_key_up(shelf: Shelf) -> None:
    gate = Gate()
    async with spawning(shelf, config(maxChildren=1, **KEPT), task=gate.holds("dug")) as house:
        first = await house.by_socket(key="k1")
        assert (await house.by_socket(key="k2"))["status"] == "forbidden"
        gate.open()
        await house.over()
        second = await house.by_socket(key="k2")
        assert (second["status"], second["runId"]) == ("accepted", "k2")
        assert second["childSessionKey"] != first["childSessionKey"]
        await house.over()


async def test_a_key_is_known_after_a_restart_whatever_has_changed(shelf: Shelf) -> None:
    async with spawning(shelf) as house:
        first = await house.by_socket(key="k1", agentId="ops", label="digger")
        await house.over()
    async with spawning(shelf, config(**KEPT)) as house:  # without the agent
        assert await house.by_socket(key="k1", agentId="ops", label="digger") == first
        assert (await house.by_socket(key="k2", agentId="ops"))["status"] == "error"
