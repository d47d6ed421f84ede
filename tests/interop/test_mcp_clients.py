"""The MCP clients of the TypeScript SDKs: what they list, call, are told meanwhile, and stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from backchannel.tools.registry import SESSION_TOOLS
from tests.support.stub_provider import Answer, Hang

from .conftest import Node, Script
from .desk import ServedGateway, desk

pytestmark = [pytest.mark.anyio, pytest.mark.interop, pytest.mark.timeout(400)]

CLIENTS = {"sdk": ("sdk", ""), "client, legacy": ("client", "legacy"), "client, auto": ("client", "auto")}
SEND = {"name": "sessions_send", "arguments": {"sessionKey": "agent:main:main", "message": "hello"}}


@pytest.fixture
async def at(tmp_path: Path, anyio_backend: str) -> AsyncIterator[ServedGateway]:
    async with desk(tmp_path, ["main"]) as made:
        yield made


@pytest.fixture(params=CLIENTS)
def words(request: pytest.FixtureRequest, at: ServedGateway) -> list[str]:
    return ["mcp_client.mjs", *CLIENTS[request.param], f"{at.url}/mcp", at.token]


def started(node: Node, words: list[str], what: str, params: Any = None) -> AbstractAsyncContextManager[Script]:
    return node.started(*words, what, *([] if params is None else [json.dumps(params)]))


async def test_the_tools_are_listed(node: Node, words: list[str]) -> None:
    async with started(node, words, "list") as script:
        assert await script.line() == {"tools": [tool.name for tool in SESSION_TOOLS]}


async def test_a_tool_is_called(at: ServedGateway, node: Node, words: list[str]) -> None:
    at.stub.then(Answer(text="a reply"))
    async with started(node, words, "call", SEND) as script:
        told = await script.line()

    assert told["result"]["structuredContent"]["reply"] == "a reply"


async def test_a_tool_that_is_not_there_is_an_error_of_the_protocol(node: Node, words: list[str]) -> None:
    async with started(node, words, "fail", {"name": "session_list", "arguments": {}}) as script:
        told = await script.line()

    assert told["error"]["code"] == -32602
    assert "did you mean sessions_list?" in told["error"]["message"]


async def test_progress_is_told_until_the_result(at: ServedGateway, node: Node, words: list[str]) -> None:
    gate = asyncio.Event()
    at.stub.then(Answer(text="a reply", gate=gate))
    async with started(node, words, "progress", SEND) as script:
        first = await script.line()
        gate.set()
        told = first
        while "progress" in told:
            told = await script.line()

    assert first["progress"]["progress"] >= 1
    assert told["result"]["structuredContent"]["status"] == "ok"


async def test_a_call_is_stopped_and_its_run_goes_on(at: ServedGateway, node: Node, words: list[str]) -> None:
    gate = asyncio.Event()
    at.stub.then(Answer(text="a reply", gate=gate))
    async with started(node, words, "cancel", SEND) as script:
        await at.stub.asked()
        script.say("stop")
        told = await script.line()
        gate.set()
    status = await at.call("session_status", sessionKey="agent:main:main")
    async with asyncio.timeout(20):
        while status["status"] != "idle":
            status = await at.call("session_status", sessionKey="agent:main:main")
    history = await at.call("sessions_history", sessionKey="agent:main:main")

    assert told == {"outcome": "stopped", "tools": len(SESSION_TOOLS), "errors": []}
    assert "a reply" in [message["content"][0].get("text") for message in history["messages"]]


async def test_a_wrong_token_is_told(at: ServedGateway, node: Node, words: list[str]) -> None:
    at.stub.then(Hang())
    script = node.started(*words[:-1], "wrong", "list")
    async with script as running:
        with pytest.raises(AssertionError, match="the token is not valid"):
            await running.line()
