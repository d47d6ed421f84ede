"""The row about what a run takes of PostgreSQL: bytes on its disk and in its log, commits, and the processor's time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import NamedTuple

import msgspec
import psycopg
from tests.support.postgres import Cluster, new_database, processor_s

from backchannel.storage.databases import database_at
from backchannel.storage.moves import move_state
from backchannel.storage.tx import required
from bench.client import Client, connected
from bench.measures import Figure, Findings
from bench.postgres import own_server
from bench.runs import run_and_wait
from bench.world import BenchWorld
from bench.world import Server as GatewayProcess

KIB = 1024
LEAST_RUNS = 30
"""Tables grow by pages."""
_SIZES = (
    "SELECT (SELECT sum(pg_total_relation_size(format('%I', tablename)::regclass)) FROM pg_tables "
    "WHERE schemaname = current_schema())::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint"
)


class _Status(msgspec.Struct):
    commits: int


class _Seen(NamedTuple):
    disk: int
    log: int
    commits: int
    gateway_s: float
    server_s: float


async def footprint(world: BenchWorld) -> Findings:
    """What a session with its first run leaves in PostgreSQL, and what every further run does."""
    count = max(world.sizes.growing_runs, LEAST_RUNS)
    keys = [f"agent:main:hook:{n}" for n in range(count)]
    with own_server() as cluster:
        async with _served(world, new_database(server=cluster.url, is_prepared=False)) as (gateway, client, url):
            yield "warming up"
            await _runs(client, [f"{key}-warm" for key in keys[:10]])
            seen = [await _seen(cluster, gateway, client, url)]
            for turn in range(2):
                yield f"{count} runs, round {turn + 1} of 2"
                await _runs(client, keys)
                seen.append(await _seen(cluster, gateway, client, url))
            memory = gateway.memory_mib
        many = world.sizes.sessions[-1]
        yield f"moving {many:,} sessions"
        scattered = await _scattered(world, cluster, many, count)
    for name, before, after in (("a session with its first run", 0, 1), ("a further run", 1, 2)):
        for figure in _left(name, seen[before], seen[after], count):
            yield figure
    yield Figure(
        name=f"in the log of PostgreSQL, a run in any of {many:,} sessions after a checkpoint",
        value=scattered,
        unit="KiB",
    )
    yield Figure(name="memory of a gateway on PostgreSQL", value=memory, unit="MiB")


def _left(name: str, before: _Seen, after: _Seen, count: int) -> Iterator[Figure]:
    disk, log = (after.disk - before.disk) / count / KIB, (after.log - before.log) / count / KIB
    commits = round((after.commits - before.commits) / count, 2)
    yield Figure(name=f"on the disk of PostgreSQL, {name}", value=disk, unit="KiB")
    yield Figure(name=f"in the log of PostgreSQL, {name}", value=log, unit="KiB", detail={"commits": commits})
    server_ms, gateway_ms = (after.server_s - before.server_s) * 1000, (after.gateway_s - before.gateway_s) * 1000
    detail = {"gateway": gateway_ms / count}
    yield Figure(name=f"processor's time of PostgreSQL, {name}", value=server_ms / count, unit="ms", detail=detail)


async def _scattered(world: BenchWorld, cluster: Cluster, many: int, count: int) -> float:
    """Measure what runs write to the log when each is in another of many sessions: whole pages, after a checkpoint."""
    url = new_database(server=cluster.url, is_prepared=False)
    state = world.state(sessions=many)
    move_state(database_at(f"sqlite:///{state.database}"), url, lambda table, rows: None)
    async with _served(world, url) as (gateway, client, _):
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            keys = [key for (key,) in connection.execute("SELECT key FROM sessions ORDER BY random()").fetchmany(count)]
            connection.execute("CHECKPOINT")
            before = await _seen(cluster, gateway, client, url)
            await _runs(client, keys)
            return ((await _seen(cluster, gateway, client, url)).log - before.log) / len(keys) / KIB


@asynccontextmanager
async def _served(world: BenchWorld, url: str) -> AsyncIterator[tuple[GatewayProcess, Client, str]]:
    async with (
        world.gateway(settings={"database": {"url": url}}) as gateway,
        connected(gateway.url, gateway.token) as client,
    ):
        yield gateway, client, url


async def _runs(client: Client, keys: list[str]) -> None:
    for key in keys:
        await run_and_wait(client, key)


async def _seen(cluster: Cluster, gateway: GatewayProcess, client: Client, url: str) -> _Seen:
    """Tell how many bytes there are on the disk and in the log, how many commits were made, and what time it took."""
    commits = msgspec.json.decode(await client.ask("status", {}), type=_Status).commits
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        size, log = required(connection.execute(_SIZES.encode()).fetchone())
    return _Seen(size, log, commits, processor_s(gateway.process.pid), cluster.processor_s)
