"""Decisions hold for all gateways of a database: of two that ask at the same moment, one is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.contracts import ModelRequest
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.core.sessions import SessionPatch
from backchannel.errors import GatewayError, IdempotencyConflict
from backchannel.gateway.app import Gateway
from tests.cluster.house import execute, gateways
from tests.support.children import config as family_config
from tests.support.gateways import echo, ended, settled, transcript_of
from tests.support.talks import Player, config, send

pytestmark = pytest.mark.anyio
TIMES = 20


async def test_two_sessions_that_ask_each_other_at_the_same_moment_are_not_both_let_wait(
    tmp_path: Path, url: str
) -> None:
    names = [f"{side}{n}" for n in range(TIMES) for side in "ab"]
    both = config(*names, defaults={"maxConcurrent": 100})

    def other(name: str) -> str:
        return f"agent:{'b' if name[0] == 'a' else 'a'}{name[1:]}:main"

    players = [Player(name, person=send(other(name), timeoutSeconds=20), request="fine") for name in names]
    async with gateways(tmp_path, url, *(player.model for player in players), config=both, lease_s=10) as (one, two):
        for n in range(TIMES):
            asked = [
                one.ask(f"agent:a{n}:main", "ask b", timeout_s=30),
                two.ask(f"agent:b{n}:main", "ask a", timeout_s=30),
            ]
            await asyncio.gather(*asked)
        await settled(one)
        statuses = [[await status_of(one, f"agent:{side}{n}:main") for side in "ab"] for n in range(TIMES)]
    assert execute(url, "SELECT count(*) FROM waits") == [(0,)]
    assert all(sorted(pair) in (["error", "ok"], ["ok", "ok"]) for pair in statuses), statuses
    assert ["error", "ok"] in map(sorted, statuses)


async def status_of(gateway: Gateway, key: str) -> str:
    """Read what the only send of a session came to; a circle would wait until its time is over."""
    (result,) = [message for message in await transcript_of(gateway, key) if message.role is Role.TOOL_RESULT]
    return str(json.loads(result.text)["status"])


async def test_a_label_is_given_once(tmp_path: Path, url: str) -> None:
    async with gateways(tmp_path, url, ScriptedModel(replies=echo)) as both:
        for side in "ab":
            await both[0].ask(side, "hello")

        async def label(gateway: Any, side: str, name: str) -> bool:
            try:
                await gateway.store.patch_session(SessionKey.of("main", side), SessionPatch(label=name))
            except GatewayError:
                return False
            return True

        for n in range(TIMES):
            given = await asyncio.gather(
                *(label(gateway, side, f"l{n}") for gateway, side in zip(both, "ab", strict=True))
            )
            assert sorted(given) == [False, True]


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
