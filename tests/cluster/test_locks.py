"""Another program locks a row or a table under two gateways: what is locked waits, and everything else goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel
from backchannel.core.contracts import ModelRequest
from backchannel.core.runs import Run
from backchannel.errors import DatabaseLocked, Unavailable
from backchannel.gateway.app import Gateway
from backchannel.gateway.condition import examine
from tests.cluster.gateways import PATIENCE_S, gateways, until
from tests.storage.test_standing import locking, row_of
from tests.support.gateways import echo, ended, live_runs, texts_of

pytestmark = pytest.mark.anyio

OTHERS = [f"agent:main:s{n}" for n in range(1, 12)]
LEASE_S = 4.0
"""Long enough for a busy machine: what is tried here is that a lease is kept."""


async def talk_on_all(opened: list[Gateway], text: str) -> list[str | None]:
    """Have a run in each of the other sessions, by one gateway after the other."""
    async with asyncio.timeout(PATIENCE_S):
        runs = await asyncio.gather(*(opened[n % 2].submit(key, text) for n, key in enumerate(OTHERS)))
        done = await asyncio.gather(*(ended(opened[n % 2], run.id) for n, run in enumerate(runs)))
    return [run.reply for run in done]


async def renewed_for(opened: list[Gateway], seconds: float) -> None:
    """Wait until each has renewed its lease for longer than it lasts."""
    ends = monotonic() + seconds
    await until(lambda: all(gateway.store.lease_ends > ends for gateway in opened))


async def test_a_locked_session_is_refused_by_name_and_every_other_goes_on_on_both_gateways(
    tmp_path: Path, url: str
) -> None:
    async with gateways(tmp_path, url, ScriptedModel(replies=echo), lease_s=LEASE_S) as opened:
        one, _ = opened
        numbers = [gateway.store.number for gateway in opened]
        await ended(one, (await one.submit("agent:main:s0", "first")).id)
        await talk_on_all(opened, "hello")
        with locking(url, row_of("s0")):
            refused = asyncio.create_task(_refused(one, "agent:main:s0"))
            for n in range(3):
                assert await talk_on_all(opened, f"during {n}") == [f"re: during {n}"] * len(OTHERS)
            assert "a row is locked by psql" in await refused
            await renewed_for(opened, LEASE_S)
            problems = (await examine(one.parts)).problems
            for gateway in opened:
                await gateway.store.check_writable()
        assert [problem.code for problem in problems if problem.code.startswith("database")] == ["database_locked"]
        run = await one.submit("agent:main:s0", "second")
        assert (await ended(one, run.id)).reply == "re: second"
        assert [gateway.store.number for gateway in opened] == numbers


async def _refused(gateway: Gateway, key: str) -> str:
    with pytest.raises(DatabaseLocked) as refused:
        await gateway.submit(key, "refused")
    return str(refused.value)


async def test_a_run_whose_session_is_locked_commits_its_reply_once_when_the_lock_is_gone_and_no_gateway_stands(
    tmp_path: Path, url: str
) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    asked: list[str] = []

    def reply(request: ModelRequest) -> Scripted:
        text = request.messages[-1].text
        asked.append(text)
        return Reply(text="done", gate=gate, reached=reached) if text == "work" else f"re: {text}"

    async with gateways(tmp_path, url, ScriptedModel(replies=reply), lease_s=LEASE_S) as opened:
        one, other = opened
        numbers = [gateway.store.number for gateway in opened]
        run = await one.submit("agent:main:s0", "work")
        await reached.wait()
        with locking(url, row_of("s0")):
            gate.set()
            await until(lambda: bool(one.store.driver.problems()))
            await renewed_for(opened, 2 * LEASE_S)
            assert await talk_on_all(opened, "during") == ["re: during"] * len(OTHERS)
            for gateway in opened:
                await gateway.store.check_writable()
            assert [live.id for live in await live_runs(other)] == [run.id]
        done: Run = await ended(other, run.id)
        assert (done.reply, done.crashes, asked.count("work")) == ("done", 0, 1)
        assert await texts_of(one, "agent:main:s0") == ["work", "done"]
        assert [gateway.store.number for gateway in opened] == numbers


async def test_a_locked_table_is_named_by_both_gateways_and_all_goes_on_afterwards_with_their_leases(
    tmp_path: Path, url: str
) -> None:
    async with gateways(tmp_path, url, ScriptedModel(replies=echo), lease_s=LEASE_S) as opened:
        numbers = [gateway.store.number for gateway in opened]
        await talk_on_all(opened, "hello")
        with locking(url, "LOCK TABLE sessions IN SHARE MODE"):
            words = await asyncio.gather(*(_refused(opened[n % 2], key) for n, key in enumerate(OTHERS)))
            await renewed_for(opened, LEASE_S)
        assert all("the table sessions is locked by psql" in said for said in words), words
        await until(lambda: not any(gateway.store.driver.problems() for gateway in opened))
        assert await talk_on_all(opened, "after") == ["re: after"] * len(OTHERS)
        assert [gateway.store.number for gateway in opened] == numbers


async def test_gateways_that_cannot_renew_their_lease_are_not_ready_until_they_can(tmp_path: Path, url: str) -> None:
    async with gateways(tmp_path, url, ScriptedModel(replies=echo), lease_s=LEASE_S) as opened:
        with locking(url, "SELECT number FROM processes FOR UPDATE"):
            await until(lambda: all(gateway.store.lease_ends <= monotonic() for gateway in opened))
            for gateway in opened:
                with pytest.raises(Unavailable):
                    await gateway.store.check_writable()
        await until(lambda: all(gateway.store.lease_ends > monotonic() for gateway in opened))
        for gateway in opened:
            await gateway.store.check_writable()
