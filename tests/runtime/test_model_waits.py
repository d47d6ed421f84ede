"""Models in a row, and runs that wait for one: who is asked, who waits, and what people see of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.core.models.model_wait import read_wait
from backchannel.core.runs import Run, RunState
from backchannel.core.sessions import SessionPatch
from backchannel.gateway.app import Gateway
from tests.support.clocks import StageClock
from tests.support.gateways import MAIN, dying, ended, running, stored, texts_of
from tests.support.resting import until

pytestmark = pytest.mark.anyio

START = "2026-05-04T12:00:00"
MAIN_KEY = SessionKey.parse(MAIN)


class Provider:
    """A model that answers while it is up. Every request is counted."""

    def __init__(self, ref: str = "scripted/test") -> None:
        self.is_up = False
        self.failure = ModelFailed("overloaded", retryable=True)
        self.asked: list[str] = []
        self.model = ScriptedModel(ref, replies=self._reply)

    def _reply(self, request: ModelRequest) -> Scripted:
        said = next(m.text for m in reversed(request.messages) if m.role is Role.USER)
        self.asked.append(said)
        return f"{self.model.ref.partition('/')[0]}: {said}" if self.is_up else self.failure


def row(*fallbacks: str, **defaults: Any) -> dict[str, Any]:
    model = {"primary": "scripted/test", "fallbacks": list(fallbacks)}
    return {"agents": {"list": [{"id": "main", "model": model}], "defaults": defaults}}


async def waiting(gateway: Gateway, run_id: str) -> Run:
    async def waits() -> bool:
        return (await stored(gateway, run_id)).waits_for_model

    await asyncio.wait_for(until(gateway, waits), 20)
    return await stored(gateway, run_id)


class TurnedClock(StageClock):
    """A clock whose short sleeps take no time, and whose long ones wait until it is turned."""

    async def sleep(self, seconds: float) -> None:
        if seconds <= 30:
            self.slept.append(seconds)
            self._ahead_s += seconds
            await asyncio.sleep(0)
        else:
            await super().sleep(seconds)


@pytest.fixture
def clock() -> StageClock:
    return TurnedClock.held(START)


async def test_a_fallback_answers_while_the_primary_is_down_and_the_primary_comes_back(
    tmp_path: Path, clock: StageClock
) -> None:
    first, second = Provider(), Provider("other/model")
    second.is_up = True
    async with running(tmp_path, first.model, second.model, config=row("other/model"), clock=clock) as gateway:
        assert await gateway.ask("main", "one") == "other: one"
        assert (await gateway.store.runs(limit=1))[0].answered_by == "other/model"
        assert await gateway.ask("main", "two") == "other: two"
        assert first.asked == ["one"] * 5, "it is left alone by the next run"
        first.is_up = True
        clock.move_on(11)
        assert await gateway.ask("main", "three") == "scripted: three"
        assert await texts_of(gateway) == ["one", "other: one", "two", "other: two", "three", "scripted: three"]


async def test_a_failure_for_good_goes_to_the_next_model_and_only_then_ends_the_run(
    tmp_path: Path, clock: StageClock
) -> None:
    first, second = Provider(), Provider("other/model")
    first.failure = ModelFailed("no such key", retryable=False, is_models_own=True)
    second.failure = ModelFailed("no pictures here", retryable=False)
    async with running(tmp_path, first.model, second.model, config=row("other/model"), clock=clock) as gateway:
        run = await ended(gateway, (await gateway.submit("main", "hi")).id)
        assert (run.state, run.error_code) == (RunState.ERROR, "model_failed")
        assert run.error == "no such key; other/model: no pictures here"
        first.is_up = True
        assert (await ended(gateway, (await gateway.submit("main", "again")).id)).state is RunState.OK, "it was mended"
    assert (len(first.asked), len(second.asked)) == (2, 2)


async def test_a_run_waits_for_its_model_keeps_its_lane_and_is_answered_in_order(
    tmp_path: Path, clock: StageClock
) -> None:
    provider = Provider()
    async with running(tmp_path, provider.model, config=row(), clock=clock) as gateway:
        await gateway.submit("main", "a", run_id="a")
        run = await waiting(gateway, "a")
        wait = read_wait(run)
        assert wait is not None and (wait.model, wait.error, wait.tries) == ("scripted/test", "overloaded", 1)
        assert run.resume_at is not None and 60_000 <= run.resume_at - clock.ms <= 67_000
        await gateway.submit("main", "b", run_id="b")
        session = await gateway.store.session(MAIN)
        assert session is not None and (session.queued, session.running_run) == (2, None)
        assert await gateway.store.start_next(MAIN) is None, "the lane is kept"
        clock.move_on(70)
        await until(gateway, lambda: _tried(gateway, "a", 2))
        assert len(provider.asked) == 6, "one probe"
        provider.is_up = True
        clock.move_on(400)
        assert (await ended(gateway, "b")).state is RunState.OK
        assert await texts_of(gateway) == ["a", "scripted: a", "b", "scripted: b"]
        assert (await stored(gateway, "a")).waits_for is None


async def _tried(gateway: Gateway, run_id: str, tries: int) -> bool:
    run = await stored(gateway, run_id)
    wait = read_wait(run)
    return run.waits_for_model and wait is not None and wait.tries == tries


async def test_a_run_that_has_waited_long_enough_ends_with_the_providers_words(
    tmp_path: Path, clock: StageClock
) -> None:
    provider = Provider()
    async with running(tmp_path, provider.model, config=row(retryForHours=0.05), clock=clock) as gateway:
        await gateway.submit("main", "a", run_id="a")
        for minutes in (2, 3, 4):
            await until(gateway, lambda: _waits_or_ended(gateway, "a"))
            clock.move_on(60 * minutes)
        run = await ended(gateway, "a")
        assert (run.state, run.error_code, run.error) == (RunState.ERROR, "model_failed", "overloaded")


async def _waits_or_ended(gateway: Gateway, run_id: str) -> bool:
    run = await stored(gateway, run_id)
    return run.waits_for_model or run.is_finished


@pytest.mark.parametrize(("asked_s", "least_s"), [(300.0, 300), (math.inf, 3600)])
async def test_a_long_pause_that_the_provider_asks_for_is_kept(
    tmp_path: Path, clock: StageClock, asked_s: float, least_s: int
) -> None:
    provider = Provider()
    provider.failure = ModelFailed("slow down", retryable=True, retry_after_s=asked_s)
    async with running(tmp_path, provider.model, config=row(), clock=clock) as gateway:
        await gateway.submit("main", "a", run_id="a")
        run = await waiting(gateway, "a")
        assert len(provider.asked) == 1, "the quick retries end at once"
        assert run.resume_at is not None and 1000 <= (run.resume_at - clock.ms) / least_s <= 1101


Move = Callable[[Gateway, Provider], Any]


async def _retry(gateway: Gateway, provider: Provider) -> None:
    provider.is_up = True
    await gateway.store.retry_run("a")


async def _reset(gateway: Gateway, provider: Provider) -> None:
    provider.is_up = True
    await gateway.store.reset_session(MAIN_KEY)


async def _other_model(gateway: Gateway, provider: Provider) -> None:
    await gateway.store.patch_session(MAIN_KEY, SessionPatch(model="other/model"))


@pytest.mark.parametrize("move", [_retry, _reset, _other_model], ids=["retried", "reset", "another model"])
async def test_a_waiting_run_moves_on_at_once_when_a_person_lets_it(
    tmp_path: Path, clock: StageClock, move: Move
) -> None:
    first, second = Provider(), Provider("other/model")
    second.is_up = True
    async with running(tmp_path, first.model, second.model, config=row(), clock=clock) as gateway:
        await gateway.submit("main", "a", run_id="a")
        await waiting(gateway, "a")
        await move(gateway, first)
        run = await ended(gateway, "a")
        assert run.state is RunState.OK
        session = await gateway.store.session(MAIN)
        assert session is not None and session.session_id == run.session_id
        assert (await texts_of(gateway))[0] == "a"
        assert not await gateway.store.awaited_providers()


async def test_a_stopped_run_ends_and_the_next_message_goes_on(tmp_path: Path, clock: StageClock) -> None:
    provider = Provider()
    async with running(tmp_path, provider.model, config=row(), clock=clock) as gateway:
        await gateway.submit("main", "a", run_id="a")
        await waiting(gateway, "a")
        await gateway.submit("main", "b", run_id="b")
        provider.is_up = True
        clock.move_on(11)
        assert await gateway.runtime.abort(MAIN, None) == ["a"]
        assert (await stored(gateway, "a")).error == "aborted while it waited for a model"
        assert (await ended(gateway, "b")).state is RunState.OK


async def test_a_waiting_run_goes_on_after_a_power_cut(tmp_path: Path, clock: StageClock) -> None:
    provider = Provider()
    async with dying(tmp_path, provider.model, config=row(), clock=clock) as gateway:
        await gateway.submit("main", "a", run_id="a")
        await waiting(gateway, "a")
    provider.is_up = True
    async with running(tmp_path, provider.model, config=row(), clock=clock) as gateway:
        await waiting(gateway, "a")
        clock.move_on(70)
        assert (await ended(gateway, "a")).reply == "scripted: a"
        assert await texts_of(gateway) == ["a", "scripted: a"]


async def test_a_fleet_of_waiting_runs_comes_back_by_doubling(tmp_path: Path, clock: StageClock) -> None:
    provider, count = Provider(), 9
    async with running(tmp_path, provider.model, config=row(), clock=clock) as gateway:
        names = [f"r{n}" for n in range(count)]
        for name in names:
            await gateway.submit(f"agent:main:{name}", name, run_id=name)
        for name in names:
            await waiting(gateway, name)
        asked = len(provider.asked)
        provider.is_up = True
        await gateway.store.retry_run("r8")
        runs: Sequence[Run] = [await ended(gateway, name) for name in names]
        assert all(run.reply == f"scripted: {run.id}" for run in runs)
        assert len(provider.asked) == asked + count, "each was asked once, and none before its turn"
