"""Waiting for runs: any number of waiters, at any time, also long after."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.contracts import ModelFailed
from backchannel.core.runs import RunState
from backchannel.errors import RunNotFound, ShuttingDown
from backchannel.gateway.app import RunFailed
from tests.support.gateways import MAIN, ended, running, waiters

pytestmark = pytest.mark.anyio


async def test_a_run_that_ended_long_ago_is_returned_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, ScriptedModel(replies=["done"])) as gateway:
        await gateway.ask("main", "go", run_id="r")
    async with running(tmp_path) as gateway, asyncio.timeout(20):
        run = await gateway.runtime.wait("r", 3600)
        assert (run.state, run.reply) == (RunState.OK, "done")
        assert run.started_at is not None and run.ended_at is not None
        assert waiters(gateway) == 0


async def test_a_run_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        for timeout_s in (0, 10):
            with pytest.raises(RunNotFound, match="'nope'"):
                await gateway.runtime.wait("nope", timeout_s)
        assert waiters(gateway) == 0


@pytest.mark.parametrize("timeout_s", [0, -1, 0.01])
async def test_a_wait_that_ends_first_tells_the_run_as_it_is(tmp_path: Path, timeout_s: float) -> None:
    model = ScriptedModel(replies=[Reply(text="never", gate=asyncio.Event())])
    async with running(tmp_path, model) as gateway:
        await gateway.submit("main", "go", run_id="active")
        await gateway.submit("main", "go", run_id="queued")
        assert (await gateway.runtime.wait("active", timeout_s)).state is RunState.RUNNING
        assert (await gateway.runtime.wait("queued", timeout_s)).state is RunState.QUEUED
        assert waiters(gateway) == 0


async def test_all_who_wait_hear_of_the_end(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="done", gate=gate)])
    async with running(tmp_path, model) as gateway:
        await gateway.submit("main", "go", run_id="r")
        waits = [asyncio.create_task(gateway.runtime.wait("r", 60)) for _ in range(500)]
        while waiters(gateway) < 500:
            await gateway.store.run_counts()
        gate.set()
        async with asyncio.timeout(20):
            assert {run.reply for run in await asyncio.gather(*waits)} == {"done"}
        assert waiters(gateway) == 0


async def test_a_waiter_that_goes_away_leaves_nothing_and_disturbs_nobody(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="done", gate=gate)])
    async with running(tmp_path, model) as gateway:
        await gateway.submit("main", "go", run_id="r")
        waits = [asyncio.create_task(gateway.runtime.wait("r", 60)) for _ in range(10)]
        while waiters(gateway) < 10:
            await gateway.store.run_counts()
        for wait in waits[:9]:
            wait.cancel()
        await asyncio.gather(*waits[:9], return_exceptions=True)
        assert waiters(gateway) == 1
        gate.set()
        assert (await waits[9]).reply == "done"
        assert waiters(gateway) == 0


async def test_a_wait_goes_through_queue_start_and_end(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="one", gate=gate), "two"])
    async with running(tmp_path, model) as gateway:
        await gateway.submit("main", "first")
        await gateway.submit("main", "second", run_id="r")
        wait = asyncio.create_task(gateway.runtime.wait("r", 60))
        gate.set()
        async with asyncio.timeout(20):
            assert (await wait).reply == "two"


@pytest.mark.parametrize("which", ["active", "queued"])
async def test_an_abort_ends_the_wait(tmp_path: Path, which: str) -> None:
    model = ScriptedModel(replies=[Reply(text="never", gate=asyncio.Event())])
    async with running(tmp_path, model) as gateway:
        await gateway.submit("main", "go", run_id="active")
        await gateway.submit("main", "go", run_id="queued")
        wait = asyncio.create_task(gateway.runtime.wait(which, 60))
        await model.asked()
        await gateway.runtime.abort(MAIN, which)
        async with asyncio.timeout(20):
            assert (await wait).state is RunState.ABORTED


async def test_a_run_that_ends_while_somebody_begins_to_wait_is_not_missed(tmp_path: Path) -> None:
    model = ScriptedModel(replies=lambda request: "done")
    async with running(tmp_path, model) as gateway:
        for n in range(100):
            await gateway.submit("main", "go", run_id=f"r{n}")
            for _ in range(n % 10):
                await asyncio.sleep(0)
            await ended(gateway, f"r{n}")
        assert waiters(gateway) == 0


async def test_whoever_waits_for_a_retried_run_hears_of_its_second_end(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=[ModelFailed("no", retryable=False), Reply(text="done", gate=gate)])
    async with running(tmp_path, model) as gateway:
        with pytest.raises(RunFailed, match="no"):
            await gateway.ask("main", "go", run_id="r")
        await gateway.store.retry_run("r")
        wait = asyncio.create_task(gateway.runtime.wait("r", 60))
        await model.asked(2)
        assert not wait.done()
        gate.set()
        async with asyncio.timeout(20):
            assert (await wait).reply == "done"


async def test_asking_tells_how_the_run_ended(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[Reply(text="never", gate=asyncio.Event())])
    async with running(tmp_path, model) as gateway:
        with pytest.raises(RunFailed) as failed:
            await gateway.ask("main", "go", timeout_s=0.01, run_id="r")
        assert failed.value.run.state is RunState.RUNNING
        assert waiters(gateway) == 0


async def test_a_gateway_that_stops_sends_those_who_wait_away(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[Reply(text="never", gate=asyncio.Event())])
    async with running(tmp_path, model) as gateway:
        await gateway.submit("main", "go", run_id="r")
        wait = asyncio.create_task(gateway.runtime.wait("r", 600))
        await model.asked()
    async with asyncio.timeout(20):
        with pytest.raises(ShuttingDown):
            await wait
        with pytest.raises(ShuttingDown):
            await gateway.runtime.wait("r", 600)
    assert waiters(gateway) == 0
