"""Rows about `sessions_spawn`: what handing work over costs, and how many children can work at once."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import msgspec

from bench.client import Client, connected, echoing
from bench.floors import commits
from bench.measures import Figure, Findings, Goal, Timings, time_awaits, time_calls
from bench.processes.load import check_ok
from bench.processes.models import QUESTION, SECOND
from bench.world import BenchWorld

CHILDREN = 200
CHILDREN_LIMIT_MIB = 200
MODEL_SECONDS = 2
"""Each child has two model calls: its task, and what it announces."""


class _Spawned(msgspec.Struct, rename="camel"):
    run_id: str


class _Invoked(msgspec.Struct):
    result: _Spawned


async def spawn(client: Client) -> str:
    """Start a child as the operator; gives the id of its run, once it is accepted."""
    answer = await client.ask("tools.invoke", {"tool": "sessions_spawn", "args": {"task": QUESTION}})
    return msgspec.json.decode(answer, type=_Invoked).result.run_id


async def one_spawn(world: BenchWorld) -> Findings:
    """`sessions_spawn` until it is accepted; the children work one at a time and slowly, so that they hardly count."""
    sizes = world.sizes
    async with AsyncExitStack() as exits:
        gateway = await exits.enter_async_context(
            world.gateway(model=SECOND.ref, subagents={"maxChildren": 10_000, "maxConcurrent": 1})
        )
        bare = await exits.enter_async_context(world.bare_server())
        client = await exits.enter_async_context(connected(gateway.url, gateway.token))
        echo = await exits.enter_async_context(echoing(bare.url))
        disk = exits.enter_context(commits(world.folder))
        spawns, echoes, written = Timings(), Timings(), Timings()
        await time_awaits(lambda: spawn(client), min(20, sizes.calls))  # warm
        for turn in range(sizes.rounds):
            yield f"round {turn + 1} of {sizes.rounds}"
            echoes.add(await time_awaits(lambda: echo.ask(QUESTION.encode()), sizes.calls))
            written.add(time_calls(disk.one, sizes.calls))
            spawns.add(await time_awaits(lambda: spawn(client), sizes.calls))
    yield Figure(
        name="sessions_spawn to accepted, p50",
        value=spawns.p50,
        unit="ms",
        floor=echoes.p50 + written.p50,
        floor_is="a bare WebSocket echo and a bare commit",
        goal=Goal(at_most=5.0),
        detail=spawns.tail | {"echo": echoes.p50, "commit": written.p50},
    )


async def _child(client: Client) -> None:
    """Start a child, and wait until it has announced."""
    run_id = await spawn(client)
    for run in (run_id, run_id.replace("/child", "/announce")):
        check_ok(await client.ask("agent.wait", {"runId": run, "timeoutMs": 60_000}))


async def many_spawns(world: BenchWorld) -> Findings:
    """Many children of one session at once, with limits raised, on a model that takes a second."""
    count = min(CHILDREN, world.sizes.waiting)
    yield f"{count} children"
    limits = {"maxChildren": count, "maxConcurrent": count}
    async with (
        world.gateway(max_concurrent=2 * count, model=SECOND.ref, subagents=limits) as gateway,
        connected(gateway.url, gateway.token) as client,
    ):
        before = gateway.memory_mib
        began = time.perf_counter()
        await asyncio.gather(*(_child(client) for _ in range(count)))
        took = time.perf_counter() - began
        memory = gateway.most_memory_mib
    yield Figure(
        name=f"{count} children on a model of one second, all announced",
        value=took,
        unit="s",
        floor=float(MODEL_SECONDS),
        floor_is="the model's seconds: one for the task, one for the announce",
        goal=Goal(times_floor=1.5),
    )
    yield Figure(
        name="memory meanwhile, at most",
        value=memory,
        unit="MiB",
        floor=before,
        floor_is="before",
        goal=Goal(at_most=CHILDREN_LIMIT_MIB),
    )
