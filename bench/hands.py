"""Rows about tools that do something: a command, in a sandbox and without one."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from backchannel.agents.gates import Gates
from backchannel.agents.programs import Program, environment
from backchannel.agents.registry import Agents
from backchannel.agents.sandbox.bubblewrap import backend
from backchannel.agents.sandbox.sandboxes import Sandbox, Sandboxes
from backchannel.config.agents import SandboxRules
from backchannel.config.load import config_from
from backchannel.core.contracts import ToolContext
from backchannel.core.messages import text_of
from backchannel.runtime.clocks import SystemClock
from backchannel.workspace.tools import WorkspaceTools
from bench.client import Failed
from bench.measures import Figure, Findings, Goal, Timings, time_awaits
from bench.world import BenchWorld

COMMAND = ("/bin/bash", "-c", "true")
FEWER = 5
"""A process takes as long as many calls of other rows do."""
CONTEXT = ToolContext(call_id="c", run_id="r", session_key="agent:main:main", agent_id="main")


@asynccontextmanager
async def _tools(state: Path, mode: str) -> AsyncIterator[WorkspaceTools]:
    config = config_from({"agents": {"defaults": {"sandbox": {"mode": mode}}}}, {}, state=state)
    agents = Agents(config)
    sandboxes, clock = Sandboxes(agents, config.key_scheme, state), SystemClock()
    tools = WorkspaceTools(config, agents, sandboxes, Gates(agents.count, clock), clock)
    try:
        yield tools
    finally:
        await tools.close()


async def _called(tools: WorkspaceTools) -> None:
    output = await tools.tools()["exec"].call(CONTEXT, {"command": "true"})
    if not text_of(output.content).startswith("[exit code 0"):
        raise Failed(text_of(output.content))


async def _bare(program: Program) -> None:
    """Start a process and wait for its end, with nothing of ours around it."""
    process = await asyncio.create_subprocess_exec(
        *program.argv, cwd=program.cwd, env=dict(program.env), stdin=DEVNULL, stdout=PIPE
    )
    await process.communicate()


async def commands(world: BenchWorld) -> Findings:
    """The tool `exec` with a command that does nothing, in a sandbox and without one."""
    sizes, state = world.sizes, world.new_folder()
    bare = Program(COMMAND, state, environment())
    kinds = {"off": bare}
    if backend.why_not() is None:
        kinds["all"] = Sandbox(SandboxRules(), state, state).wrap(bare)
    for mode, program in kinds.items():
        took, floor = Timings(), Timings()
        calls = max(sizes.calls // FEWER, 2)
        async with _tools(state, mode) as tools:
            await _called(tools)
            for turn in range(sizes.rounds):
                yield f"{'a command' if mode == 'off' else 'in a sandbox'}, round {turn + 1} of {sizes.rounds}"
                floor.add(await time_awaits(partial(_bare, program), calls))
                took.add(await time_awaits(partial(_called, tools), calls))
        yield Figure(
            name=f"exec, a command that does nothing{'' if mode == 'off' else ', in a sandbox'}, p50",
            value=took.p50,
            unit="ms",
            floor=floor.p50,
            floor_is="the same shell, started bare" if mode == "off" else "the same shell in bubblewrap, started bare",
            goal=Goal(at_most=150.0),
            detail=took.tail,
        )
