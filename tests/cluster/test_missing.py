"""Runs of an agent that only a gateway had which is gone: they wait, and everybody is told for what."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.config.load import config_from
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Provenance, ProvenanceKind, text_content
from backchannel.core.runs import RunRequest, RunState
from backchannel.gateway.app import Gateway
from backchannel.gateway.condition import examine
from tests.cluster.house import LEASE_S, PATIENCE_S, knows
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
            "3 runs wait for the agent other, which no gateway at work has."
        )
        async with opened(tmp_path / "comes", url, "main", "other") as comes:
            for id in shown:
                assert (await comes.runtime.wait(id, PATIENCE_S)).state is RunState.OK
            await knows(stays, 2)
            assert "agent_missing" not in await problems(stays)
