"""The MCP door, tried with the official client, in both generations of the protocol."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
import pytest
import structlog
import uvicorn
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from backchannel.agents import loading
from backchannel.errors import Unavailable
from backchannel.gateway.mcp.http import McpHttp
from backchannel.gateway.mcp.server import IDEMPOTENCY_KEY, build_server, reporting
from backchannel.gateway.ws.throttling import CREDENTIAL_FAILURES
from backchannel.tools.registry import SESSION_TOOLS

from .client import OPERATOR
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio

MODES = {"2025-11-25": "legacy", "2026-07-28": "auto"}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "sessions_list": {"messageLimit": 2},
    "sessions_history": {"sessionKey": "agent:echo:main"},
    "agents_list": {},
    "sessions_search": {"query": "hello"},
    "session_status": {"sessionKey": "agent:echo:main"},
}
LIST_TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
HEADERS = {"accept": "application/json, text/event-stream"}

Open = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def connected(
    url: str, token: str = OPERATOR, session: str | None = None, mode: str = "auto"
) -> AsyncIterator[Client]:
    """Connect the client; the headers are what fixes the caller."""
    headers = {"authorization": f"Bearer {token}"}
    if session is not None:
        headers["x-backchannel-session"] = session
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=20) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.fixture(params=MODES)
async def open_client(world: World, request: pytest.FixtureRequest) -> Open:
    """Open a client that speaks one generation of the protocol; two agents have been spoken to before."""
    await world.gateway.ask("agent:echo:main", "hello")
    await world.gateway.ask("agent:speaker:main", "hello")

    @asynccontextmanager
    async def opened(token: str = OPERATOR, session: str | None = None) -> AsyncIterator[Client]:
        async with connected(f"{world.at.url}/mcp", token, session, MODES[request.param]) as client:
            assert client.protocol_version == request.param
            yield client

    return opened


def text_of(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def keys_seen(client: Client) -> list[str]:
    result = await client.call_tool("sessions_list", {})
    return [row["key"] for row in result.structured_content["sessions"]]


async def post(world: World, body: Any = LIST_TOOLS, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        sent = {**HEADERS, "authorization": f"Bearer {OPERATOR}", **headers}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await http.post(
            f"{world.at.url}/mcp", content=content, headers={"content-type": "application/json", **sent}
        )


# What there is, and what it answers


async def test_the_tools_are_those_of_the_registry_with_its_schemas(open_client: Open) -> None:
    async with open_client() as client:
        listed = (await client.list_tools()).tools

    assert [(tool.name, tool.description, tool.input_schema) for tool in listed] == [
        (tool.name, tool.description, tool.schema()) for tool in SESSION_TOOLS
    ]


def test_each_tool_that_reads_is_tried_here() -> None:
    assert ARGUMENTS.keys() == {tool.name for tool in SESSION_TOOLS if tool.scope == "read"}


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_a_result_is_the_tools_own_as_text_and_as_it_is(open_client: Open, world: World, name: str) -> None:
    async with open_client() as client:
        result = await client.call_tool(name, ARGUMENTS[name])

    own = await world.gateway.tools().call(name, **ARGUMENTS[name])
    assert not result.is_error
    assert result.structured_content == json.loads(json.dumps(own))
    assert json.loads(text_of(result)) == result.structured_content


async def test_a_message_is_sent_and_its_reply_comes_back(open_client: Open) -> None:
    async with open_client() as client:
        result = await client.call_tool("sessions_send", {"sessionKey": "agent:speaker:main", "message": "speak"})

    assert not result.is_error
    assert result.structured_content["status"] == "ok"
    assert result.structured_content["reply"] == "one two three"


@pytest.mark.parametrize(
    ("name", "arguments", "code", "said"),
    [
        ("sessions_list", {"limit": 0}, "bad_params", "limit"),
        ("sessions_list", {"limt": 1}, "bad_params", "did you mean limit?"),
        ("sessions_list", {"kinds": ["nonsense"]}, "bad_params", "kinds"),
        ("sessions_history", {}, "bad_params", "sessionKey"),
        ("sessions_list", {"sessionKey": "agent:echo:main"}, "bad_params", "sessionKey"),
    ],
)
async def test_a_bad_call_is_an_error_of_the_tool_that_says_what_to_change(
    open_client: Open, name: str, arguments: dict[str, Any], code: str, said: str
) -> None:
    async with open_client() as client:
        result = await client.call_tool(name, arguments)

    assert result.is_error
    assert said in text_of(result)
    assert result.structured_content["error"]["details"]["code"] == code


async def test_a_tool_that_is_not_there_is_an_error_of_the_protocol(open_client: Open) -> None:
    async with open_client() as client:
        with pytest.raises(MCPError, match=r"did you mean sessions_list\?") as caught:
            await client.call_tool("session_list", {})

    assert caught.value.error.code == types.INVALID_PARAMS
    assert caught.value.error.data["details"]["code"] == "unknown_tool"


async def test_an_outcome_that_the_caller_should_handle_is_a_result(open_client: Open) -> None:
    async with open_client() as client:
        result = await client.call_tool("sessions_history", {"sessionKey": "agent:main:cron:never"})

    assert not result.is_error
    assert result.structured_content["status"] == "error"


# Who calls


async def test_the_operator_sees_everything(open_client: Open) -> None:
    async with open_client() as client:
        assert {"agent:echo:main", "agent:speaker:main"} <= set(await keys_seen(client))


async def test_the_operator_may_call_as_a_session_under_its_visibility(open_client: Open) -> None:
    async with open_client(session="agent:echo:main") as client:
        assert len(await keys_seen(client)) == 1
        refused = await client.call_tool("sessions_history", {"sessionKey": "agent:speaker:main"})
        assert refused.structured_content["status"] == "forbidden"
        own = await client.call_tool("session_status", {})
        assert own.structured_content["agentId"] == "echo"


async def test_an_agents_token_calls_as_its_session_and_no_other(open_client: Open, world: World) -> None:
    async with world.client() as operator:
        token = (await operator.ask("tokens.create", sessionKey="agent:echo:main"))["token"]
    async with open_client(token) as client:
        assert len(await keys_seen(client)) == 1
    async with open_client(token, session="agent:echo:main") as client:
        assert len(await keys_seen(client)) == 1
    answer = await post(world, authorization=f"Bearer {token}", **{"x-backchannel-session": "agent:main:main"})
    assert answer.status_code == 403
    assert answer.json()["error"]["data"]["details"]["code"] == "forbidden"


@pytest.mark.parametrize("session", ["agent:main:cron:never", "agent:nobody:main", "agent::", ""])
async def test_nobody_calls_as_a_session_that_is_not_there(world: World, session: str) -> None:
    answer = await post(world, **{"x-backchannel-session": session})

    assert answer.status_code == 403
    assert "nobody can call as this session" in answer.json()["error"]["message"]


async def test_a_session_has_the_tools_of_its_agent(make_world: MakeWorld) -> None:
    agents = [{"id": "main"}, {"id": "echo", "tools": {"deny": ["sessions_history"]}}]
    async with make_world({"agents": {"list": agents}}) as world:
        async with connected(f"{world.at.url}/mcp", session="agent:echo:main") as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            refused = await client.call_tool("sessions_history", {"sessionKey": "current"})
        async with connected(f"{world.at.url}/mcp") as client:
            all_names = [tool.name for tool in (await client.list_tools()).tools]

    assert all_names == [tool.name for tool in SESSION_TOOLS]
    assert names == [name for name in all_names if name != "sessions_history"]
    assert refused.is_error
    assert refused.structured_content["error"]["details"]["code"] == "forbidden"


async def test_a_token_lists_the_tools_that_its_scopes_allow(world: World) -> None:
    async with world.client() as operator:
        token = (await operator.ask("tokens.create", scopes=["read"]))["token"]
    async with connected(f"{world.at.url}/mcp", token) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]

    assert names == [tool.name for tool in SESSION_TOOLS if tool.scope == "read"]


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "Basic wrong", f"Bearer  {OPERATOR}x"])
async def test_without_a_valid_token_nothing_is_told(world: World, authorization: str) -> None:
    answer = await post(world, authorization=authorization)

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["data"]["details"]["code"] == "AUTH_TOKEN_MISMATCH"


async def test_a_client_is_told_why_it_is_refused(world: World) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(MCPError, match="the token is not valid"), flatten_subgroups=True):
        async with connected(f"{world.at.url}/mcp", "wrong"):
            pass


async def test_a_revoked_token_is_refused_at_its_next_request(world: World) -> None:
    async with world.client() as operator:
        made = await operator.ask("tokens.create", scopes=["read"])
        async with connected(f"{world.at.url}/mcp", made["token"]) as client:
            await client.call_tool("agents_list", {})
            await operator.ask("tokens.revoke", id=made["id"])
            with pytest.raises(MCPError, match="the token is not valid"):
                await client.call_tool("agents_list", {})


async def test_a_wrong_token_is_slowed_down_and_a_right_one_is_not(world: World) -> None:
    for _ in range(CREDENTIAL_FAILURES):
        assert (await post(world, authorization="Bearer wrong")).status_code == 401
    slowed = await post(world, authorization="Bearer wrong")

    assert slowed.status_code == 429
    assert slowed.json()["jsonrpc"] == "2.0"
    assert int(slowed.headers["retry-after"]) > 0
    assert (await post(world)).status_code == 200


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
async def test_a_foreign_page_gets_nowhere(world: World, headers: dict[str, str]) -> None:
    answer = await post(world, **headers)

    assert answer.status_code == 403
    assert (answer.json()["jsonrpc"], answer.json()["id"]) == ("2.0", None)
    assert "evil.example" in answer.json()["error"]["message"]


async def test_a_configured_name_and_origin_are_let_in(make_world: MakeWorld) -> None:
    gateway = {"allowedHosts": ["gateway.example"], "allowedOrigins": ["https://page.example"]}
    async with make_world({"gateway": gateway}) as world:
        answer = await post(world, host="gateway.example", origin="https://page.example")

    assert answer.status_code == 200


# The wire


async def test_an_answer_at_once_is_json_and_belongs_to_no_session(world: World) -> None:
    answer = await post(world)

    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["id"] == LIST_TOOLS["id"]
    assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_there_is_no_stream_to_open_and_no_session_to_end(world: World, method: str) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        answer = await http.request(method, f"{world.at.url}/mcp", headers={"authorization": f"Bearer {OPERATOR}"})

    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST, GET"
    assert answer.json()["error"]["message"].startswith("messages are posted here")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"[" + json.dumps(LIST_TOOLS).encode() + b"]",
        b"null",
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":1}',
        {"jsonrpc": "2.0", "method": 1},
    ],
)
async def test_what_is_no_message_is_refused(world: World, body: Any) -> None:
    for version in MODES:
        answer = await post(world, body, **{"mcp-protocol-version": version})
        assert answer.status_code == 400, version
        error = answer.json()["error"]
        assert error["message"].startswith(
            ("the body is not ", "the body cannot be read: ", "batches are not served: ")
        )
        assert "validation error" not in answer.text and "pydantic" not in answer.text


async def test_a_body_over_the_limit_is_refused(make_world: MakeWorld) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * 1000

    headers = {**HEADERS, "content-type": "application/json", "authorization": f"Bearer {OPERATOR}"}
    async with make_world({"gateway": {"limits": {"bodyBytes": 2000}}}) as world:
        async with httpx2.AsyncClient(trust_env=False, headers=headers, timeout=20) as http:
            for content in (b" " * 4000, pieces()):
                answer = await http.post(f"{world.at.url}/mcp", content=content)
                assert answer.status_code == 413
                assert answer.json()["error"]["data"]["details"]["code"] == "payload_too_large"
        assert (await post(world)).status_code == 200


async def test_many_call_at_once(world: World) -> None:
    async with connected(f"{world.at.url}/mcp") as client:
        results = await asyncio.gather(*(client.call_tool("agents_list", {}) for _ in range(50)))

    assert len({text_of(result) for result in results}) == 1


def test_a_gateway_starts_without_importing_what_speaks_mcp() -> None:
    script = "import sys, backchannel.gateway.server, backchannel.gateway.app; sys.exit('mcp' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# Calls that take long, with tools whose pace the tests decide


class HeldTools:
    """One tool, which answers when it is released."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.released = asyncio.Event()
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.call_ids: list[str | None] = []
        self.fails_with: Exception | None = None

    async def tools(self) -> list[dict[str, Any]]:
        if self.fails_with is not None:
            raise self.fails_with
        return [{"name": "held", "inputSchema": {"type": "object"}}]

    async def call(self, name: str, arguments: dict[str, Any], call_id: str | None) -> dict[str, Any]:
        self.call_ids.append(call_id)
        self.began.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.fails_with is not None:
            raise self.fails_with
        return {"status": "ok"}


