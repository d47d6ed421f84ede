"""People spawn, talk, stop, reset, abort, delete and retry in any order: no result is lost, nothing is left open."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.flows.spawn_values import Spawn, SpawnOutcome
from backchannel.errors import InvalidRequest, SessionNotFound, Unavailable
from tests.support.children import Family, config, family, spawn
from tests.support.gateways import MAIN

pytestmark = pytest.mark.anyio

SIDE = "agent:main:side"
NOT_NOW = (InvalidRequest, SessionNotFound, Unavailable)
"""What somebody is told whose session is just gone, or whose run cannot be retried."""


class Disorder:
    """Decides by chance what is said and done; the same seed always decides the same."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)

    def says(self) -> dict[str, Any]:
        no_luck = ModelFailed("no luck", retryable=False)
        return {
            "person": lambda _: self._spawns(3) if self.chance.random() < 0.5 else "hello",
            "result": lambda request: self._after_a_while(request, "on it"),
            "task": lambda request: self._after_a_while(request, "dug", "dug", "dug", "dug", no_luck),
            "announce": lambda request: self._after_a_while(request, "done", "done", "done", "ANNOUNCE_SKIP", no_luck),
            "wake": lambda _: self._spawns(1) if self.chance.random() < 0.2 else "NO_REPLY",
        }

    def _spawns(self, most: int) -> list[Any]:
        return [
            spawn("dig", cleanup=self.chance.choice(["keep", "delete"])) for _ in range(self.chance.randint(1, most))
        ]

    async def _after_a_while(self, _: ModelRequest, *lines: Any) -> Any:
        await self.pause(10)
        return self.chance.choice(lines)

    async def pause(self, most: int) -> None:
        for _ in range(self.chance.randrange(most)):
            await asyncio.sleep(0)

    async def act(self, household: Family) -> None:
        """Do one thing, to the requesters, to a sub-agent or to a run that has failed."""
        gateway, key = household.gateway, self.chance.choice([MAIN, MAIN, SIDE])
        children = [str(spawned.child) for spawned in household.spawns()]
        failed = [run_id for (run_id,) in household.rows("SELECT id FROM runs WHERE state IN ('aborted', 'error')")]
        match self.chance.choice(["talk"] * 5 + ["spawn", "change", "change", "child", "child", "retry"]):
            case "talk":
                await gateway.submit(key, "go")
            case "spawn":
                await gateway.tools(key).sessions_spawn(task="dig")
            case "change":
                await self._change(household, key)
            case "child" if children:
                await self._change(household, self.chance.choice(children))
            case "retry" if failed:
                await gateway.store.retry_run(self.chance.choice(failed))

    async def _change(self, household: Family, key: str) -> None:
        gateway = household.gateway
        match self.chance.choice(["stop", "stop", "reset", "abort", "delete", "talk"]):
            case "stop":
                await household.stop(key)
            case "reset":
                await gateway.store.reset_session(gateway.key(key))
            case "abort":
                await gateway.runtime.abort(key, None)
            case "delete" if key != MAIN:
                await gateway.runtime.delete(gateway.key(key))
            case _:
                await gateway.submit(key, "hello")


@pytest.mark.parametrize("announce", ["post", "wake"])
@pytest.mark.parametrize("seed", range(5))
async def test_whatever_is_done_every_result_is_told_and_nothing_is_left_open(
    tmp_path: Path, seed: int, announce: str
) -> None:
    disorder = Disorder(seed)
    slots, deadline = disorder.chance.choice([1, 2, 8]), disorder.chance.choice([0, 0.005])
    settings = config(announce=announce, maxConcurrent=slots, wakeAfterSeconds=deadline)
    settings["session"] = {"agentToAgent": {"maxChainRuns": disorder.chance.choice([6, 100])}}
    async with family(tmp_path, settings, **disorder.says()) as household:
        for _ in range(30):
            with suppress(*NOT_NOW):
                await disorder.act(household)
            await disorder.pause(30)
        await household.over()
        assert household.rows("SELECT body FROM spawns WHERE state <> 'done'") == []
        assert household.rows("SELECT body FROM barriers WHERE state <> 'done'") == []
        assert household.rows("SELECT key FROM sessions WHERE held_posts <> 0") == []
        assert household.rows("SELECT key FROM sessions WHERE running_run IS NOT NULL OR queued <> 0") == []
        assert household.rows("SELECT id FROM tool_calls WHERE state <> 'done'") == []
        assert household.rows("SELECT body FROM inbox") == []
        assert set(household.spawn_receipts()) <= {"no_channel", "skipped", "cancelled"}
        for spawned in household.spawns():
            check_told(household, spawned)


def check_told(household: Family, spawned: Spawn) -> None:
    """A result is in a transcript of its requester; one that was skipped or cancelled is in none."""
    told = household.rows(
        "SELECT 1 FROM session_ids i JOIN messages m ON m.session_id = i.session_id "
        "WHERE i.key = ? AND m.role = 'user' AND m.body LIKE ?",
        str(spawned.requester),
        f"%sessionKey {spawned.child} %",
    )
    if spawned.outcome is not SpawnOutcome.POSTED:
        assert not told, spawned
    elif spawned.requester.path == ("main",):  # the other one may have been deleted, with nobody left to tell
        assert told, spawned
