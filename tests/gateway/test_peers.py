"""Connections that have not logged in: how many are kept, for how long, and whom they make room for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from backchannel.gateway.ws import peers
from backchannel.gateway.ws.connections import Limits
from tests.support.logs import captured_logs

from .client import OPERATOR, connected
from .conftest import MakeWorld, World
from .test_transport import UPGRADE, line

pytestmark = pytest.mark.anyio

FEW = Limits(strangers=3)
BEARER = {"Authorization": f"Bearer {OPERATOR}"}


@asynccontextmanager
async def strangers(world: World, count: int, said: bytes = b"") -> AsyncIterator[list[asyncio.StreamReader]]:
    """Open connections that never log in."""
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(count):
            reader, writer = await stack.enter_async_context(line(world))
            writer.write(said)
            readers.append(reader)
        yield readers


async def ended(reader: asyncio.StreamReader) -> bool:
    """Wait until the gateway has ended a connection."""
    async with asyncio.timeout(20):
        try:
            while await reader.read(65536):
                pass
        except ConnectionResetError:
            pass
    return True


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - turns of the loop: nobody tells of what is asked
            await asyncio.sleep(0)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP", UPGRADE + b"\r\n"], ids=["nothing", "half", "upgrade"])
async def test_the_oldest_strangers_make_room_for_new_ones(make_world: MakeWorld, said: bytes) -> None:
    async with make_world(limits=FEW) as world, strangers(world, 10, said) as readers:
        for reader in readers[:7]:
            assert await ended(reader)
        assert world.at.web.peers.strangers == 3
        assert not any(reader.at_eof() for reader in readers[7:])


async def test_whoever_has_logged_in_is_no_stranger(make_world: MakeWorld) -> None:
    async with make_world(limits=FEW) as world, connected(world.url) as client:
        run = await client.begin("agent", {"message": "hi", "sessionKey": "agent:held:main"})
        assert (await client.take(run))["status"] == "accepted"
        async with httpx.AsyncClient(base_url=world.at.url, headers=BEARER, timeout=20) as http:
            args = {"sessionKey": "agent:held:main", "message": "hi", "timeoutSeconds": 15}
            sending = http.post("/tools/invoke", json={"tool": "sessions_send", "args": args})
            posted = asyncio.create_task(sending)
            await until(lambda: world.at.web.peers.count - world.at.web.peers.strangers == 2)
            async with strangers(world, 10) as readers:
                assert await ended(readers[6])
                world.release.set()
                assert (await posted).json()["result"]["status"] == "ok"
        assert (await client.take(run))["status"] == "ok"


async def test_those_who_log_in_find_the_places_that_strangers_do_not_have(make_world: MakeWorld) -> None:
    async with (
        make_world(limits=Limits(strangers=3, connections=2)) as world,
        strangers(world, 50),
        connected(world.url) as first,
        connected(world.url) as second,
    ):
        assert (await first.ask("health"))["ok"] and (await second.ask("health"))["ok"]


async def test_a_stranger_has_a_moment_before_it_makes_room(make_world: MakeWorld) -> None:
    async with make_world(limits=FEW) as world:
        began = asyncio.get_running_loop().time()
        async with strangers(world, 4) as readers:
            assert await ended(readers[0])
        assert asyncio.get_running_loop().time() - began >= 0.2


async def test_a_stranger_that_says_nothing_is_not_kept_for_ever(make_world: MakeWorld) -> None:
    async with make_world(limits=Limits(handshake_s=0.1)) as world:
        for said in (b"", b"GET / HTTP", UPGRADE + b"\r\n"):
            async with strangers(world, 1, said) as (reader,):
                assert await ended(reader)
        await until(lambda: world.at.web.peers.count == 0)


async def test_nobody_is_taken_in_beyond_the_descriptors_and_all_get_their_turn(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "descriptor_limit", lambda: 12)
    with captured_logs() as logs:
        async with make_world() as world, strangers(world, 40), connected(world.url) as client:
            assert (await client.ask("health"))["ok"]
            assert world.at.web.peers.count <= 6
    assert [entry["connections"] for entry in logs if entry["log_level"] == "warning"] == [2]


@pytest.mark.parametrize(
    ("descriptors_there", "for_connections"), [(12, 6), (256, 128), (1024, 768), (4096, 3584), (1_048_576, 917_504)]
)
def test_a_reserve_is_left_for_runs(descriptors_there: int, for_connections: int) -> None:
    assert peers.descriptors_for_connections(descriptors_there) == for_connections