@asynccontextmanager
async def served(tools: HeldTools) -> AsyncIterator[str]:
    """Serve tools over HTTP as the door does; gives the address."""
    http = McpHttp(tools.world.gateway.store, tools.world.gateway.clock, frozenset())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await http.post(build_server(tools, report_every_s=0.01), ("operator", None), Request(scope, receive), send)

    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve([bound]))
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def held(world: World) -> HeldTools:
    return HeldTools(world)


@pytest.mark.parametrize("mode", MODES.values())
async def test_a_call_that_takes_long_reports_progress_until_its_result(held: HeldTools, mode: str) -> None:
    reports: list[tuple[float, str | None]] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, message))
        if len(reports) == 3:
            held.released.set()

    async with served(held) as url, connected(url, mode=mode) as client:
        async with asyncio.timeout(20):
            result = await client.call_tool("held", {}, progress_callback=heard)

    assert result.structured_content == {"status": "ok"}
    times = [progress for progress, _ in reports]
    assert times == sorted(set(times)) and len(times) >= 3
    assert all(message and message.startswith("held has taken ") for _, message in reports)


async def test_nothing_is_reported_of_a_call_that_is_quick() -> None:
    reports: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)

    async with reporting(report, "quick", 1.0):
        pass
    await asyncio.sleep(0)

    assert reports == []
    assert not [task for task in asyncio.all_tasks() if "_report" in repr(task.get_coro()) and not task.done()]


