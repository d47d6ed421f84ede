"""The row about PostgreSQL: what a run and the reads cost there, beside SQLite in the same minutes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from statistics import median

from tests.support.postgres import Cluster, new_database

from backchannel.storage.databases import database_at
from backchannel.storage.moves import move_state
from bench.client import Client, connected
from bench.measures import Figure, Findings, Goal, Timings, growth, time_awaits
from bench.processes.load import Done
from bench.reads import FLAT, HISTORY_LIMIT, LIST_LIMIT, check_count
from bench.runs import run_and_wait
from bench.states import State
from bench.world import ROOT, BenchWorld

TIMES_SQLITE = 3.0
GATEWAYS = 3


async def on_postgres(world: BenchWorld) -> Findings:
    """A run, many at once, lists and the ends of transcripts on PostgreSQL."""
    with own_server() as cluster:
        async for found in _runs(world, cluster):
            yield found
        async for found in _gateways(world, cluster):
            yield found
        async for found in _reads(world, cluster):
            yield found


@contextmanager
def own_server() -> Iterator[Cluster]:
    """Start a server on the same disk as everything else, whose commits are on that disk before they are answered."""
    folder = ROOT / "bench" / "results"  # where also a server gets through that must not run as root
    folder.mkdir(exist_ok=True)
    cluster = Cluster(folder, is_durable=True)
    try:
        yield cluster
    finally:
        cluster.remove()


async def _runs(world: BenchWorld, cluster: Cluster) -> Findings:
    sizes = world.sizes
    async with AsyncExitStack() as exits:
        url = new_database(server=cluster.url, is_prepared=False)
        here = await exits.enter_async_context(world.gateway())
        there = await exits.enter_async_context(world.gateway(settings={"database": {"url": url}}))
        on_file = await exits.enter_async_context(connected(here.url, here.token))
        on_server = await exits.enter_async_context(connected(there.url, there.token))
        files, servers = Timings(), Timings()
        for turn in range(sizes.rounds + 1):
            yield f"runs, round {turn} of {sizes.rounds}"
            for client, timings in ((on_file, files), (on_server, servers)):
                took = [await run_and_wait(client, f"agent:main:hook:{turn}-{n}") for n in range(sizes.calls)]
                if turn:  # the first one warms up
                    timings.add(took)
        rates: dict[str, list[Done]] = {"file": [], "server": []}
        for turn in range(sizes.load_rounds):
            yield f"many runs, round {turn + 1} of {sizes.load_rounds}"
            for name, gateway in (("file", here), ("server", there)):
                load = {"connections": 8, "sessions": sizes.parallel, "seconds": sizes.load_s}
                rates[name].append(await world.load(gateway, "runs", **load))
    yield Figure(
        name="agent + agent.wait on PostgreSQL, one client, p50",
        value=servers.p50,
        unit="ms",
        floor=files.p50,
        floor_is="the same on SQLite",
        goal=Goal(times_floor=TIMES_SQLITE),
        detail=servers.tail,
    )
    yield Figure(
        name=f"runs a second, {sizes.parallel} sessions, 8 connections, on PostgreSQL",
        value=median(done.rate for done in rates["server"]),
        unit="runs/s",
        floor=median(done.rate for done in rates["file"]),
        floor_is="the same on SQLite",
        detail={"p50": median(done.p50_ms for done in rates["server"])},
    )


async def _gateways(world: BenchWorld, cluster: Cluster) -> Findings:
    """Put load on one, two and three gateways of a database, in turn; each has clients of its own."""
    sizes = world.sizes
    url = new_database(server=cluster.url, is_prepared=False)
    rates: dict[int, list[float]] = {count: [] for count in range(1, GATEWAYS + 1)}
    async with AsyncExitStack() as exits:
        started = [
            await exits.enter_async_context(world.gateway(settings={"database": {"url": url}})) for _ in range(GATEWAYS)
        ]
        for turn in range(sizes.load_rounds + 1):
            for count in rates:
                yield f"{count} gateways, round {turn} of {sizes.load_rounds}"
                load = {"connections": 4, "sessions": sizes.parallel // 2, "seconds": sizes.load_s}
                done = await asyncio.gather(*(world.load(each, "runs", **load) for each in started[:count]))
                if turn:  # the first one warms up
                    rates[count].append(sum(each.rate for each in done))
    for count in range(2, GATEWAYS + 1):
        yield Figure(
            name=f"runs a second, {count} gateways with {sizes.parallel // 2} sessions each",
            value=median(rates[count]),
            unit="runs/s",
            floor=median(rates[1]),
            floor_is="one gateway",
            goal=Goal(times_floor=1.0) if count == 2 else None,
        )


async def _reads(world: BenchWorld, cluster: Cluster) -> Findings:
    sizes = world.sizes
    few, many = sizes.sessions[0], sizes.sessions[-1]
    short, long = sizes.messages[0], sizes.messages[-1]
    lists, ends = {few: Timings(), many: Timings()}, {short: Timings(), long: Timings()}
    async with AsyncExitStack() as exits:
        listed: dict[int, Client] = {}
        for count in lists:
            yield f"moving {count:,} sessions"
            moved = _moved(world, cluster, world.state(sessions=count))
            listed[count] = await exits.enter_async_context(moved)
        yield f"moving sessions of up to {long:,} messages"
        state = world.state(messages=sizes.messages)
        reader = await exits.enter_async_context(_moved(world, cluster, state))
        for turn in range(sizes.rounds):
            yield f"reads, round {turn + 1} of {sizes.rounds}"
            for count, client in listed.items():
                ask = partial(client.ask, "sessions.list", {"limit": LIST_LIMIT})
                check_count(await ask(), "sessions", min(count, LIST_LIMIT))
                lists[count].add(await time_awaits(ask, sizes.calls // 2))
            for count, timings in ends.items():
                ask = partial(reader.ask, "chat.history", {"sessionKey": state.long[count][0], "limit": HISTORY_LIMIT})
                check_count(await ask(), "messages", min(count, HISTORY_LIMIT))
                timings.add(await time_awaits(ask, sizes.calls // 2))
    yield _flat(f"sessions.list on PostgreSQL, {many:,} against {few:,}", lists[few], lists[many])
    yield _flat(f"chat.history on PostgreSQL, {long:,} messages against {short:,}", ends[short], ends[long])


def _flat(name: str, few: Timings, many: Timings) -> Figure:
    return Figure(
        name=name, value=growth(few, many), unit="×", goal=Goal(at_most=FLAT), detail={"few": few.p50, "many": many.p50}
    )


@asynccontextmanager
async def _moved(world: BenchWorld, cluster: Cluster, state: State) -> AsyncIterator[Client]:
    """Serve a state from PostgreSQL."""
    url = new_database(server=cluster.url, is_prepared=False)
    move_state(database_at(f"sqlite:///{state.database}"), url, lambda table, rows: None)
    async with (
        world.gateway(settings={"database": {"url": url}}) as gateway,
        connected(gateway.url, gateway.token) as client,
    ):
        yield client
