"""The handshake, and what happens to those who get it wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
import websockets

from backchannel.gateway.table import METHODS
from backchannel.gateway.ws.connections import Limits

from .client import OPERATOR, Client, Refused, connected, opened
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio


async def test_the_gateway_speaks_first_with_a_challenge(world: World) -> None:
    async with opened(world.url) as client:
        challenge = await client.event("connect.challenge")
        assert challenge["nonce"] and isinstance(challenge["ts"], int)
        assert client.events[0]["seq"] == 1


@pytest.mark.parametrize("path", ["/ws", "/"])
async def test_connecting_gives_a_complete_hello(world: World, path: str) -> None:
    async with connected(world.at.url.replace("http", "ws") + path) as client:
        hello = client.hello
    assert hello["type"] == "hello-ok"
    assert hello["protocol"] == 4
    assert set(hello["server"]) == {"version", "connId", "controlUiBuildSource"}
    assert hello["server"]["controlUiBuildSource"] == "configured"
    assert hello["features"]["methods"] == sorted(name for name, method in METHODS.items() if not method.for_nodes)
    assert "chat" in hello["features"]["events"]
    snapshot = hello["snapshot"]
    assert snapshot["presence"] == [] and snapshot["health"] == {}
    assert snapshot["stateVersion"] == {"presence": 0, "health": 0}
    assert snapshot["uptimeMs"] >= 0
    assert snapshot["sessionDefaults"] == {
        "defaultAgentId": "main",
        "mainKey": "main",
        "mainSessionKey": "agent:main:main",
        "scope": "per-sender",
    }
    scopes = ["operator.read", "operator.write", "operator.admin"]
    assert hello["auth"] == {"role": "operator", "scopes": scopes}
    assert hello["policy"]["maxPayload"] == 4 * 1024 * 1024
    assert set(hello["policy"]) == {"maxPayload", "maxBufferedBytes", "tickIntervalMs"}


async def test_unknown_fields_of_connect_are_accepted(world: World) -> None:
    device = {"id": "x", "publicKey": "y", "signature": "z", "signedAt": 1, "nonce": "n"}
    client = {"id": "cli", "version": "1", "platform": "linux", "mode": "cli", "instanceId": "i"}
    async with world.client(device=device, caps=[], locale="en", client=client, userAgent="x") as connected_:
        assert connected_.hello["protocol"] == 4


async def test_a_range_of_versions_that_includes_ours_is_taken(world: World) -> None:
    async with world.client(minProtocol=3, maxProtocol=9) as client:
        assert client.hello["protocol"] == 4


@pytest.mark.parametrize("token", ["wrong", "", None, "x" * 5000])
async def test_a_wrong_token_is_refused_and_closed_with_1008(world: World, token: str | None) -> None:
    async with opened(world.url) as client:
        with pytest.raises(Refused) as refused:
            await client.connect(token)
        assert refused.value.error["details"]["code"] == "AUTH_TOKEN_MISMATCH"
        assert await client.closed() == 1008


@pytest.mark.parametrize(("low", "high"), [(1, 3), (5, 9)])
async def test_a_foreign_version_is_refused_with_ours_and_closed_with_1002(world: World, low: int, high: int) -> None:
    async with opened(world.url) as client:
        with pytest.raises(Refused) as refused:
            await client.connect(minProtocol=low, maxProtocol=high)
        assert refused.value.code == "PROTOCOL_MISMATCH"
        assert refused.value.error["details"]["expectedProtocol"] == 4
        assert await client.closed() == 1002


async def test_an_unknown_role_is_refused(world: World) -> None:
    async with opened(world.url) as client:
        with pytest.raises(Refused, match="unknown role"):
            await client.connect(role="emperor")
        assert await client.closed() == 1008


@pytest.mark.parametrize(
    "params",
    [{"minProtocol": "4"}, {"maxProtocol": None}, {"auth": "token"}, {"auth": {"token": 7}}, {"scopes": "read"}],
)
async def test_wrongly_typed_connect_parameters_are_named_and_the_connection_closed(
    world: World, params: dict[str, Any]
) -> None:
    async with opened(world.url) as client:
        with pytest.raises(Refused) as refused:
            await client.connect(**params)
        assert refused.value.code == "bad_params"
        assert next(iter(params)) in refused.value.error["message"]
        assert await client.closed() == 1008


@pytest.mark.parametrize(
    "first",
    [
        json.dumps({"type": "req", "id": "1", "method": "health"}),
        json.dumps({"type": "res", "id": "1", "ok": True}),
        json.dumps({"type": "req", "id": "1", "method": "connect"}),
        "not json",
        "[]",
        "",
        b"\x00\x01",
    ],
)
async def test_anything_else_first_is_answered_and_closed(world: World, first: str | bytes) -> None:
    async with opened(world.url) as client:
        await client.socket.send(first)
        assert await client.closed() == 1008
        answer = client.unasked.get_nowait()
        assert answer["ok"] is False


async def test_silence_is_closed(make_world: MakeWorld) -> None:
    async with make_world(limits=Limits(handshake_s=0.05)) as world, opened(world.url) as client:
        assert await client.closed() == 1008


async def test_a_large_first_frame_is_closed_with_1009(make_world: MakeWorld) -> None:
    async with make_world() as world, opened(world.url) as client:
        await client.socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": "x" * 70_000}))
        assert await client.closed() == 1009


async def test_the_size_of_a_first_frame_counts_bytes_not_characters(make_world: MakeWorld) -> None:
    config = {"gateway": {"limits": {"preAuthFrameBytes": 2048}}}
    async with make_world(config) as world, opened(world.url) as client:
        await client.socket.send(json.dumps({"id": "é" * 1500}, ensure_ascii=False))
        assert await client.closed() == 1009


async def test_one_connection_too_many_is_turned_away(make_world: MakeWorld) -> None:
    config = {"gateway": {"limits": {"connections": 1}}}
    async with make_world(config) as world:
        async with world.client():
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(world.url)
            assert refused.value.response.status_code == 503
        async with world.client() as client:
            assert (await client.ask("health"))["ok"] is True


async def test_no_connection_is_served_elsewhere(world: World) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(world.at.url.replace("http", "ws") + "/elsewhere")
    assert refused.value.response.status_code == 404


async def test_connect_cannot_be_repeated(client: Client) -> None:
    error = await client.refused("connect", {"minProtocol": 4, "maxProtocol": 4, "auth": {"token": OPERATOR}})
    assert error["details"]["code"] == "unknown_method"


async def test_clients_are_told_when_the_gateway_stops(make_world: MakeWorld) -> None:
    async with make_world() as world:
        held = opened(world.url)
        client = await held.__aenter__()
        await client.connect()
    try:
        assert client.seen("shutdown")[0]["reason"]
        assert await client.closed() == 1012
    finally:
        await held.__aexit__(None, None, None)


async def test_ticks_come_at_the_interval_of_the_policy(make_world: MakeWorld) -> None:
    async with make_world(limits=Limits(tick_s=0.02)) as world, world.client() as client:
        assert client.hello["policy"]["tickIntervalMs"] == 20
        assert (await client.event("tick"))["ts"] > 0
