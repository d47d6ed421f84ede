"""MCP servers at an address: sessions that end, refusals, answers without an end, and the newest protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from tests.support.loop_time import loop_time
from tests.support.mcp_caller import calling, until
from tests.support.mcp_web import McpAddress, served

pytestmark = pytest.mark.anyio
MAIN = "agent:main:main"


async def test_a_tool_is_called_with_the_headers_of_the_settings(tmp_path: Path) -> None:
    address = McpAddress()
    async with served(address) as url:
        far = {"url": url, "headers": {"Authorization": "Bearer sesame"}}
        async with calling(tmp_path, {"far": far}) as at:
            assert (await at.call("far__echo")).text == "heard"
    assert {headers["authorization"] for headers in address.headers} == {"Bearer sesame"}


async def test_a_session_that_the_server_has_ended_is_begun_anew_and_the_call_made(tmp_path: Path) -> None:
    address = McpAddress()
    async with served(address) as url, calling(tmp_path, {"far": {"url": url}}) as at:
        await at.call("far__echo")
        address.sessions.clear()
        told = await at.call("far__echo")

    assert told.text == "heard"
    assert address.called == ["echo", "echo"]


async def test_an_answer_without_an_end_or_with_too_many_parts_is_the_error_of_its_call_alone(tmp_path: Path) -> None:
    async with served(McpAddress()) as url, calling(tmp_path, {"far": {"url": url}}) as at:
        endless, crowd, page = [await at.call(f"far__{name}") for name in ("endless", "crowd", "page")]
        assert (await at.call("far__echo")).text == "heard"

    assert endless.is_error and "the answer is too long" in endless.text
    assert crowd.is_error and "the answer is too long" in crowd.text
    assert page.is_error and "Unexpected content type: text/html" in page.text


@pytest.mark.parametrize("name", ["crowd_of_lines", "crowd_hidden", "crowd_returns", "wide", "compressed"])
async def test_an_answer_that_would_take_long_to_read_is_the_error_of_its_call_alone(tmp_path: Path, name: str) -> None:
    async with served(McpAddress()) as url, calling(tmp_path, {"far": {"url": url, "timeoutSeconds": 20}}) as at:
        await at.call("far__echo")
        with loop_time() as held:
            told = await at.call(f"far__{name}")
        assert (await at.call("far__echo")).text == "heard"

    assert told.is_error and ("the answer is too long" in told.text or "the answer is compressed" in told.text)
    assert held.longest_s < 0.2, f"{held.longest_s * 1000:.0f} ms at once"


@pytest.mark.parametrize("name", ["halves", "halves_in_an_event"])
async def test_halves_of_pairs_and_bytes_that_are_no_text_are_replaced_in_a_result(tmp_path: Path, name: str) -> None:
    async with served(McpAddress()) as url, calling(tmp_path, {"far": {"url": url}}) as at:
        assert (await at.call(f"far__{name}")).text == "a\ufffd b\ufffd😀 c\ufffd \\ud800"


async def test_a_time_limit_cancels_the_call_at_the_server(tmp_path: Path) -> None:
    address = McpAddress()
    async with served(address) as url, calling(tmp_path, {"far": {"url": url, "timeoutSeconds": 0.3}}) as at:
        assert "took longer than 0.3 s" in (await at.call("far__hang")).text
        async with asyncio.timeout(20):
            await address.cancelled.wait()


@pytest.mark.parametrize(
    ("status", "why"), [(401, "(HTTP 401)"), (500, "(HTTP 500)"), (None, "nobody answers at its address")]
)
async def test_a_server_that_refuses_or_is_not_there_is_down_with_the_reason(
    tmp_path: Path, status: int | None, why: str
) -> None:
    address = McpAddress()
    address.status = status
    async with served(address) as url:
        if status is None:
            url = "http://127.0.0.1:9/mcp"
        async with calling(tmp_path, {"far": {"url": url}}) as at:
            assert await at.names() == set()
            assert at.gateway.mcp_servers is not None
            down = at.gateway.mcp_servers.down()["far"]

    assert why in down and "it is tried again" in down


def modern() -> MCPServer:
    server = MCPServer("clock")

    @server.tool()
    async def add(a: int, b: int, ctx: Context[Any]) -> int:
        await ctx.report_progress(1, 2)
        return a + b

    @server.tool()
    async def more(ctx: Context[Any]) -> str:
        server.add_tool(lambda: "new", name="fresh")
        await ctx.notify_tools_changed()
        return "there is more"

    return server


async def test_a_server_of_the_newest_protocol_is_used_and_its_changes_followed(tmp_path: Path) -> None:
    async with served(modern().streamable_http_app()) as url, calling(tmp_path, {"far": {"url": url}}) as at:
        told = await at.call("far__add", a=2, b=3)
        assert told.text == "5"
        await at.call("far__more")
        await until(lambda: "far__fresh" in at.gateway.toolset.of("main", MAIN))
        assert (await at.call("far__fresh")).text == "new"