@pytest.mark.parametrize("mode", MODES.values())
async def test_a_call_that_its_client_cancels_is_stopped_at_once(held: HeldTools, mode: str) -> None:
    async with served(held) as url, connected(url, mode=mode) as client, asyncio.timeout(20):
        calling = asyncio.create_task(client.call_tool("held", {}))
        await held.began.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await held.cancelled.wait()
        await client.list_tools()  # the connection goes on


@pytest.mark.parametrize("mode", MODES.values())
async def test_a_call_whose_client_goes_away_is_cancelled(held: HeldTools, mode: str) -> None:
    async with served(held) as url:
        async with connected(url, mode=mode) as client:
            calling = asyncio.create_task(client.call_tool("held", {}))
            async with asyncio.timeout(20):
                await held.began.wait()
        async with asyncio.timeout(20):
            await held.cancelled.wait()
        await asyncio.gather(calling, return_exceptions=True)


@pytest.mark.parametrize("mode", MODES.values())
async def test_a_client_may_say_what_makes_a_repeated_call_the_same(held: HeldTools, mode: str) -> None:
    held.released.set()
    async with served(held) as url, connected(url, mode=mode) as client:
        await client.session.send_request(
            types.CallToolRequest(
                params=types.CallToolRequestParams.model_validate({"name": "held", "_meta": {IDEMPOTENCY_KEY: "once"}})
            ),
            types.CallToolResult,
        )
        await client.call_tool("held", {})

    assert held.call_ids == ["once", None]


