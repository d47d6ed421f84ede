"""Decisions hold for all gateways of a database: of two that ask at the same moment, one is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.contracts import ModelRequest
from backchannel.errors import IdempotencyConflict
from tests.cluster.gateways import execute, gateways
from tests.cluster.races import racers
from tests.support.children import config as family_config
from tests.support.gateways import echo, ended, settled

pytestmark = pytest.mark.anyio
TIMES = 20
RACES = 50
"""How often each race is run here; `make soak-cluster` runs it a thousand times."""


@pytest.mark.parametrize("race", ["circles", "labels", "children", "keys"])
async def test_of_two_gateways_that_are_asked_at_the_same_moment_one_refuses_every_time(
    tmp_path: Path, url: str, race: str
) -> None:
    async with racers(tmp_path, url) as pair:
        await getattr(pair, race)(RACES)


async def test_an_idempotency_key_is_taken_once(tmp_path: Path, url: str) -> None:
    async with gateways(tmp_path, url, ScriptedModel(replies=echo), count=3) as all_three:
        for n in range(TIMES):
            same = [gateway.submit("main", f"text {n}", run_id=f"run-{n}") for gateway in all_three]
            runs = await asyncio.gather(*same)
            assert {run.id for run in runs} == {f"run-{n}"}
        for n in range(TIMES):
            other = [gateway.submit("main", f"{gateway.store.number}", run_id=f"other-{n}") for gateway in all_three]
            answers = await asyncio.gather(*other, return_exceptions=True)
            assert len([answer for answer in answers if isinstance(answer, IdempotencyConflict)]) == 2
        await settled(all_three[0])
        said = execute(url, "SELECT count(*) FROM messages WHERE role = 'user'")
    assert said == [(2 * TIMES,)]


async def test_a_session_has_no_more_children_than_it_may(tmp_path: Path, url: str) -> None:
    gate = asyncio.Event()

    async def say(request: ModelRequest) -> str:
        if "You are a sub-agent" in request.system:
            await gate.wait()
        return "ok"

    settings = family_config(maxChildren=5, maxConcurrent=50)
    async with gateways(tmp_path, url, ScriptedModel(replies=say), count=3, config=settings, lease_s=10) as all_three:
        await all_three[0].ask("main", "hello")
        spawns = [gateway.tools("main").sessions_spawn(task="dig") for gateway in all_three for _ in range(6)]
        answers = [answer["status"] for answer in await asyncio.gather(*spawns)]
        gate.set()
        await settled(all_three[0])
    assert sorted(answers) == ["accepted"] * 5 + ["forbidden"] * 13


async def test_the_runs_of_a_session_never_overlap_whoever_accepts_them(tmp_path: Path, url: str) -> None:
    at_work: list[str] = []
    most = 0

    async def say(request: ModelRequest) -> str:
        nonlocal most
        at_work.append("")
        most = max(most, len(at_work))
        await asyncio.sleep(0)
        at_work.pop()
        return "ok"

    async with gateways(tmp_path, url, ScriptedModel(replies=say), count=3) as all_three:
        sent = [gateway.submit("main", f"{n}") for n in range(TIMES) for gateway in all_three]
        for run in await asyncio.gather(*sent):
            await ended(all_three[0], run.id, 20)
    assert most == 1
