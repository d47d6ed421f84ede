"""The official MCP clients, whose gateway is killed in the middle of a call."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.stub_provider import Answer, Asked, Hang

from .conftest import Node, Script
from .desk import ServedGateway, desk

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]

IN_PYTHON = {"python-legacy": "legacy", "python-auto": "auto"}
IN_NODE = {"node-sdk": ("sdk", ""), "node-legacy": ("client", "legacy"), "node-auto": ("client", "auto")}


def send_to(agent: str) -> dict[str, Any]:
    arguments = {"sessionKey": f"agent:{agent}:main", "message": f"a question of {agent}", "timeoutSeconds": 40}
    return {"name": "sessions_send", "arguments": arguments}


async def call_in_python(at: ServedGateway, agent: str, mode: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {at.token}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http,
        Client(streamable_http_client(f"{at.url}/mcp", http_client=http), mode=mode) as client,
    ):
        result = await client.call_tool(**send_to(agent))
        return dict(result.structured_content)


async def call_in_node(script: Script) -> dict[str, Any]:
    told = await script.line(timeout_s=90)
    return dict(told["result"]["structuredContent"])


async def test_every_client_has_its_result_and_every_message_is_there_once(tmp_path: Path, node: Node) -> None:
    """All of them call at once, so that one kill tries them all."""
    agents = [*IN_PYTHON, *IN_NODE]
    was_killed = False

    def reply(asked: Asked) -> Answer | Hang:
        return Answer(text="here it is") if was_killed else Hang()

    async with desk(tmp_path, agents) as at, AsyncExitStack() as exits, asyncio.TaskGroup() as tasks:
        at.stub.reply = reply
        calls = {agent: tasks.create_task(call_in_python(at, agent, mode)) for agent, mode in IN_PYTHON.items()}
        for agent, (sdk, mode) in IN_NODE.items():
            words = ["mcp_client.mjs", sdk, mode, f"{at.url}/mcp", at.token, "call", json.dumps(send_to(agent))]
            script = await exits.enter_async_context(node.started(*words))
            calls[agent] = tasks.create_task(call_in_node(script))
        async with asyncio.timeout(60):
            await at.stub.asked(len(agents))
        await at.kill()
        was_killed = True
        await at.start()
        async with asyncio.timeout(60):
            results = {agent: await call for agent, call in calls.items()}
        said = {agent: await at.said_to(f"agent:{agent}:main") for agent in agents}

    assert {agent: (result["status"], result["reply"]) for agent, result in results.items()} == dict.fromkeys(
        agents, ("ok", "here it is")
    )
    for agent in agents:
        assert [text for text in said[agent] if text.startswith("a question of")] == [f"a question of {agent}"]
