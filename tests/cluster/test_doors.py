"""Through sockets: a client of one gateway sends, waits, watches and stops what another one works on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.gateway.server import listening
from backchannel.gateway.ws.connections import Limits
from tests.cluster.gateways import gateways
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


async def test_a_token_that_one_gateway_revokes_closes_connections_on_every_other(tmp_path: Path, url: str) -> None:
    config = {**CONFIG, "gateway": {"port": 0}}
    async with (
        gateways(tmp_path, url, ScriptedModel(replies=[]), config=config) as (one, other),
        listening(one, OPERATOR) as here,
        listening(other, OPERATOR) as there,
        connected(here.websocket_url) as operator,
    ):
        made, kept = [await operator.ask("tokens.create", scopes=["admin"]) for _ in range(2)]
        async with (
            connected(there.websocket_url, made["token"]) as revoked,
            connected(there.websocket_url, kept["token"]) as stays,
        ):
            await operator.ask("tokens.revoke", id=made["id"])
            assert await revoked.closed() == 1008
            assert (await stays.ask("status"))["status"] == "ok"


async def test_a_connection_ends_with_its_token_also_when_nobody_has_told_of_it(tmp_path: Path, url: str) -> None:
    config = {**CONFIG, "gateway": {"port": 0}}
    async with (
        gateways(tmp_path, url, ScriptedModel(replies=[]), count=1, config=config) as (one,),
        listening(one, OPERATOR, limits=Limits(tick_s=0.2)) as here,
        connected(here.websocket_url) as operator,
    ):
        made = await operator.ask("tokens.create", scopes=["admin"])
        async with connected(here.websocket_url, made["token"]) as revoked:
            with psycopg.connect(url, autocommit=True) as database:
                database.execute("UPDATE tokens SET revoked_at = 1 WHERE id = %s", [made["id"]])
            assert await revoked.closed() == 1008
        assert (await operator.ask("status"))["status"] == "ok"
