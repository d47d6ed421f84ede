"""The row about strangers: whether they keep out those who come with a right token, at any door."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import msgspec

from backchannel.channels.signing import SIGNATURE, sign
from bench.client import Failed, connected
from bench.measures import Figure, Findings, Goal, percentile
from bench.processes.strangers import Siege
from bench.world import BenchWorld, Server

WRONG_PER_SECOND = 75.0
HOOK_TOKEN = "the hook token of the bench"
SECRET = "the secret of the channel of the bench"
OPEN = {
    "gateway": {"port": 0, "http": {"chatCompletions": True}},
    "hooks": {"enabled": True, "token": HOOK_TOKEN},
    "channels": {"desk": {"adapter": "bridge", "url": "http://127.0.0.1:9", "secret": SECRET}},
}
"""Settings of a gateway with all its doors open."""
_PATIENCE_S = 30.0

Door = Callable[[Server, int], Awaitable[None]]


async def _by_websocket(server: Server, number: int) -> None:
    async with connected(server.url, server.token):
        pass


async def _by_metrics(server: Server, number: int) -> None:
    await _http(server, "GET /metrics", server.token)


async def _by_tools(server: Server, number: int) -> None:
    await _http(server, "POST /tools/invoke", server.token, b'{"tool":"agents_list"}')


async def _by_mcp(server: Server, number: int) -> None:
    await _http(server, "POST /mcp", server.token, b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')


async def _by_models(server: Server, number: int) -> None:
    await _http(server, "GET /v1/models", server.token)


async def _by_hook(server: Server, number: int) -> None:
    body = msgspec.json.encode({"text": f"note {number}"})
    await _http(server, "POST /hooks/wake", HOOK_TOKEN, body)


async def _by_bridge(server: Server, number: int) -> None:
    event = {"chatType": "direct", "chatId": "c", "senderId": "s", "messageId": str(number), "text": "hi"}
    await _http(server, "POST /channels/desk/inbound", "", msgspec.json.encode(event))


DOORS: dict[str, Door] = {
    "WebSocket": _by_websocket,
    "/metrics": _by_metrics,
    "/tools/invoke": _by_tools,
    "/mcp": _by_mcp,
    "/v1": _by_models,
    "/hooks": _by_hook,
    "/channels": _by_bridge,
}


async def _http(server: Server, what: str, token: str, body: bytes = b"") -> None:
    """Make a request on a connection of its own, which must succeed."""
    place = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(
            f"{what} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
            f"{SIGNATURE}: {sign(SECRET, body)}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Accept: application/json, text/event-stream\r\n\r\n".encode()
            + body
        )
        answer = await reader.read()
    finally:
        writer.close()
    if not answer.startswith(b"HTTP/1.1 2"):
        raise Failed(f"{what}: {answer[:300].decode(errors='replace')}")


@asynccontextmanager
async def besieged(world: BenchWorld, server: Server, idle: int) -> AsyncIterator[None]:
    """Let strangers stand at a gateway's door."""
    siege = Siege(url=server.url, idle=idle, wrong_per_second=WRONG_PER_SECOND)
    async with world.beside("strangers", siege):
        yield


async def log_in(server: Server, times: int) -> dict[str, list[float | None]]:
    """Come in by each door with what is right; gives the milliseconds that each took, None for one that failed."""
    took: dict[str, list[float | None]] = {name: [] for name in DOORS}
    for number in range(times):
        for name, enter in DOORS.items():
            began = time.perf_counter()
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await enter(server, number)
            except (Failed, OSError, TimeoutError):
                took[name].append(None)
            else:
                took[name].append((time.perf_counter() - began) * 1000)
    return took


async def lockout(world: BenchWorld) -> Findings:
    """Right logins at each door, while strangers stand there and wrong tokens come."""
    async with world.gateway(settings=OPEN) as gateway:
        await log_in(gateway, 1)  # what is imported at the first request is no part of it
        yield f"{world.sizes.strangers} strangers"
        async with besieged(world, gateway, world.sizes.strangers):
            took = await log_in(gateway, world.sizes.calls)
    passed = [each for door in took.values() for each in door if each is not None]
    tried = sum(len(door) for door in took.values())
    slowest = {f"slowest at {name}": max((each or 0.0 for each in door), default=0.0) for name, door in took.items()}
    yield Figure(
        name="right logins let in while strangers stand at the door",
        value=100.0 * len(passed) / tried,
        unit="%",
        goal=Goal(at_least=100.0),
        detail={"tried": tried, "strangers": world.sizes.strangers},
    )
    yield Figure(
        name="the slowest of them",
        value=max(passed),
        unit="ms",
        goal=Goal(at_most=200.0),
        detail={"p50": percentile(passed, 50), "p99": percentile(passed, 99), **slowest},
    )
