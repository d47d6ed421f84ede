"""Rows about runs: what one costs, how many there can be, and how many can wait."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from statistics import median

import msgspec

from bench.client import Client, connected, echoing
from bench.floors import Commits, commits, grouped_commit_s
from bench.measures import Curve, Figure, Findings, Goal, Timings, time_awaits, time_calls
from bench.processes.load import Done, check_ok
from bench.processes.models import QUESTION
from bench.states import make_state
from bench.world import BenchWorld, Server

WAIT_LIMIT_MIB = 400


class _Accepted(msgspec.Struct, rename="camel"):
    run_id: str


async def run_and_wait(client: Client, session: str, text: str = QUESTION) -> float:
    """Start a run and wait for it; gives the milliseconds until `agent.wait` answered."""
    began = time.perf_counter()
    accepted, ended = client.agent(session, text)
    run_id = msgspec.json.decode(await accepted, type=_Accepted).run_id
    waited = await client.ask("agent.wait", {"runId": run_id})
    took = (time.perf_counter() - began) * 1000
    check_ok(waited)
    check_ok(await ended)
    return took


async def one_run(world: BenchWorld) -> Findings:
    """`agent` and `agent.wait`, one client, each run in a session of its own, and in sessions that are long already."""
    sizes = world.sizes
    state = make_state(world.new_folder(), messages=sizes.conversations)
    async with AsyncExitStack() as exits:
        gateway = await exits.enter_async_context(world.gateway(state.path))
        bare = await exits.enter_async_context(world.bare_server())
        client = await exits.enter_async_context(connected(gateway.url, gateway.token))
        echo = await exits.enter_async_context(echoing(bare.url))
        disk = exits.enter_context(commits(world.folder))
        runs, echoes, written = Timings(), Timings(), Timings()
        long = {count: Timings() for count in state.long}
        for n in range(min(20, sizes.calls)):
            await run_and_wait(client, f"agent:main:hook:warm-{n}")
        for turn in range(sizes.rounds):
            yield f"round {turn + 1} of {sizes.rounds}"
            echoes.add(await time_awaits(lambda: echo.ask(QUESTION.encode()), sizes.calls))
            written.add(time_calls(disk.one, sizes.calls))
            runs.add([await run_and_wait(client, f"agent:main:hook:{turn}-{n}") for n in range(sizes.calls)])
            for count, (key, _) in state.long.items():
                long[count].add([await run_and_wait(client, key) for _ in range(max(2, sizes.calls // 5))])
    yield Figure(
        name="agent + agent.wait, one client, p50",
        value=runs.p50,
        unit="ms",
        floor=echoes.p50 + 2 * written.p50,
        floor_is="a bare WebSocket echo and two bare commits",
        goal=Goal(times_floor=2.5),
        detail=runs.tail | {"echo": echoes.p50, "commit": written.p50},
    )
    for count, took in long.items():
        yield Figure(
            name=f"the same, in a session of {count:,} messages",
            value=took.p50,
            unit="ms",
            floor=runs.p50,
            floor_is="the same in a new session",
            goal=Goal(times_floor=1.2),
            detail=took.tail,
        )
    points = [(0, runs.p50), *((count, took.p50) for count, took in long.items())]
    yield Curve(name="agent + agent.wait", size_is="messages before it", unit="ms", points=points)


class _Rates:
    """The rounds in which runs were counted under load, and what the floor was in each."""

    def __init__(self, where: str, floor_is: str) -> None:
        self._where = where
        self._floor_is = floor_is
        self._done: list[Done] = []
        self._floors: list[float] = []

    def add(self, done: Done, floor: float) -> None:
        self._done.append(done)
        self._floors.append(floor)

    def figure(self, sessions: int) -> Figure:
        return Figure(
            name=f"runs a second, {sessions} sessions, {self._where}",
            value=median(done.rate for done in self._done),
            unit="runs/s",
            floor=median(self._floors),
            floor_is=self._floor_is,
            goal=Goal(at_least=1500),
            detail={
                "p50": median(done.p50_ms for done in self._done),
                "p99": median(done.p99_ms for done in self._done),
                "best": max(done.rate for done in self._done),
                "clientCpu": median(done.cpu_s / done.seconds for done in self._done),
            },
        )


async def many_runs(world: BenchWorld) -> Findings:
    """Runs a second with many sessions at once: on one connection, on eight, and without sockets."""
    sizes = world.sizes
    on_wire = "echoes as many at once, and for all of them together two bare commits"
    rates = {1: _Rates("1 connection", on_wire), 8: _Rates("8 connections", on_wire)}
    embedded = _Rates("embedded", "two bare commits for all of them together")
    async with world.gateway() as gateway, world.bare_server() as bare:
        with commits(world.folder) as disk:
            for turn in range(sizes.load_rounds):
                yield f"round {turn + 1} of {sizes.load_rounds}"
                for connections, rate in rates.items():
                    await _count_on_wire(world, gateway, bare, disk, connections, rate)
                await _count_embedded(world, disk, embedded)
    for rate in (*rates.values(), embedded):
        yield rate.figure(sizes.parallel)


async def _count_on_wire(
    world: BenchWorld, gateway: Server, bare: Server, disk: Commits, connections: int, rate: _Rates
) -> None:
    sizes = world.sizes
    commit_s = grouped_commit_s(disk, sizes.parallel, sizes.load_s / 4)
    common = {"connections": connections, "sessions": sizes.parallel}
    echoes = await world.load(bare, "echo", seconds=sizes.load_s / 4, **common)
    done = await world.load(gateway, "runs", seconds=sizes.load_s, **common)
    rate.add(done, 1 / (1 / echoes.rate + 2 * commit_s / sizes.parallel))


async def _count_embedded(world: BenchWorld, disk: Commits, rate: _Rates) -> None:
    sizes = world.sizes
    commit_s = grouped_commit_s(disk, sizes.parallel, sizes.load_s / 4)
    given = {"state": str(world.new_folder()), "sessions": sizes.parallel, "seconds": sizes.load_s}
    rate.add(await world.work("embedded", given), sizes.parallel / (2 * commit_s))


async def waiting_runs(world: BenchWorld) -> Findings:
    """Many sessions that each wait a second for their model, at once."""
    count = world.sizes.waiting
    yield f"{count} sessions wait for a model"
    async with world.gateway(max_concurrent=2 * count) as gateway:
        await world.load(gateway, "runs", connections=1, sessions=4, seconds=0.1)  # warm
        done = await world.load(gateway, "wave", connections=8, sessions=count)
        memory = gateway.most_memory_mib
    yield Figure(
        name=f"{count} sessions on a model of one second, all done",
        value=done.seconds,
        unit="s",
        floor=1.0,
        floor_is="the model's second",
        goal=Goal(at_most=1.5),
        detail={"p50": done.p50_ms, "p99": done.p99_ms},
    )
    yield Figure(name="memory meanwhile, at most", value=memory, unit="MiB", goal=Goal(at_most=WAIT_LIMIT_MIB))
