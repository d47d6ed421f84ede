"""Through sockets: a client of one gateway sends, waits, watches and stops what another one works on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.gateway.server import listening
from tests.cluster.house import gateways
from tests.gateway.client import OPERATOR, connected
from tests.support.gateways import CONFIG

pytestmark = pytest.mark.anyio


async def test_a_client_of_one_gateway_hears_the_chat_that_another_one_answers(tmp_path: Path, url: str) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="done", gate=gate, reached=reached)])
    config = {**CONFIG, "gateway": {"port": 0}}
    async with (
        gateways(tmp_path, url, model, config=config) as (one, other),
        listening(one, OPERATOR) as here,
        listening(other, OPERATOR) as there,
        connected(here.websocket_url) as sender,
        connected(there.websocket_url) as watcher,
    ):
        run = await sender.ask("chat.send", sessionKey="main", message="hello")
        await reached.wait()
        waiting = asyncio.create_task(watcher.ask("agent.wait", runId=run["runId"], timeoutMs=10_000))
        await watcher.ask("chat.history", sessionKey="main")  # whoever reads a chat hears what is said in it next
        gate.set()
        final = await watcher.event("chat", state="final", runId=run["runId"])
        assert final["message"]["content"][0]["text"] == "done"
        assert (await waiting)["status"] == "ok"


async def test_every_gateway_lists_all_of_them(tmp_path: Path, url: str) -> None:
    config = {**CONFIG, "gateway": {"port": 0}}
    async with (
        gateways(tmp_path, url, ScriptedModel(replies=[]), count=3, config=config) as (one, *_),
        listening(one, OPERATOR) as here,
        connected(here.websocket_url) as client,
    ):
        status = await client.ask("status")
    assert [gateway["isThis"] for gateway in status["gateways"]] == [True, False, False]
    assert {tuple(gateway["agents"]) for gateway in status["gateways"]} == {("main",)}
    assert status["status"] == "ok"