@pytest.mark.parametrize("key", ["", "two\nlines", "x" * 257, "hook/build-7"])
async def test_a_key_that_can_be_none_is_refused_and_nothing_is_done(world: World, key: str) -> None:
    call = {"name": "sessions_spawn", "arguments": {"task": "dig"}, "_meta": {IDEMPOTENCY_KEY: key}}
    async with connected(f"{world.at.url}/mcp") as client:
        result = await client.session.send_request(
            types.CallToolRequest(params=types.CallToolRequestParams.model_validate(call)), types.CallToolResult
        )

    assert result.is_error
    assert text_of(result).startswith("idempotencyKey: ")
    assert await world.gateway.store.runs(limit=10) == []


@pytest.mark.parametrize("mode", MODES.values())
@pytest.mark.parametrize("fails_with", [Unavailable("the disk is slow"), ValueError("a secret of the inside")])
async def test_what_fails_inside_is_an_error_of_the_tool_and_tells_no_more_than_it_should(
    held: HeldTools, mode: str, fails_with: Exception
) -> None:
    held.released.set()
    async with served(held) as url, connected(url, mode=mode) as client:
        await client.list_tools()
        held.fails_with = fails_with
        with structlog.testing.capture_logs() as logs:
            result = await client.call_tool("held", {})

    assert result.is_error
    is_meant_for_callers = isinstance(fails_with, Unavailable)
    assert (str(fails_with) in text_of(result)) is is_meant_for_callers
    assert [entry["event"] for entry in logs] == ([] if is_meant_for_callers else ["a tool failed"])


@pytest.mark.parametrize("mode", MODES.values())
async def test_a_list_that_cannot_be_had_is_an_error_with_its_reason(held: HeldTools, mode: str) -> None:
    held.fails_with = Unavailable("the disk is slow")
    async with served(held) as url, connected(url, mode=mode) as client:
        with pytest.raises(MCPError, match="the disk is slow") as caught:
            await client.list_tools()

    assert caught.value.error.data["details"]["code"] == "unavailable"


@pytest.mark.parametrize("is_served", [True, False])
async def test_what_mcp_loads_is_kept_out_of_garbage_collection_where_the_start_was(
    world: World, monkeypatch: pytest.MonkeyPatch, is_served: bool
) -> None:
    frozen: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    monkeypatch.setattr(loading, "_is_frozen", threading.Event())
    if is_served:
        loading.freeze_start()
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        headers = HEADERS | {"authorization": f"Bearer {OPERATOR}"}
        for _ in range(2):
            assert (await http.post(f"{world.at.url}/mcp", json=LIST_TOOLS, headers=headers)).status_code == 200

    assert len(frozen) == 2 * is_served, "at the start, and once more"
