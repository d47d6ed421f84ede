"""A row about budgets: what three of them add to a run."""

from __future__ import annotations

from contextlib import AsyncExitStack

from bench.client import connected
from bench.measures import Figure, Findings, Goal, Timings
from bench.runs import run_and_wait
from bench.world import BenchWorld

THREE = [
    {"name": "all", "scope": "gateway", "per": "day", "tokens": 10**12, "then": "stop"},
    {"name": "agents", "scope": "agent", "per": "month", "tokens": 10**12, "then": "ask"},
    {"name": "sessions", "scope": "session", "per": "hour", "runs": 10**9, "then": "stop"},
]


async def budgeted_runs(world: BenchWorld) -> Findings:
    """`agent` and `agent.wait` with three budgets and without, in turns, each run in a session of its own."""
    sizes = world.sizes
    async with AsyncExitStack() as exits:
        clients = []
        for settings in ({}, {"budgets": THREE}):
            gateway = await exits.enter_async_context(world.gateway(settings=settings))
            clients.append(await exits.enter_async_context(connected(gateway.url, gateway.token)))
        took = [Timings(), Timings()]
        for client in clients:
            for n in range(min(20, sizes.calls)):
                await run_and_wait(client, f"agent:main:hook:warm-{n}")
        for turn in range(sizes.rounds):
            yield f"round {turn + 1} of {sizes.rounds}"
            for client, timings in zip(clients, took, strict=True):
                timings.add([await run_and_wait(client, f"agent:main:hook:{turn}-{n}") for n in range(sizes.calls)])
    without, budgeted = took
    yield Figure(
        name="agent + agent.wait with three budgets, p50",
        value=budgeted.p50,
        unit="ms",
        floor=without.p50,
        floor_is="the same without budgets",
        goal=Goal(times_floor=1.1),
        detail=budgeted.tail,
    )
