"""Rows about the tools of agents: what a round of one call adds to a run, beside the bare cost of the call."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from mcp import Client as McpClient
from mcp import StdioServerParameters

from bench.client import Failed, connected
from bench.floors import commits
from bench.measures import Figure, Findings, Goal, Timings, time_awaits, time_calls
from bench.processes.models import CALLS, QUESTION, please_call
from bench.runs import run_and_wait
from bench.world import BenchWorld

ADDED_COMMITS = 3
"""What a call with outside effects adds: the reply that asks for it, the mark before it begins, its result."""
SERVER = (sys.executable, "-I", "-S", str(Path(__file__).parent / "processes" / "mcp_echo.py"))


@asynccontextmanager
async def _bare_server() -> AsyncIterator[McpClient]:
    async with McpClient(StdioServerParameters(command=SERVER[0], args=list(SERVER[1:]))) as client:
        yield client


async def mcp_rounds(world: BenchWorld) -> Findings:
    """A run with one call of a tool of an MCP server over stdio, beside the run, the call and the commits alone."""
    sizes = world.sizes
    settings = {
        "mcp": {"servers": {"bench": {"command": SERVER[0], "args": list(SERVER[1:])}}},
        "tools": {"allow": ["group:mcp:bench"]},
    }
    text = please_call("bench__echo", {"text": QUESTION})
    async with AsyncExitStack() as exits:
        gateway = await exits.enter_async_context(world.gateway(model=CALLS.ref, settings=settings))
        client = await exits.enter_async_context(connected(gateway.url, gateway.token))
        bare = await exits.enter_async_context(_bare_server())
        disk = exits.enter_context(commits(world.folder))
        rounds, runs, calls, written = Timings(), Timings(), Timings(), Timings()
        for n in range(min(20, sizes.calls)):
            await run_and_wait(client, f"agent:main:hook:warm-{n}", text)
        for turn in range(sizes.rounds):
            yield f"round {turn + 1} of {sizes.rounds}"
            calls.add(await time_awaits(lambda: _call(bare), sizes.calls))
            written.add(time_calls(disk.one, sizes.calls))
            runs.add([await run_and_wait(client, f"agent:main:hook:p{turn}-{n}") for n in range(sizes.calls)])
            rounds.add([await run_and_wait(client, f"agent:main:hook:c{turn}-{n}", text) for n in range(sizes.calls)])
    yield Figure(
        name="a run with one call over MCP stdio, p50",
        value=rounds.p50,
        unit="ms",
        floor=runs.p50 + calls.p50 + ADDED_COMMITS * written.p50,
        floor_is="the run without the call, the call alone through the client of the SDK, and three bare commits",
        goal=Goal(times_floor=2.0),
        detail=rounds.tail,
    )


async def _call(bare: McpClient) -> None:
    if (await bare.call_tool("echo", {"text": QUESTION})).is_error:
        raise Failed("the bare server did not answer")
