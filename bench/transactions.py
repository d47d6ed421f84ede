"""The row about what gateways ask of their PostgreSQL: transactions and statements for a run, with one, two and three.

They are counted in the server's log, which has every statement when it is begun. What the gateways ask for when nobody
does anything is measured in the same way, and taken off.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import NamedTuple

import msgspec
import psycopg
from tests.support.postgres import Cluster, new_database

from bench.client import Client, connected
from bench.measures import Figure, Findings, Goal
from bench.postgres import own_server
from bench.processes.load import check_ok
from bench.processes.models import ASKS, CALLS, QUESTION, please_ask, please_call
from bench.world import BenchWorld

MOST_TIMES_ONE = 1.3
"""How many times as many transactions a run may take with three gateways as with one."""
GATEWAYS = 3
KINDS = ("plain", "spawn", "exchange")
PATIENCE_S = 60.0
AT_ONCE = 4
"""How much is done at once on each gateway: what waits there together is one commit."""
WARM = 24
"""How many runs each gateway does before anything is measured: all its connections are open then."""
_LINE = re.compile(r"\[(\d+)\] LOG:  (?:statement|execute [^:]*): (.*)")
_ENDS = re.compile(r"(?:COMMIT|ROLLBACK)(?! TO)\b")


class Asked(NamedTuple):
    """What a database was asked for."""

    transactions: float
    statements: float

    def less(self, other: Asked, times: float) -> Asked:
        """Take off so many times as much as another."""
        return Asked(self.transactions - times * other.transactions, self.statements - times * other.statements)

    def divided(self, by: float) -> Asked:
        return Asked(self.transactions / by, self.statements / by)


class AskedLog:
    """Counts what a database is asked for, by all but the one connection that looks."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        """Have everything logged from now on that new connections ask for."""
        self._path = cluster.log
        self._looking = psycopg.connect(url, autocommit=True)
        for setting in ("log_statement = 'all'", "log_min_messages = 'log'"):
            self._looking.execute(f"ALTER DATABASE {self._looking.info.dbname} SET {setting}".encode())
        self._own = self._looking.info.backend_pid
        self._open: set[int] = set()
        self._at = 0
        self.kinds: Counter[str] = Counter()
        """How often which statement was asked for, since the last reading."""

    def read(self) -> Asked:
        """Count what was asked for since the last time."""
        transactions = statements = 0
        self.kinds = Counter()
        with self._path.open("rb") as log:
            log.seek(self._at)
            text = log.read()
            self._at += text.rfind(b"\n") + 1
        for number, statement in _LINE.findall(text.decode(errors="replace")):
            if (pid := int(number)) == self._own:
                continue
            statements += 1
            self.kinds[statement] += 1
            is_begun = pid in self._open
            transactions += not is_begun
            if statement.startswith("BEGIN"):
                self._open.add(pid)
            elif is_begun and _ENDS.match(statement):
                self._open.discard(pid)
        return Asked(transactions, statements)

    async def rest(self) -> None:
        """Wait until every run has ended."""
        async with asyncio.timeout(PATIENCE_S):
            while self._looking.execute("SELECT 1 FROM runs WHERE ended_at IS NULL LIMIT 1").fetchone():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def close(self) -> None:
        self._looking.close()


class Gateways:
    """Gateways on one database, and clients of each."""

    def __init__(self, clients: Sequence[Client], asked: AskedLog) -> None:
        self._clients = clients
        self.asked = asked
        self.idle = Asked(0, 0)
        """What they ask for in a second in which nobody does anything."""
        self._numbers = itertools.count()

    async def warm_up(self, idle_s: float) -> None:
        """Let all connections be opened, and see what is asked for when nothing happens."""
        await self._spread(self._plain, WARM * len(self._clients), AT_ONCE)
        self.asked.read()
        began = time.perf_counter()
        await asyncio.sleep(idle_s)
        self.idle = self.asked.read().divided(time.perf_counter() - began)

    async def cost(self, kind: str, count: int, *, at_once: int = 1) -> tuple[Asked, float]:
        """Do something so many times, at one gateway after the other; tells what each asked for, and its seconds."""
        do = {"plain": self._plain, "spawn": self._spawn, "exchange": self._exchange}[kind]
        await self._spread(do, len(self._clients), 1)
        self.asked.read()
        began = time.perf_counter()
        await self._spread(do, count, at_once)
        took = time.perf_counter() - began
        return self.asked.read().less(self.idle, took).divided(count), took / count

    async def _spread(self, do: Callable[[int], Awaitable[None]], count: int, at_once: int) -> None:
        """Do something so many times, so many at a time, and wait until all of it has ended."""
        left = iter([next(self._numbers) for _ in range(count)])

        async def work() -> None:
            for number in left:
                await do(number)

        await asyncio.gather(*(work() for _ in range(at_once)))
        await self.asked.rest()

    def _client(self, n: int) -> Client:
        return self._clients[n % len(self._clients)]

    async def _plain(self, n: int) -> None:
        await self._run(n, "plain", QUESTION)

    async def _spawn(self, n: int) -> None:
        await self._run(n, "parent", please_call("sessions_spawn", {"task": QUESTION}), model=CALLS.ref)

    async def _exchange(self, n: int) -> None:
        asked = f"agent:main:hook:asked-{n}"
        await self._client(n + 1).ask("sessions.patch", {"key": asked, "displayName": "one to be asked"})
        await self._run(n, "asker", please_ask(asked))

    async def _run(self, n: int, name: str, text: str, **more: str) -> None:
        _, ended = self._client(n).agent(f"agent:main:hook:{name}-{n}", text, **more)
        check_ok(await ended)


class _Status(msgspec.Struct):
    gateways: list[msgspec.Raw]


@asynccontextmanager
async def gateways(world: BenchWorld, cluster: Cluster, count: int) -> AsyncIterator[Gateways]:
    """Start so many gateways on a database of their own; each knows of the others."""
    url = new_database(server=cluster.url)
    async with AsyncExitStack() as exits:
        asked = exits.enter_context(closing(AskedLog(cluster, url)))
        settings = {"database": {"url": url}}
        started = [
            await exits.enter_async_context(world.gateway(model=ASKS.ref, visibility="all", turns=0, settings=settings))
            for _ in range(count)
        ]
        clients = [await exits.enter_async_context(connected(each.url, each.token)) for each in started]
        async with asyncio.timeout(PATIENCE_S):
            for client in clients:
                while len(msgspec.json.decode(await client.ask("status", {}), type=_Status).gateways) != count:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        started_all = Gateways(clients, asked)
        await started_all.warm_up(max(1.5 * world.sizes.load_s, 1.1))  # the gateways look once a second
        yield started_all


async def transactions(world: BenchWorld) -> Findings:
    """What plain runs, spawns and exchanges ask of the database, with one, two and three gateways."""
    count = max(world.sizes.calls // 2, 4)
    found: dict[tuple[str, int], tuple[Asked, float]] = {}
    idle = 0.0
    with own_server() as cluster:
        for number in range(1, GATEWAYS + 1):
            async with gateways(world, cluster, number) as house:
                for kind in KINDS:
                    yield f"{number} gateways, {kind}"
                    found[kind, number] = await house.cost(kind, count * number, at_once=AT_ONCE * number)
                idle = house.idle.transactions
    for kind, number in itertools.product(KINDS, range(1, GATEWAYS + 1)):
        (asked, seconds), (alone, _) = found[kind, number], found[kind, 1]
        yield Figure(
            name=f"transactions for a run, {kind}, {number} gateways",
            value=asked.transactions,
            unit="tx",
            floor=None if number == 1 else alone.transactions,
            floor_is="one gateway",
            goal=None if number == 1 else Goal(times_floor=MOST_TIMES_ONE),
            detail={"statements": asked.statements, "ms": seconds * 1000},
        )
    yield Figure(name=f"transactions in an idle second, {GATEWAYS} gateways", value=idle, unit="tx")
