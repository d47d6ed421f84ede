"""Runs of an agent that only a gateway had which is gone: they wait, and everybody is told for what."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import ScriptedModel
from backchannel.cli.conversation import why_queued
from backchannel.config.load import config_from
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Provenance, ProvenanceKind, text_content
from backchannel.core.runs import RunRequest, RunState
from backchannel.gateway.app import Gateway
from backchannel.gateway.condition import examine
from tests.cluster.gateways import LEASE_S, PATIENCE_S, knows
from tests.cluster.lives import ROOT
from tests.support.gateways import live_runs

pytestmark = pytest.mark.anyio
FROM_FLOW = Provenance(kind=ProvenanceKind.INTER_SESSION)

GONE = """
import asyncio, json, sys
from pathlib import Path
from backchannel.agents.scripted import ScriptedModel
from backchannel.config.load import config_from
from backchannel.gateway.app import Gateway

async def live() -> None:
    begun = asyncio.Event()

    async def reply(request):
        begun.set()
        await asyncio.Event().wait()

    gateway = Gateway(config_from(json.loads(sys.argv[1]), {}, state=Path(sys.argv[2])))
    gateway.add_model(ScriptedModel(replies=reply))
    async with gateway:
        await gateway.submit("agent:other:s", "go", run_id="at-work")
        await begun.wait()
        await gateway.submit("agent:other:t", "go", run_id="in-line")
        print("begun", flush=True)
        await asyncio.Event().wait()

asyncio.run(live())
"""


def config_of(url: str, *agents: str) -> dict[str, Any]:
    return {
        "agents": {
            "list": [{"id": agent, "model": "scripted/test"} for agent in agents],
            "defaults": {"maxConcurrent": 1},
        },
        "database": {"url": url},
        "cluster": {"leaseSeconds": LEASE_S},
    }


def opened(folder: Path, url: str, *agents: str) -> Gateway:
    gateway = Gateway(config_from(config_of(url, *agents), {}, state=folder))
    gateway.add_model(ScriptedModel(replies=lambda request: "fine"))
    return gateway


async def killed(folder: Path, url: str) -> None:
    """Let a gateway that alone has an agent die with a run at work and one in line."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", GONE, json.dumps(config_of(url, "main", "other")), str(folder)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        assert await process.stdout.readline() == b"begun\n"
        process.kill()
        await process.wait()


async def problems(gateway: Gateway) -> dict[str, str]:
    return {problem.code: problem.message for problem in (await examine(gateway.parts)).problems}


async def test_runs_of_an_agent_of_a_dead_gateway_wait_and_say_so_until_one_with_it_comes(
    tmp_path: Path, url: str
) -> None:
    async with opened(tmp_path / "stays", url, "main") as stays:
        await killed(tmp_path / "gone", url)
        await knows(stays, 1)
        asked = RunRequest(
            key=SessionKey.of("other", "u"), content=text_content("go"), provenance=FROM_FLOW, id="since"
        )
        await stays.runtime.submit(asked)  # as the step of an exchange is, of which another session is a part
        await stays.ask("agent:main:s", "do you still answer?")  # whatever could be taken up has been by then
        shown = {run.id: stays.parts.rows.run(run) for run in await live_runs(stays)}
        assert {id: (row.status, row.waiting_for) for id, row in shown.items()} == {
            "at-work": ("running", "agent"),
            "in-line": ("queued", "agent"),
            "since": ("queued", "agent"),
        }
        assert (await problems(stays))["agent_missing"] == (
            "3 runs wait for the agent other, which no running gateway has."
        )
        async with opened(tmp_path / "comes", url, "main", "other") as comes:
            for id in shown:
                assert (await comes.runtime.wait(id, PATIENCE_S)).state is RunState.OK
            await knows(stays, 2)
            assert "agent_missing" not in await problems(stays)


async def test_a_run_whose_function_another_gateway_has_says_that_it_waits_for_that_one(
    tmp_path: Path, url: str
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def hands(context: FunctionContext) -> str:
        begun.set()
        await go_on.wait()
        return "done"

    works, asks = (opened(tmp_path / name, url, "main") for name in ("works", "asks"))
    works.add_agent("hands", hands)
    async with asyncio.timeout(PATIENCE_S), works, asks:
        await knows(asks, 2)
        await works.submit("agent:hands:s", "go", run_id="at-work")
        await begun.wait()  # it has the only slot
        in_line = (await asks.submit("agent:hands:t", "go")).id
        shown = {run.id: asks.parts.rows.run(run) for run in await live_runs(asks)}
        assert {id: row.waiting_for for id, row in shown.items()} == {"at-work": None, in_line: "gateway"}
        told = why_queued(shown[in_line])
        assert told == "(queued: another gateway has the agent of agent:hands:t, and works on it in its turn)"
        go_on.set()
        assert (await asks.runtime.wait(in_line, PATIENCE_S)).reply == "done"
