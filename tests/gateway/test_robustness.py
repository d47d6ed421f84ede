"""Clients that mean harm, or only behave badly: the gateway goes on serving the others."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
import websockets

from backchannel.gateway.table import METHODS
from backchannel.gateway.ws.connections import Limits

from .client import OPERATOR, Client
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    7.5,
    10**30,
    "",
    " ",
    "main",
    "current",
    "global",
    "agent:echo:main",
    "agent:echo:cron:x",
    "agent::",
    "agent:nobody:x",
    ":::::",
    "%00",
    "\u0000",
    "é" * 300,
    "x" * 5000,
    "00000000-0000-4000-8000-000000000000",
    "'; DROP TABLE runs; --",
    "builtin/demo",
    "off",
    [],
    ["main"],
    ["cron", "group"],
    [None],
    {},
    {"a": 1},
]


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"agent.wait"}))
async def test_no_parameters_make_a_method_fail_unexpectedly(client: Client, name: str) -> None:
    dice = random.Random(name)
    fields = METHODS[name].params.__struct_encode_fields__
    likely: dict[str, Any] = {
        "message": "hi",
        "sessionKey": "agent:echo:main",
        "key": "agent:echo:cron:x",
        "runId": "r",
        "id": "t",
    }
    likely |= {"keys": ["main"], "scopes": ["read"]}
    for _ in range(40):
        params = {field: likely[field] for field in fields if field in likely}
        for field in dice.sample(fields, min(len(fields), dice.randint(0, 3))):
            params[field] = dice.choice(VALUES)
        answer = await (await client.begin(name, params)).get()
        if not answer["ok"]:
            assert answer["error"]["details"]["code"] != "internal", (params, answer["error"])
    assert (await client.ask("health"))["ok"] is True


async def test_a_client_that_does_not_read_is_closed_and_the_others_go_on(make_world: MakeWorld) -> None:
    async with make_world(limits=Limits(buffered_bytes=200_000)) as world, world.client() as client:
        await client.run(message="x" * 100_000, agentId="echo")
        deaf = await websockets.connect(world.url, compression=None, max_queue=1, max_size=None)
        try:
            connect = {"minProtocol": 4, "maxProtocol": 4, "auth": {"token": OPERATOR}}
            await deaf.send(json.dumps({"type": "req", "id": "c", "method": "connect", "params": connect}))
            asked = {"type": "req", "id": "h", "method": "chat.history", "params": {"sessionKey": "agent:echo:main"}}
            for _ in range(100):
                await deaf.send(json.dumps(asked))
            async with asyncio.timeout(20):
                while (await client.ask("status"))["connections"] > 1:
                    pass
        finally:
            deaf.transport.abort()
        assert (await client.run(message="hi", agentId="echo"))["status"] == "ok"


async def test_a_subscriber_that_never_reads_is_cut_off_and_never_holds_more_than_it_may(make_world: MakeWorld) -> None:
    limit, text = 300_000, "é" * 20_000
    async with make_world(limits=Limits(buffered_bytes=limit)) as world, world.client() as client:
        door, peers = world.at.web.connections, world.at.web.peers
        deaf = await websockets.connect(world.url, compression=None, max_queue=1, max_size=None)
        deaf.transport.pause_reading()
        try:
            connect = {"minProtocol": 4, "maxProtocol": 4, "auth": {"token": OPERATOR}}
            await deaf.send(json.dumps({"type": "req", "id": "c", "method": "connect", "params": connect}))
            subscribe = {"type": "req", "id": "s", "method": "sessions.subscribe", "params": {}}
            await deaf.send(json.dumps(subscribe))
            held = [0]
            async with asyncio.timeout(60):
                while peers.count > 1:  # its line is cut, not only its connection forgotten
                    await client.run(message=text, agentId="echo")
                    held += [connection.held_bytes for connection in door._open]
        finally:
            deaf.transport.abort()
        one_frame = 6 * len(text)
        assert limit / 2 < max(held) < limit + 2 * one_frame


async def test_a_client_that_drops_the_line_in_the_middle_leaves_nothing_behind(world: World, client: Client) -> None:
    for _ in range(5):
        socket = await websockets.connect(world.url, compression=None)
        await socket.send(b"\x00" * 10)
        socket.transport.abort()
    async with asyncio.timeout(20):
        while (await client.ask("status"))["connections"] > 1:
            pass


async def test_many_clients_come_and_go(world: World) -> None:
    async def visit(n: int) -> str:
        async with world.client() as client:
            ended = await client.run(message=str(n), sessionKey=f"agent:echo:visitor{n}")
            return str(ended["result"]["payloads"][0]["text"])

    texts = await asyncio.gather(*(visit(n) for n in range(40)))
    assert texts == [f"echo {n}" for n in range(40)]
    assert world.at.web.connections.count <= 40
