"""MCP servers that others wrote, as tools of agents: the reference servers, in Node and Python, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backchannel.core.contracts import Effects
from backchannel.core.messages import ImageBlock
from tests.support.mcp_caller import calling, until

from .conftest import Node

pytestmark = pytest.mark.anyio
MAIN = "agent:main:main"
PACKAGES = Path("node_modules", "@modelcontextprotocol")


def in_node(node: Node, package: str, *words: str, **more: Any) -> dict[str, Any]:
    script = node.folder / PACKAGES / package / "dist" / "index.js"
    return {"command": str(node.program), "args": [str(script), *words], **more}


@asynccontextmanager
async def everything_served(node: Node) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = node.folder / PACKAGES / "server-everything" / "dist" / "index.js"
    process = await asyncio.create_subprocess_exec(
        *(str(node.program), str(script), "streamableHttp"),
        env={**node.env, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(30):
            async for line in process.stderr:
                if str(port).encode() in line:
                    break
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.communicate()


async def test_the_clock_of_others_is_asked(tmp_path: Path) -> None:
    clock = {"command": sys.executable, "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]}
    async with calling(tmp_path, {"time": clock}) as at:
        assert await at.names() == {"time__get_current_time", "time__convert_time"}
        told = await at.call(
            "time__convert_time", source_timezone="Europe/Oslo", time="12:00", target_timezone="Asia/Tokyo"
        )
        wrong = await at.call("time__get_current_time", timezone="Mars/Olympus")

    assert json.loads(told.text)["target"]["timezone"] == "Asia/Tokyo"
    assert wrong.is_error and "Mars/Olympus" in wrong.text


@pytest.mark.interop
async def test_files_are_read_and_written_where_the_server_may(node: Node, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    files = in_node(node, "server-filesystem", str(notes), trustAnnotations=True)
    async with calling(tmp_path, {"files": files}, ["files__*"]) as at:
        await at.call("files__write_file", path=str(notes / "a.txt"), content="what is in a")
        told = await at.call("files__read_text_file", path=str(notes / "a.txt"))
        refused = await at.call("files__read_text_file", path=str(tmp_path / "state" / "backchannel.db"))
        tools = at.gateway.toolset.of("main", MAIN)

    assert told.text == (notes / "a.txt").read_text() == "what is in a"
    assert refused.is_error and "outside allowed directories" in refused.text
    assert tools["files__read_text_file"].effects is Effects.NONE
    assert tools["files__move_file"].effects is Effects.OUTSIDE


@pytest.mark.interop
@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_everything_that_a_server_can_answer_is_shown(node: Node, tmp_path: Path, over: str) -> None:
    async with everything_served(node) as url:
        every = {"url": url} if over == "http" else in_node(node, "server-everything", "stdio")
        async with calling(tmp_path, {"every": every}) as at:
            assert (await at.call("every__get-sum", a=2, b=3)).text == "The sum of 2 and 3 is 5."
            image = await at.call("every__get-tiny-image")
            assert [block.mime_type for block in image.content if isinstance(block, ImageBlock)] == ["image/png"]
            structured = await at.call("every__get-structured-content", location="New York")
            assert set(json.loads(structured.text)) == {"temperature", "conditions", "humidity"}
            links = await at.call("every__get-resource-links", count=2)
            assert "(a link to Blob Resource 1, demo://resource/dynamic/blob/1" in links.text
            resource = await at.call("every__get-resource-reference")
            assert "demo://resource/dynamic/text/1:\nResource 1: This is a plaintext resource" in resource.text
            slow = await at.call("every__trigger-long-running-operation", duration=0.2, steps=2)
            assert slow.text.startswith("Long running operation completed")
            wrong = await at.call("every__get-sum", a="two")
            assert wrong.is_error


@pytest.mark.interop
async def test_a_call_that_takes_too_long_is_cancelled_and_the_server_goes_on(node: Node, tmp_path: Path) -> None:
    every = in_node(node, "server-everything", "stdio", timeoutSeconds=2)
    async with calling(tmp_path, {"every": every}) as at:
        late = await at.call("every__trigger-long-running-operation", duration=30, steps=3)
        assert "took longer than 2 s and was cancelled" in late.text
        assert (await at.call("every__echo", message="still there")).text == "Echo: still there"


@pytest.mark.interop
async def test_a_server_at_an_address_that_goes_away_is_down_and_comes_back(node: Node, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = node.folder / PACKAGES / "server-everything" / "dist" / "index.js"

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(str(node.program), str(script), "streamableHttp"),
            env={**node.env, "PORT": str(port)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    every = {"url": f"http://127.0.0.1:{port}/mcp", "effects": {"echo": "none"}}
    async with calling(tmp_path, {"every": every}) as at:
        servers = at.gateway.mcp_servers
        assert servers is not None
        assert await at.names() == set()
        process = await start()
        try:
            await until(lambda: servers.up == 1)
            assert (await at.call("every__echo", message="one")).text == "Echo: one"
            process.kill()
            await process.wait()
            gone = await at.call("every__echo", message="two")
            assert gone.is_error and "The MCP server every is down" in gone.text
            process = await start()
            await until(lambda: servers.up == 1)
            assert (await at.call("every__echo", message="three")).text == "Echo: three"
        finally:
            process.kill()
            await process.wait()
