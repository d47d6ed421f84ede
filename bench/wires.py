"""Rows about runs with a model over HTTP, as people have it: in a new session, and in ones that have grown."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx2
from tests.support.postgres import processor_s

from bench.client import Client, connected
from bench.floors import Commits, commits
from bench.measures import Curve, Figure, Findings, Goal, Timings, time_awaits, time_calls
from bench.runs import run_and_wait
from bench.states import make_state
from bench.world import BenchWorld, Server

WINDOW = 4_000_000
"""A context window into which all fits: nothing of a long conversation is left out."""


@dataclass(frozen=True, slots=True)
class Wire:
    """The way to ask a model that a provider has."""

    api: str
    name: str
    path: str
    base: str
    """What its own client appends the rest of the path to."""

    def settings(self, provider: Server) -> dict[str, Any]:
        model = {"id": "bench", "contextWindow": WINDOW}
        endpoint = {"api": self.api, "baseUrl": provider.url + self.base, "apiKey": "none-needed", "models": [model]}
        return {"models": {"providers": {"wire": endpoint}}}


WIRES = (
    Wire("openai", "OpenAI", "/v1/chat/completions", "/v1"),
    Wire("anthropic", "Anthropic", "/v1/messages", ""),
)


class _Floor:
    """The same bytes by a bare HTTP client, and two bare commits."""

    def __init__(self, http: httpx2.AsyncClient, url: str, disk: Commits) -> None:
        self._http = http
        self._url = url
        self._disk = disk

    async def measure(self, count: int) -> float:
        """Repeat the newest request of the gateway so many times; gives the median in milliseconds."""
        body = (await self._http.get(self._url)).content
        asked, written = Timings(), Timings()
        asked.add(await time_awaits(lambda: self._ask(body), count))
        written.add(time_calls(self._disk.one, count))
        return asked.p50 + 2 * written.p50

    async def _ask(self, body: bytes) -> None:
        async with self._http.stream("POST", self._url, content=body) as answer:
            async for _ in answer.aiter_bytes():
                pass


async def runs_on_wires(world: BenchWorld) -> Findings:
    """`agent` and `agent.wait` with a model over HTTP, on each wire, in sessions of several lengths."""
    for wire in WIRES:
        state = make_state(world.new_folder(), messages=world.sizes.conversations)
        async with AsyncExitStack() as exits:
            provider = await exits.enter_async_context(world.provider())
            gateway = await exits.enter_async_context(
                world.gateway(state.path, model="wire/bench", settings=wire.settings(provider))
            )
            client = await exits.enter_async_context(connected(gateway.url, gateway.token))
            http = await exits.enter_async_context(httpx2.AsyncClient())
            floor = _Floor(http, provider.url + wire.path, exits.enter_context(commits(world.folder)))
            measured = _Measured(world, wire, client, gateway, floor)
            for n in range(min(20, world.sizes.calls)):
                await run_and_wait(client, f"agent:main:hook:warm-{n}")
            yield f"{wire.name}'s wire, new sessions"
            yield await measured.at(0, None)
            for count, (key, _) in state.long.items():
                yield f"{wire.name}'s wire, {count} messages"
                yield await measured.at(count, key)
        yield measured.curve


class _Measured:
    """What runs over one wire took, by the length of their session."""

    def __init__(self, world: BenchWorld, wire: Wire, client: Client, gateway: Server, floor: _Floor) -> None:
        self._sizes = world.sizes
        self._wire = wire
        self._client = client
        self._gateway = gateway
        self._floor = floor
        self.curve = Curve(
            name=f"a run over {wire.name}'s wire", size_is="messages before it", unit="ms", points=[], floor=[]
        )

    async def at(self, count: int, key: str | None) -> Figure:
        """Measure runs in a session of so many messages; without its key, each in a new one."""
        calls = max(2, self._sizes.calls // 5) if key else self._sizes.calls
        took, bare, processor = Timings(), Timings(), Timings()
        for turn in range(self._sizes.rounds):
            before = processor_s(self._gateway.process.pid)
            keys = [key or f"agent:main:hook:{turn}-{n}" for n in range(calls)]
            took.add([await run_and_wait(self._client, each) for each in keys])
            processor.add([(processor_s(self._gateway.process.pid) - before) * 1000 / calls])
            bare.add([await self._floor.measure(calls)])
        self.curve.points.append((count, took.p50))
        self.curve.floor.append((count, bare.p50))
        where = f"session of {count} messages" if key else "new session"
        return Figure(
            name=f"a run over {self._wire.name}'s wire, {where}, p50",
            value=took.p50,
            unit="ms",
            floor=bare.p50,
            floor_is="the same bytes by a bare HTTP client, and two bare commits",
            goal=None if key else Goal(times_floor=2.5),
            detail=took.tail | {"processor": processor.p50},
        )
