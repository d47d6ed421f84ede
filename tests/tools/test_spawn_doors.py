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
    async with spawning(shelf) as here:
        results = [
            await here.by_socket(),
            await here.by_http(),
            await here.gateway.tools().sessions_spawn(task="dig"),
            await here.gateway.tools().call("sessions_spawn", task="dig"),
        ]
        async with here.mcp() as client:
            results.append((await client.call_tool("sessions_spawn", {"task": "dig"})).structured_content)
        for result in results:
            assert result.keys() == {"status", "runId", "childSessionKey", "model"}
            assert result["status"] == "accepted"
        assert len({result["childSessionKey"] for result in results}) == len(results)
        await here.over()
        assert len(await here.posts()) == len(results)


async def test_bad_input_is_an_error_of_each_door_and_refusals_are_results(shelf: Shelf) -> None:
    async with spawning(shelf) as here:
        before = here.counts()
        bad: list[dict[str, Any]] = [{"task": " "}, {"label": "a\nb"}, {"runTimeoutSeconds": -1}]
        for args in bad:
            (name,) = args
            error = await here.at.client.refused("tools.invoke", invocation(**args))
            assert (error["code"], name in error["message"]) == ("INVALID_REQUEST", True)
            answer = await here.at.invoke(**invocation(**args))
            assert (answer.status_code, answer.json()["ok"]) == (400, False)
        assert (await here.by_socket(agentId="nobody"))["status"] == "error"
        assert (await here.by_http(agentId="nobody"))["status"] == "error"
        assert here.counts() == before


# The operator


async def test_an_operators_spawn_makes_the_main_session_when_it_is_not_there(shelf: Shelf) -> None:
    async with spawning(shelf) as here:
        assert here.counts()["sessions"] == 0
        result = await here.by_socket()
        assert (await session_of(here.gateway, result["childSessionKey"])).spawned_by == MAIN
        await here.over()
        (post,) = await here.posts()
        assert post["Status"] == "success"
        assert here.spawn_receipts() == ["no_channel"]


async def test_an_operator_spawns_for_the_default_agent_whichever_that_is(shelf: Shelf) -> None:
    settings = config("ops", **KEPT)
    settings["agents"]["list"][1]["default"] = True
    async with spawning(shelf, settings) as here:
        result = await here.by_socket()
        assert result["childSessionKey"].startswith("agent:ops:subagent:")
        await here.over()
        assert len(await here.posts("agent:ops:main")) == 1


async def test_as_a_session_the_call_is_that_sessions(shelf: Shelf) -> None:
    shelf.session(SIDE, "hello")
    async with spawning(shelf) as here:
        result = await here.by_http(session=SIDE)
        await here.over()
        assert (await session_of(here.gateway, result["childSessionKey"])).spawned_by == SIDE
        assert len(await here.posts(SIDE)) == 1
        ops = await here.by_socket(session="agent:ops:main")  # the main session of an agent need not be there yet
        assert ops["childSessionKey"].startswith("agent:ops:subagent:")
        await here.over()
        assert len(await here.posts("agent:ops:main")) == 1


async def test_nobody_spawns_as_a_sub_agent(shelf: Shelf) -> None:
    shelf.session(CHILD, "hello", spawned_by=MAIN)
    settings = {**config("ops", **KEPT), "tools": {"subagents": {"tools": {"allow": ["group:sessions"]}}}}
    async with spawning(shelf, settings) as here:
        before = here.counts()
        assert (await here.by_socket(session=CHILD))["status"] == "forbidden"
        assert (await here.by_http(session=CHILD))["status"] == "forbidden"
        async with here.mcp(session=CHILD) as client:
            assert "sessions_spawn" not in {tool.name for tool in (await client.list_tools()).tools}
            refused = await client.call_tool("sessions_spawn", {"task": "dig"})
            assert refused.structured_content["status"] == "forbidden"
        assert here.counts() == before


# Scopes and tokens


async def test_it_needs_the_scope_write(shelf: Shelf) -> None:
    async with spawning(shelf) as here:
        reader = await here.token(scopes=["read"])
        writer = await here.token(scopes=["write"])
        before = here.counts()
        async with connected(here.at.at.websocket_url, reader) as client:
            error = await client.refused("tools.invoke", invocation())
            assert (error["code"], error["details"]["code"]) == ("FORBIDDEN", "scope_missing")
        assert (await here.at.invoke(reader, **invocation())).status_code == 403
        async with connected(here.at.at.websocket_url, OPERATOR, scopes=["operator.read"]) as client:
            assert (await client.refused("tools.invoke", invocation()))["code"] == "FORBIDDEN"
        async with here.mcp(reader) as mcp:
            assert "sessions_spawn" not in {tool.name for tool in (await mcp.list_tools()).tools}
            assert (await mcp.call_tool("sessions_spawn", {"task": "dig"})).is_error
        assert here.counts() == before
        assert (await here.by_http(writer))["status"] == "accepted"
        await here.over()


