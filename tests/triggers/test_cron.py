"""Cron jobs in a running gateway: by the clock, over restarts, one at a time, and where their replies go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.config.schema_doors import CronDeliver, CronJob
from backchannel.core.delivery.delivery import DeliveryState, Receipt
from backchannel.core.runs import RunState
from backchannel.errors import InvalidRequest, InvalidSchedule, UnknownAgent, UnknownChannel, UnknownModel
from tests.support.clocks import StageClock, moment
from tests.support.gateways import Heard, ended, texts_of
from tests.triggers.clockwork import Clockwork, all_seen_to, clockwork, job

pytestmark = pytest.mark.anyio
KEY = "agent:main:cron:j"
NIGHTLY = job("30 2 * * *", tz="Europe/Berlin")
FAR = {"channel": "far", "to": "C-1"}


def hours(day: str, count: int) -> list[str]:
    """List the beginnings of the hours of a day, in UTC."""
    return [f"{day}T{hour:02}:00" for hour in range(count)]


async def test_the_clocks_go_forward_and_the_job_fires_once_a_day(tmp_path: Path) -> None:
    async with clockwork(tmp_path, StageClock.held("2026-03-27T12:00"), NIGHTLY) as world:
        for day in ("2026-03-28", "2026-03-29", "2026-03-30"):
            await world.turn_to(*hours(day, 6))
        # Half past two did not happen on the 29th: it fired at three, which is one o'clock in UTC.
        assert await world.fired() == ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]


async def test_the_clocks_go_back_and_the_job_fires_once_a_day(tmp_path: Path) -> None:
    async with clockwork(tmp_path, StageClock.held("2026-10-23T12:00"), NIGHTLY) as world:
        for day in ("2026-10-24", "2026-10-25", "2026-10-26"):
            await world.turn_to(*hours(day, 6))
        # Half past two happened twice on the 25th, at half past midnight and half past one in UTC.
        assert await world.fired() == ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]


@pytest.mark.parametrize("dies", [False, True])
async def test_what_was_missed_while_no_gateway_ran_comes_once_when_it_is_back(tmp_path: Path, dies: bool) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, job("0 * * * *"), dies=dies) as world:
        await world.turn_to("2026-06-01T09:00")
    clock.turn_to("2026-06-03T17:20")
    async with clockwork(tmp_path, clock, job("0 * * * *"), dies=dies) as world:
        await world.rest()
        await world.turn_to("2026-06-03T17:59", "2026-06-03T18:00")
        assert await world.fired() == ["2026-06-01T09:00:00Z", "2026-06-01T10:00:00Z", "2026-06-03T18:00:00Z"]


async def test_a_run_that_was_interrupted_goes_on_and_what_was_missed_comes_after_it(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    held = ScriptedModel(replies=lambda request: Reply(text="never", gate=asyncio.Event()))
    async with clockwork(tmp_path, clock, job("every 10m"), model=held, dies=True) as world:
        heard = Heard(world.gateway)
        clock.turn_to("2026-06-01T08:10")
        await all_seen_to(world.gateway, clock)
        await heard.until(lambda: RunState.RUNNING in heard.states("cron:j:2026-06-01T08:10:00Z"))
    clock.turn_to("2026-06-01T08:55")
    async with clockwork(tmp_path, clock, job("every 10m")) as world:
        await world.rest()
        assert await world.fired() == ["2026-06-01T08:10:00Z", "2026-06-01T08:20:00Z"]
        assert await texts_of(world.gateway, KEY) == ["work", "re: work"] * 2


async def test_an_interval_keeps_its_beat_over_restarts(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    for at in ("08:07", "08:14", "08:21"):
        async with clockwork(tmp_path, clock, job("every 10m")) as world:
            await world.rest()
            await world.turn_to(f"2026-06-01T{at}")
    assert clock.ms == moment("2026-06-01T08:21")
    async with clockwork(tmp_path, clock, job("every 10m")) as world:
        assert await world.fired() == ["2026-06-01T08:10:00Z", "2026-06-01T08:20:00Z"]


async def test_a_job_that_is_still_at_work_is_not_started_again(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=lambda request: Reply(text="done", gate=gate))
    async with clockwork(tmp_path, StageClock.held("2026-06-01T08:00"), job("every 10m"), model=model) as world:
        for at in ("08:10", "08:20", "08:30"):
            world.clock.turn_to(f"2026-06-01T{at}")
            await all_seen_to(world.gateway, world.clock)
        gate.set()
        await world.rest()
        (found,) = await world.gateway.cron.list()
        assert found.stored.skipped == 2
        await world.turn_to("2026-06-01T08:40")
        assert await world.fired() == ["2026-06-01T08:10:00Z", "2026-06-01T08:40:00Z"]


async def test_one_time_comes_once_and_never_again(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    once = job("2026-06-01T11:00", tz="Europe/Berlin")
    async with clockwork(tmp_path, clock, once) as world:
        await world.turn_to("2026-06-01T08:59", "2026-06-01T09:00", "2026-06-02T09:00")
        assert await world.fired() == ["2026-06-01T09:00:00Z"]
    async with clockwork(tmp_path, clock, once) as world:
        await world.turn_to("2027-06-01T09:00")
        assert await world.fired() == ["2026-06-01T09:00:00Z"]


async def test_a_job_that_was_taken_out_of_the_configuration_fires_no_more_and_its_session_stays(
    tmp_path: Path,
) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, job("every 10m")) as world:
        await world.turn_to("2026-06-01T08:10")
    clock.turn_to("2026-06-01T09:00")
    async with clockwork(tmp_path, clock) as world:
        await world.turn_to("2026-06-01T10:00")
        assert await world.fired() == ["2026-06-01T08:10:00Z"]
        assert await texts_of(world.gateway, KEY) == ["work", "re: work"]
        assert await world.gateway.cron.list() == []


async def test_the_reply_goes_where_the_job_says_and_to_no_other_place(tmp_path: Path) -> None:
    deliver = {**FAR, "accountId": "a"}
    async with clockwork(tmp_path, StageClock.held("2026-06-01T08:00"), job("every 10m", deliver=deliver)) as world:
        await world.turn_to("2026-06-01T08:10")
        (receipt,) = await settled_receipts(world)
        assert receipt.delivery.state is DeliveryState.SENT
        (part,) = world.far.taken.values()
        assert (part.to, part.account_id, part.text) == ("C-1", "a", "re: work")
        session = await world.gateway.store.session(KEY)
        assert session is not None
        assert session.delivery_context is None


async def test_the_send_policy_is_asked_for_the_delivery_and_not_for_the_run(tmp_path: Path) -> None:
    deny = {"sendPolicy": {"rules": [{"action": "deny", "match": {"keyPrefix": "cron:"}}]}}
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock, job("every 10m", deliver=FAR), session=deny) as world:
        await world.turn_to("2026-06-01T08:10")
        run = (await world.gateway.store.runs(limit=1))[0]
        assert (run.state, run.reply) == (RunState.OK, "re: work")
        (receipt,) = await settled_receipts(world)
        assert receipt.delivery.state is DeliveryState.SUPPRESSED
        assert world.far.taken == {}


async def settled_receipts(world: Clockwork) -> list[Receipt]:
    """Wait until nothing is left to send, and read all receipts."""
    changed = asyncio.Event()
    unlisten = world.gateway.runtime.hub.listen(lambda event: changed.set())
    is_open = (DeliveryState.PENDING, DeliveryState.SENDING)
    async with asyncio.timeout(20):
        while True:
            receipts = await world.gateway.store.receipts(limit=10)
            if not any(receipt.delivery.state in is_open for receipt in receipts):
                unlisten()
                return receipts
            await changed.wait()
            changed.clear()


async def test_a_reply_that_says_there_is_nothing_to_say_is_not_delivered(tmp_path: Path) -> None:
    clock, model = StageClock.held("2026-06-01T08:00"), ScriptedModel(replies=lambda request: "NO_REPLY")
    async with clockwork(tmp_path, clock, job("every 10m", deliver=FAR), model=model) as world:
        await world.turn_to("2026-06-01T08:10")
        assert world.far.taken == {}


async def test_a_job_has_its_own_agent_model_and_time_limit(tmp_path: Path) -> None:
    agents = {"list": [{"id": "main", "model": "scripted/test"}, {"id": "writer", "model": "scripted/none"}]}
    own = job("every 10m", agentId="Writer", model="scripted/test", timeoutSeconds=30)
    async with clockwork(tmp_path, StageClock.held("2026-06-01T08:00"), own, agents=agents) as world:
        await world.turn_to("2026-06-01T08:10")
        run = (await world.gateway.store.runs(limit=1))[0]
        assert (run.session_key, run.state) == ("agent:writer:cron:j", RunState.OK)
        assert (run.model, run.timeout_s) == ("scripted/test", 30)


async def test_a_job_has_its_own_fallbacks(tmp_path: Path) -> None:
    own = job("every 10m", model={"primary": "scripted/gone", "fallbacks": ["scripted/test"]})
    async with clockwork(tmp_path, StageClock.held("2026-06-01T08:00"), own) as world:
        await world.turn_to("2026-06-01T08:10")
        run = (await world.gateway.store.runs(limit=1))[0]
        assert (run.state, run.answered_by) == (RunState.OK, "scripted/test")


async def test_what_looks_like_a_command_is_text_to_the_model(tmp_path: Path) -> None:
    async with clockwork(tmp_path, StageClock.held("2026-06-01T08:00"), job("every 10m", message="/reset")) as world:
        await world.turn_to("2026-06-01T08:10")
        assert await texts_of(world.gateway, KEY) == ["/reset", "re: /reset"]


async def test_an_agent_that_is_gone_is_an_error_of_each_firing_and_stops_nothing_else(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    agents = {"list": [{"id": "main", "model": "scripted/test"}, {"id": "writer", "model": "scripted/test"}]}
    async with clockwork(tmp_path, clock, agents=agents) as world:
        await world.gateway.cron.add(CronJob(id="j", schedule="every 10m", message="work", agent_id="writer"))
    async with clockwork(tmp_path, clock, job("every 10m", id="other")) as world:
        await world.turn_to("2026-06-01T08:10", "2026-06-01T08:20")
        jobs = {found.stored.id: found for found in await world.gateway.cron.list()}
        gone, other = jobs["j"].last_run, jobs["other"].last_run
        assert gone is not None
        assert other is not None
        assert (gone.state, gone.error_code, other.state) == (RunState.ERROR, "unknown_agent", RunState.OK)
        assert jobs["j"].stored.skipped == 0
        assert jobs["j"].stored.next_at == moment("2026-06-01T08:30")
        with pytest.raises(UnknownAgent, match="no agent 'writer' is configured"):
            await world.gateway.cron.run("j")


async def test_a_job_that_is_added_while_the_gateway_runs_fires_and_stays(tmp_path: Path) -> None:
    clock = StageClock.held("2026-06-01T08:00")
    async with clockwork(tmp_path, clock) as world:
        await world.gateway.cron.add(CronJob(id="j", schedule="every 10m", message="work"))
        await world.turn_to("2026-06-01T08:10")
        run = await world.gateway.cron.run("j")
        assert run is not None
        assert (await ended(world.gateway, run.id)).reply == "re: work"
    async with clockwork(tmp_path, clock) as world:
        await world.turn_to("2026-06-01T08:20")
        assert await world.fired() == ["2026-06-01T08:10:00Z", "2026-06-01T08:10:00Z#2", "2026-06-01T08:20:00Z"]
        await world.gateway.cron.remove("j")
        await world.turn_to("2026-06-01T09:00")
        assert len(await world.fired()) == 3


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"id": "a b"}, InvalidRequest, "id: got 'a b', expected letters, digits"),
        ({"id": "x" * 129}, InvalidRequest, "at most 128"),
        ({"id": "j\n"}, InvalidRequest, "expected letters"),
        ({"message": " \n"}, InvalidRequest, "message: it is empty"),
        ({"schedule": "0 0 30 2 *"}, InvalidSchedule, "no such day ever comes"),
        ({"schedule": "2020-01-01"}, InvalidSchedule, "has passed"),
        ({"tz": "Mars/Base"}, InvalidSchedule, "expected a time zone"),
        ({"agent_id": "nobody"}, UnknownAgent, "no agent 'nobody'"),
        ({"model": "scripted/other"}, UnknownModel, "scripted/other"),
        ({"deliver": CronDeliver(channel="near", to="C")}, UnknownChannel, r"no channel 'near' .* \(there are: far\)"),
    ],
)
async def test_a_job_that_cannot_work_is_refused_and_nothing_is_kept(
    tmp_path: Path, changed: dict[str, Any], error: type[Exception], said: str
) -> None:
    good: dict[str, Any] = {"id": "j", "schedule": "every 10m", "message": "work"}
    async with clockwork(tmp_path, StageClock.held("2026-06-01T08:00")) as world:
        with pytest.raises(error, match=said):
            await world.gateway.cron.add(CronJob(**{**good, **changed}))
        assert await world.gateway.cron.list() == []
