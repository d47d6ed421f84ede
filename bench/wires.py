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
from bench.processes.holds import take_longest_hold
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
            holds = world.folder / f"{wire.api}-holds"
            gateway = await exits.enter_async_context(
                world.gateway(state.path, model="wire/bench", settings=wire.settings(provider), holds=holds)
            )
            client = await exits.enter_async_context(connected(gateway.url, gateway.token))
            http = await exits.enter_async_context(httpx2.AsyncClient())
            floor = _Floor(http, provider.url + wire.path, exits.enter_context(commits(world.folder)))
            measured = _Measured(world, wire, client, gateway, floor)
            for n in range(min(20, world.sizes.calls)):
                await run_and_wait(client, f"agent:main:hook:warm-{n}")
            for count, key in ((0, None), *((count, key) for count, (key, _) in state.long.items())):
                yield f"{wire.name}'s wire, {count or 'no'} messages before"
                take_longest_hold(gateway.process.pid, holds)  # of what came before
                yield await measured.at(count, key)
                yield measured.hold(count, take_longest_hold(gateway.process.pid, holds))
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
        # A conversation must grow little while it is measured: it is measured at its length.
        calls = max(2, self._sizes.calls // 20) if key else self._sizes.calls
        took, bare, processor = Timings(), Timings(), Timings()
        for turn in range(self._sizes.rounds):
            before = processor_s(self._gateway.process.pid)
            keys = [key or f"agent:main:hook:{turn}-{n}" for n in range(calls)]
            took.add([await run_and_wait(self._client, each) for each in keys])
            processor.add([(processor_s(self._gateway.process.pid) - before) * 1000 / calls])
            bare.add([await self._floor.measure(calls)])
        self.curve.points.append((count, took.p50))
        self.curve.floor.append((count, bare.p50))
        detail = took.tail | {"processor": processor.p50, "bare": bare.p50}
        return self._long(count, took.p50, detail) if key else self._new(took.p50, bare.p50, detail)

    def _new(self, took: float, bare: float, detail: dict[str, float]) -> Figure:
        return Figure(
            name=f"a run over {self._wire.name}'s wire, new session, p50",
            value=took,
            unit="ms",
            floor=bare,
            floor_is="the same bytes by a bare HTTP client, and two bare commits",
            goal=Goal(times_floor=2.5),
            detail=detail,
        )

    def _long(self, count: int, took: float, detail: dict[str, float]) -> Figure:
        """Compare with a new session, whose time grows as the floor's does: the bytes are more."""
        (_, new), (_, new_floor) = self.curve.points[0], self.curve.floor[0]
        return Figure(
            name=f"a run over {self._wire.name}'s wire, session of {count:,} messages, p50",
            value=took,
            unit="ms",
            floor=new * detail["bare"] / new_floor,
            floor_is="the time in a new session, times the growth of the floor",
            goal=Goal(times_floor=1.5),
            detail=detail,
        )

    def hold(self, count: int, longest_ms: float) -> Figure:
        """Tell how long the event loop was held at most while that was measured."""
        where = f"session of {count:,} messages" if count else "new sessions"
        return Figure(
            name=f"longest hold of the loop, {self._wire.name}'s wire, {where}",
            value=longest_ms,
            unit="ms",
            goal=Goal(at_most=5.0),
        )