async def test_an_agents_token_spawns_for_its_session_and_waits_for_the_child(shelf: Shelf) -> None:
    shelf.session(SIDE, "hello")
    gate = Gate()
    async with spawning(shelf, task=gate.holds("dug deep")) as here:
        token = await here.token(sessionKey=SIDE)
        other = await here.token(sessionKey=MAIN)
        async with connected(here.at.at.websocket_url, token) as client:
            error = await client.refused("tools.invoke", invocation(session=MAIN))
            assert error["code"] == "FORBIDDEN"
            result = await here.by_socket(client)
            looked = await client.ask("agent.wait", runId=result["runId"], timeoutMs=0)
            assert (looked["status"], looked.get("running") or looked.get("queued")) == ("timeout", True)
            waiting = asyncio.create_task(client.ask("agent.wait", runId=result["runId"]))
            gate.open()
            waited = await waiting
            assert (waited["status"], waited["reply"]) == ("ok", "dug deep")
        async with connected(here.at.at.websocket_url, other) as client:
            assert (await client.refused("agent.wait", {"runId": result["runId"]}))["code"] == "FORBIDDEN"
        await here.over()
        assert (await session_of(here.gateway, result["childSessionKey"])).spawned_by == SIDE
        assert len(await here.posts(SIDE)) == 1


# Idempotency


async def test_the_key_is_the_run_and_the_same_key_again_makes_nothing(shelf: Shelf) -> None:
    async with spawning(shelf) as here:
        first = await here.by_socket(key="k1", label="digger", cleanup="keep")
        assert first["runId"] == "k1"
        await here.over()
        before = here.counts()
        assert await here.by_socket(key="k1", label="digger", cleanup="keep") == first
        assert await here.by_http(key="k1", label="digger") == first
        async with here.mcp() as client:
            arguments = {"task": "dig", "label": "digger"}
            meta: Any = {IDEMPOTENCY_KEY: "k1"}
            called = await client.call_tool("sessions_spawn", arguments, meta=meta)
            assert called.structured_content == first
        waited = await here.at.client.ask("agent.wait", runId="k1")
        assert (waited["status"], waited["reply"]) == ("ok", "dug")
        assert here.counts() == before
        assert len(await here.posts()) == 1


async def test_the_same_key_at_the_same_time_makes_one_child(shelf: Shelf) -> None:
    async with spawning(shelf) as here:
        results = await asyncio.gather(*(here.by_socket(key="k1", label="digger") for _ in range(8)))
        assert len({result["childSessionKey"] for result in results}) == 1
        await here.over()
        assert here.counts()["spawns"] == 1
        assert len(await here.posts()) == 1


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
    async with spawning(shelf) as here:
        await here.by_socket(key="k1")
        await here.over()
        before = here.counts()
        error = await here.at.client.refused("tools.invoke", invocation(key="k1", **other))
        assert error["details"]["code"] == "idempotency_conflict"
        assert "subagent" not in str(error)
        answer = await here.at.invoke(**invocation(key="k1", **other))
        assert answer.json()["error"]["details"]["code"] == "idempotency_conflict"
        assert here.counts() == before


async def test_a_key_belongs_to_its_token_and_to_its_method(shelf: Shelf) -> None:
    async with spawning(shelf) as here:
        writer = await here.token(scopes=["write"])
        await here.by_socket(key="k1")
        await here.at.client.run(message="hello", idempotencyKey="k2")
        await here.over()
        before = here.counts()
        async with connected(here.at.at.websocket_url, writer) as client:
            error = await client.refused("tools.invoke", invocation(key="k1"))
            assert error["details"]["code"] == "idempotency_conflict"
        for method, params in [
            ("agent", {"message": "dig", "idempotencyKey": "k1"}),
            ("chat.send", {"sessionKey": "main", "message": "dig", "idempotencyKey": "k1"}),
            ("tools.invoke", invocation(key="k2")),
        ]:
            error = await here.at.client.refused(method, params)
            assert error["details"]["code"] == "idempotency_conflict", method
        assert here.counts() == before


async def test_a_refused_spawn_does_not_use_its_key_up(shelf: Shelf) -> None:
    gate = Gate()
    async with spawning(shelf, config(maxChildren=1, **KEPT), task=gate.holds("dug")) as here:
        first = await here.by_socket(key="k1")
        assert (await here.by_socket(key="k2"))["status"] == "forbidden"
        gate.open()
        await here.over()
        second = await here.by_socket(key="k2")
        assert (second["status"], second["runId"]) == ("accepted", "k2")
        assert second["childSessionKey"] != first["childSessionKey"]
        await here.over()


async def test_a_key_is_known_after_a_restart_whatever_has_changed(shelf: Shelf) -> None:
    async with spawning(shelf) as here:
        first = await here.by_socket(key="k1", agentId="ops", label="digger")
        await here.over()
    async with spawning(shelf, config(**KEPT)) as here:  # without the agent
        assert await here.by_socket(key="k1", agentId="ops", label="digger") == first
        assert (await here.by_socket(key="k2", agentId="ops"))["status"] == "error"
