"""Calls over MCP that are cancelled, or whose stream breaks: what goes on, and how their clients come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from backchannel.core.records import McpCall
from backchannel.gateway.app import Gateway
from backchannel.gateway.mcp.http import RETRY_MS

from .client import OPERATOR
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio

VERSION = "2025-11-25"
SEND = {"sessionKey": "agent:held:main", "message": "wait for it", "timeoutSeconds": 30}


def call(name: str = "sessions_send", arguments: dict[str, Any] = SEND, *, request: int | str = 7) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


def cancelled(request: int | str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request}}


class Wire:
    """A client that speaks the protocol by hand."""

    def __init__(self, url: str, token: str, session: str | None, version: str) -> None:
        headers = {
            "authorization": f"Bearer {token}",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": version,
        }
        if session is not None:
            headers["mcp-session-id"] = session
        self._url = f"{url}/mcp"
        self._http = httpx2.AsyncClient(headers=headers, trust_env=False, timeout=20)

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def post(self, message: Any) -> httpx2.Response:
        return await self._http.post(self._url, json=message)

    async def get(self, last: str) -> httpx2.Response:
        return await self._http.get(self._url, headers={"last-event-id": last})

    @asynccontextmanager
    async def stream(self, message: Any) -> AsyncIterator[AsyncIterator[httpx2.ServerSentEvent]]:
        async with self._http.stream("POST", self._url, json=message) as response:
            assert response.headers["content-type"] == "text/event-stream"
            yield aiter(httpx2.EventSource(response))

    @asynccontextmanager
    async def resumed(self, last: str) -> AsyncIterator[AsyncIterator[httpx2.ServerSentEvent]]:
        async with self._http.stream("GET", self._url, headers={"last-event-id": last}) as response:
            assert response.headers["content-type"] == "text/event-stream"
            yield aiter(httpx2.EventSource(response))


def wire(world: World, token: str = OPERATOR, session: str | None = None, version: str = VERSION) -> Wire:
    return Wire(world.at.url, token, session, version)


async def taken(world: World, count: int = 1) -> None:
    """Wait until that many runs have been accepted."""
    changed = asyncio.Event()
    stop = world.gateway.runtime.hub.listen(lambda event: changed.set())
    try:
        async with asyncio.timeout(20):
            while len(await world.gateway.store.runs(limit=10)) < count:
                await changed.wait()
                changed.clear()
    finally:
        stop()


async def outcome(events: AsyncIterator[httpx2.ServerSentEvent]) -> dict[str, Any]:
    """Read a stream to the answer at its end."""
    async with asyncio.timeout(20):
        async for event in events:
            if event.data and "id" in (message := json.loads(event.data)):
                assert isinstance(message, dict)
                return message
    raise AssertionError("the stream ended without an answer")


async def texts(gateway: Gateway, key: str = "agent:held:main") -> list[str]:
    history = await gateway.tools().sessions_history(key)
    return [message["content"][0]["text"] for message in history["messages"] if message["role"] == "user"]


# Cancelling


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_stops_a_wait_and_its_run_goes_on(world: World, mode: str) -> None:
    headers = {"authorization": f"Bearer {OPERATOR}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=20) as http,
        Client(streamable_http_client(f"{world.at.url}/mcp", http_client=http), mode=mode) as client,
    ):
        calling = asyncio.create_task(client.call_tool("sessions_send", SEND))
        await taken(world)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        world.release.set()
        (run,) = await world.gateway.store.runs(limit=10)
        ended = await world.gateway.runtime.wait(run.id, 10)

        assert (await client.call_tool("agents_list", {})).structured_content["requester"] == "main"
    assert ended.reply and ended.reply.startswith("released wait for it")


@pytest.mark.parametrize("version", [VERSION, "2025-06-18"])
@pytest.mark.parametrize("session", [None, "one"])
async def test_a_notification_in_a_request_of_its_own_stops_the_wait_and_nothing_is_answered(
    world: World, version: str, session: str | None
) -> None:
    async with wire(world, session=session, version=version) as client:
        calling = asyncio.create_task(client.post(call()))
        await taken(world)
        assert (await client.post(cancelled(7))).status_code == 202
        async with asyncio.timeout(20):
            answer = await calling

    events = [line for line in answer.text.splitlines() if line.startswith("data:") and line.strip() != "data:"]
    assert (answer.status_code, events) == ((200, []) if version == VERSION else (202, []))
    assert answer.text.endswith(".end\r\ndata: \r\n\r\n") or not answer.text  # a client that comes back is told so
    assert [run.is_finished for run in await world.gateway.store.runs(limit=10)] == [False]


@pytest.mark.parametrize(
    ("other", "request_id"),
    [({"session": "two"}, 7), ({"session": None}, 7), ({"session": "one"}, "7"), ({"session": "one"}, 8)],
)
async def test_nobody_stops_the_wait_of_another(world: World, other: dict[str, Any], request_id: int | str) -> None:
    async with (
        wire(world, session="one") as client,
        wire(world, **other) as stranger,
        client.stream(call()) as events,
    ):
        await taken(world)
        assert (await stranger.post(cancelled(request_id))).status_code == 202
        world.release.set()
        assert "result" in await outcome(events)


async def test_nobody_stops_the_wait_of_another_token(world: World) -> None:
    async with world.client() as operator:
        token = (await operator.ask("tokens.create", scopes=["write"]))["token"]
    async with wire(world) as client, wire(world, token) as stranger, client.stream(call()) as events:
        await taken(world)
        await stranger.post(cancelled(7))
        world.release.set()
        assert "result" in await outcome(events)


async def test_where_two_requests_have_one_name_neither_is_stopped(world: World) -> None:
    """Clients without a session count their requests from the same number."""
    async with wire(world) as one, wire(world) as two, one.stream(call()) as first, two.stream(call()) as second:
        await taken(world, 2)
        await one.post(cancelled(7))
        world.release.set()
        assert "result" in await outcome(first)
        assert "result" in await outcome(second)


async def test_a_client_that_shakes_hands_is_given_a_session(world: World) -> None:
    params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    async with wire(world) as client:
        answers = [
            await client.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}) for _ in range(2)
        ]

    assert answers[0].json()["result"]["protocolVersion"] == VERSION
    assert len({answer.headers["mcp-session-id"] for answer in answers}) == 2


# Coming back


async def test_a_stream_that_broke_is_taken_up_by_the_id_of_its_first_event(world: World) -> None:
    async with wire(world) as client:
        async with client.stream(call()) as events:
            first = await anext(events)
            await taken(world)
        assert (first.data, first.retry) == ("", RETRY_MS)
        async with client.resumed(first.id) as events:
            again = await anext(events)
            world.release.set()
            answer = await outcome(events)

    assert again.id == first.id
    assert answer["id"] == 7
    assert answer["result"]["structuredContent"]["reply"].startswith("released wait for it")
    assert await texts(world.gateway) == ["wait for it"]


async def test_a_result_that_was_not_read_is_there_again(world: World) -> None:
    world.release.set()
    async with wire(world) as client:
        async with client.stream(call()) as events:
            first = await anext(events)
            before = await outcome(events)
        async with client.resumed(first.id) as events:
            after = await outcome(events)

    assert before == after
    assert await texts(world.gateway) == ["wait for it"]


async def test_a_call_that_had_not_begun_when_the_gateway_died_is_carried_out(world: World) -> None:
    """Its first event was out, and nothing of it was done."""
    message = json.dumps({**call(), "params": {**call()["params"], "_meta": {"backchannel/idempotencyKey": "kept"}}})
    await world.gateway.store.keep_mcp_call(
        McpCall(id="kept", token_id="operator", session_key=None, version=VERSION, message=message, created_at=1)
    )
    world.release.set()
    async with wire(world) as client:
        answers = []
        for _ in range(2):
            async with client.resumed("kept") as events:
                answers.append(await outcome(events))

    assert answers[0]["result"]["structuredContent"]["runId"] == "kept"
    assert answers[0] == answers[1]
    assert await texts(world.gateway) == ["wait for it"]


async def test_a_sub_agent_is_started_once(world: World) -> None:
    world.release.set()
    spawn = call("sessions_spawn", {"task": "dig", "agentId": "main"})
    async with wire(world) as client:
        async with client.stream(spawn) as events:
            first = await anext(events)
            before = await outcome(events)
        async with client.resumed(first.id) as events:
            after = await outcome(events)

    assert before["result"]["structuredContent"]["status"] == "accepted"
    assert before == after


async def test_a_client_may_name_the_call_itself(world: World) -> None:
    world.release.set()
    named = call()
    named["params"]["_meta"] = {"backchannel/idempotencyKey": "once"}
    async with wire(world) as client:
        async with client.stream(named) as events:
            first = await anext(events)
            assert (await outcome(events))["result"]["structuredContent"]["runId"] == "once"
        async with client.resumed(first.id) as events:
            assert (await outcome(events))["result"]["structuredContent"]["runId"] == "once"


async def test_after_its_last_event_there_is_nothing_more(world: World) -> None:
    world.release.set()
    async with wire(world) as client:
        async with client.stream(call()) as events:
            async with asyncio.timeout(20):
                last = [event.id async for event in events][-1]
        answer = await client.get(last)

    assert (answer.status_code, answer.content) == (204, b"")


async def test_a_stream_is_taken_up_by_its_own_client_alone(world: World) -> None:
    world.release.set()
    await world.gateway.ask("agent:echo:main", "hello")
    async with world.client() as operator:
        other = (await operator.ask("tokens.create", scopes=["admin"]))["token"]
        agent = (await operator.ask("tokens.create", sessionKey="agent:echo:main"))["token"]
    async with wire(world) as client, wire(world, other) as stranger, wire(world, agent) as bound:
        async with client.stream(call()) as events:
            first = await anext(events)
            await outcome(events)
        refused = [await stranger.get(first.id), await bound.get(first.id), await client.get("never")]

    assert [answer.status_code for answer in refused] == [404, 404, 404]
    assert all("there is no such stream" in answer.json()["error"]["message"] for answer in refused)


@pytest.mark.parametrize(
    ("version", "asked"), [("2025-06-18", call()), (VERSION, call("sessions_list", {})), (VERSION, call("nothing"))]
)
async def test_only_calls_that_go_on_without_their_client_can_be_come_back_for(
    world: World, version: str, asked: dict[str, Any]
) -> None:
    world.release.set()
    async with wire(world, version=version) as client:
        answer = await client.post(asked)

    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("params", [{"name": []}, {"name": "sessions_send", "_meta": [1]}, {"name": None}, None])
async def test_a_call_without_form_is_refused(world: World, params: Any) -> None:
    async with wire(world) as client:
        answer = await client.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})

    assert answer.json()["error"]["code"] in (-32600, -32602)
    assert "pydantic" not in answer.text


@pytest.mark.parametrize("ends", ["the runtime", "the server"])
async def test_a_gateway_that_stops_leaves_the_stream_to_be_taken_up_at_its_next_start(
    make_world: MakeWorld, ends: str
) -> None:
    async with AsyncExitStack() as exits:
        world = await exits.enter_async_context(make_world())
        client = await exits.enter_async_context(wire(world))
        events = await exits.enter_async_context(client.stream(call()))
        first = await anext(events)
        await taken(world)
        stop = world.gateway.runtime.close() if ends == "the runtime" else world.at.web.close("it stops")
        async with asyncio.timeout(20):
            await asyncio.gather(stop, no_more(events))
    async with make_world() as world, wire(world) as client, client.resumed(first.id) as events:
        world.release.set()
        answer = await outcome(events)

        assert answer["result"]["structuredContent"]["reply"].startswith("released wait for it")
        assert await texts(world.gateway) == ["wait for it"]


async def no_more(events: AsyncIterator[httpx2.ServerSentEvent]) -> None:
    """Read a stream to its end, before which nothing may come."""
    assert [event.data async for event in events if event.data] == []


async def test_a_gateway_that_stops_refuses_what_cannot_be_come_back_for(world: World) -> None:
    async with wire(world, version="2025-06-18") as client:
        calling = asyncio.create_task(client.post(call()))
        await taken(world)
        await world.at.web.close("it stops")
        async with asyncio.timeout(20):
            answers = [await calling, await client.post(call())]

    assert answers[0].json()["error"]["data"]["details"]["code"] == "shutting_down"
    assert answers[1].status_code == 503
