"""Clients under load, in a process of their own. Takes a `Load` as JSON, and answers with what they `Done`."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

import msgspec
import uvloop

from bench.client import Client, Echo, Failed, connected, echoing
from bench.measures import percentile
from bench.processes.models import QUESTION, please_ask

TURNS = 10
"""Runs in a session before a new one takes its place, so that transcripts stay short."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to do."""

    kind: Literal["runs", "wave", "asks", "echo"]
    """Runs one after the other in each session, one run in each session, one in every other session that asks its
    neighbour, or echoes of the bare server."""
    url: str
    token: str
    connections: int
    sessions: int
    seconds: float = 0.0


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    count: int
    seconds: float
    cpu_s: float
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


class Loop:
    """Does something in many places at once for a time, and counts."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._took: list[float] = []

    async def run(self, calls: list[Callable[[], Awaitable[object]]]) -> Done:
        """Repeat each call until the time is over; without a time, do each once."""
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.gather(*(self._repeat(call, began + self._seconds) for call in calls))
        seconds = time.perf_counter() - began
        return Done(
            count=len(self._took),
            seconds=seconds,
            cpu_s=time.process_time() - cpu,
            p50_ms=percentile(self._took, 50),
            p99_ms=percentile(self._took, 99),
        )

    async def _repeat(self, call: Callable[[], Awaitable[object]], until: float) -> None:
        now = time.perf_counter()
        while True:
            await call()
            ended = time.perf_counter()
            self._took.append((ended - now) * 1000)
            now = ended
            if now >= until:
                return


def speaker(client: Client, name: str, **more: str) -> Callable[[], Awaitable[object]]:
    """Speak to sessions of this name, `TURNS` times to each, and wait for each reply."""
    turns = itertools.count()

    async def speak() -> None:
        _, ended = client.agent(f"agent:main:hook:{name}-{next(turns) // TURNS}", QUESTION, **more)
        check_ok(await ended)

    return speak


async def _meet(client: Client, session: str) -> None:
    """Make a session, so that it can be asked."""
    await client.ask("sessions.patch", {"key": session, "displayName": "one to be asked"})


def asker(client: Client, n: int) -> Callable[[], Awaitable[object]]:
    """Let a session ask another, and wait until it has gone on with the reply."""

    async def ask() -> None:
        _, ended = client.agent(f"agent:main:hook:asker-{n}", please_ask(f"agent:main:hook:asked-{n}"))
        check_ok(await ended)

    return ask


class _Ended(msgspec.Struct):
    status: str


_decode_ended = msgspec.json.Decoder(_Ended).decode


def check_ok(answer: bytes) -> None:
    """Make sure that a run ended well: one that failed may have cost less."""
    if _decode_ended(answer).status != "ok":
        raise Failed(f"a run ended otherwise than ok: {answer.decode()}")


def echoer(echo: Echo) -> Callable[[], Awaitable[object]]:
    return lambda: echo.ask(QUESTION.encode())


async def work(load: Load) -> Done:
    async with AsyncExitStack() as exits:
        calls: list[Callable[[], Awaitable[object]]]
        if load.kind == "echo":
            echoes = [await exits.enter_async_context(echoing(load.url)) for _ in range(load.connections)]
            calls = [echoer(echoes[n % len(echoes)]) for n in range(load.sessions)]
            return await Loop(load.seconds).run(calls)
        clients = await exits.enter_async_context(_clients(load))
        if load.kind == "asks":
            pairs = load.sessions // 2
            await asyncio.gather(
                *(_meet(clients[n % len(clients)], f"agent:main:hook:asked-{n}") for n in range(pairs))
            )
            return await Loop(0).run([asker(clients[n % len(clients)], n) for n in range(pairs)])
        more = {"model": "bench/second"} if load.kind == "wave" else {}
        mark = time.time_ns()
        calls = [speaker(clients[n % len(clients)], f"{mark}-{n}", **more) for n in range(load.sessions)]
        if load.kind == "runs":
            await Loop(load.seconds / 6).run(calls)  # warm
        return await Loop(load.seconds).run(calls)


@asynccontextmanager
async def _clients(load: Load) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as exits:
        yield [await exits.enter_async_context(connected(load.url, load.token)) for _ in range(load.connections)]


def main() -> None:
    load = msgspec.json.decode(sys.argv[1], type=Load)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        done = runner.run(work(load))
    print(msgspec.json.encode(done).decode())


if __name__ == "__main__":
    main()
