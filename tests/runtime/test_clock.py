"""A clock that is set, forward and back, and a machine that slept: what was to happen later happens in its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.contracts import ModelFailed
from backchannel.core.delivery.channels import ChannelBusy, OutboundPart, Sent
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.sessions import Address
from backchannel.gateway.app import Gateway
from backchannel.runtime.clocks import ClockWatch, SystemClock
from backchannel.storage.clock import BELIEVED_FROM_MS
from backchannel.tools.rows import duration_ms
from tests.support.clocks import StageClock, moment
from tests.support.far_channel import FarChannel
from tests.support.gateways import MAIN, die_in, ended, running, session_of, stored
from tests.triggers.clockwork import Clockwork, clockwork, echo, job

pytestmark = pytest.mark.anyio
TODAY, TOMORROW = "2026-06-01T12:00", "2026-06-02T12:00"


async def until(clock: StageClock, is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wake whoever looks at the clock, again and again, until it is so."""
    async with asyncio.timeout(20):
        while not await is_so():
            clock.stir()
            await asyncio.sleep(0)


async def pulled_in(world: Clockwork) -> None:
    """Wait until the job comes within the hour."""

    async def is_near() -> bool:
        next_at = (await world.gateway.store.cron_job("j")).stored.next_at
        return next_at is not None and next_at <= world.clock.ms + 3_600_000

    await until(world.clock, is_near)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("schedule", "catches_up", "later", "times"),
    [
        ("every 2s", "12:00:02Z", ["12:00:02", "12:00:04"], ["12:00:02Z", "12:00:04Z"]),
        ("0 * * * *", "13:00:00Z", ["13:00:00", "14:00:00"], ["13:00:00Z", "14:00:00Z"]),
    ],
)
async def test_a_job_keeps_its_pace_when_the_clock_goes_a_day_ahead_and_back(
    tmp_path: Path, restarts: bool, schedule: str, catches_up: str, later: list[str], times: list[str]
) -> None:
    clock = StageClock.held(TODAY)
    async with clockwork(tmp_path, clock, job(schedule)) as world:
        clock.set_to("2026-06-02T12:00:01")
        await world.rest()
        assert await world.fired() == [f"2026-06-01T{catches_up}"]
        if not restarts:
            clock.set_to(TODAY)
            await pulled_in(world)
            await world.turn_to(*(f"2026-06-01T{at}" for at in later))
            # The first of these times has come, by the clock that was ahead: it does not come again.
            assert await world.fired() == [f"2026-06-01T{at}" for at in times]
            return
    clock.set_to(TODAY)
    async with clockwork(tmp_path, clock, job(schedule)) as world:
        await world.turn_to(*(f"2026-06-01T{at}" for at in later))
        assert await world.fired() == [f"2026-06-01T{at}" for at in times]


async def test_times_that_came_by_a_clock_that_was_ahead_do_not_come_again(tmp_path: Path) -> None:
    clock = StageClock.held(TODAY)
    async with clockwork(tmp_path, clock, job("0 * * * *")) as world:
        clock.set_to("2026-06-01T14:30")
        await world.rest()
        await world.turn_to("2026-06-01T15:00")
        clock.set_to("2026-06-01T12:30")
        await pulled_in(world)
        await world.turn_to(*(f"2026-06-01T{hour}:00" for hour in range(13, 18)))
        fired = [at[11:13] for at in await world.fired()]
        assert fired == ["13", "15", "14", "16", "17"]
        assert (await world.gateway.store.cron_job("j")).stored.skipped == 0


async def test_a_job_that_was_added_by_a_clock_that_was_ahead_begins_at_once(tmp_path: Path) -> None:
    clock = StageClock.held(TOMORROW)
    async with clockwork(tmp_path, clock, job("every 10m")) as world:
        clock.set_to("2026-06-01T12:05")
        await pulled_in(world)
        await world.turn_to("2026-06-01T12:10", "2026-06-01T12:20")
        assert await world.fired() == ["2026-06-01T12:10:00Z", "2026-06-01T12:20:00Z"]


async def test_a_clock_that_begins_in_1970_moves_nothing(tmp_path: Path) -> None:
    clock = StageClock.held(TODAY)
    async with clockwork(tmp_path, clock, job("0 9 * * *")) as world:
        await world.gateway.submit("main", "hi")
        await world.rest()
    clock.set_to("1970-01-01T00:01")
    assert clock.ms < BELIEVED_FROM_MS
    async with clockwork(tmp_path, clock, job("0 9 * * *")) as world:
        await world.rest()
        assert (await world.gateway.store.cron_job("j")).stored.next_at == moment("2026-06-02T09:00")
        assert (await session_of(world.gateway)).updated_at == moment(TODAY)
        clock.set_to("2026-06-01T13:00")
        await world.rest()
        await world.turn_to("2026-06-02T09:00")
        assert (await world.fired())[1:] == ["2026-06-02T09:00:00Z"]


# Deliveries


class Busy(FarChannel):
    """A platform that is busy for as many attempts as it is told."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.attempts = times, 0

    async def send(self, part: OutboundPart) -> Sent:
        self.attempts += 1
        if self.attempts <= self.times:
            raise ChannelBusy("not now")
        return await super().send(part)


def gateway_on(state: Path, clock: StageClock, channel: FarChannel) -> AbstractAsyncContextManager[Gateway]:
    return running(state, ScriptedModel(replies=echo), equip=lambda gateway: gateway.add_channel(channel), clock=clock)


async def post(gateway: Gateway) -> str:
    address = Address(channel="far", to="C-1")
    receipt = await gateway.store.post(Post(session_key=MAIN, address=address, text="hello"))
    return receipt.delivery.id


async def state_of(gateway: Gateway, delivery_id: str) -> DeliveryState:
    return (await gateway.store.receipt(delivery_id)).delivery.state


async def settled(gateway: Gateway, delivery_id: str, clock: StageClock) -> DeliveryState:
    async def is_settled() -> bool:
        return not (await state_of(gateway, delivery_id)).is_open

    await until(clock, is_settled)
    return await state_of(gateway, delivery_id)


async def attempts(gateway: Gateway, channel: Busy, count: int, delivery_id: str, clock: StageClock) -> None:
    """Wait until so many attempts were made and what came of the last is committed."""

    async def are_made() -> bool:
        return channel.attempts >= count and await state_of(gateway, delivery_id) is not DeliveryState.SENDING

    await until(clock, are_made)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_retry_comes_in_its_time_when_the_clock_goes_a_day_ahead_and_back(
    tmp_path: Path, restarts: bool
) -> None:
    clock, channel = StageClock.held(TODAY), Busy(2)
    async with gateway_on(tmp_path, clock, channel) as gateway:
        delivery_id = await post(gateway)
        await attempts(gateway, channel, 1, delivery_id, clock)
        clock.set_to(TOMORROW)
        await attempts(gateway, channel, 2, delivery_id, clock)
        clock.set_to(TODAY)
        if not restarts:

            async def is_near() -> bool:
                due_at = (await gateway.store.receipt(delivery_id)).delivery.due_at
                return due_at == moment("2026-06-01T12:00:02")

            await until(clock, is_near)
            clock.turn_to("2026-06-01T12:00:02")
            assert await settled(gateway, delivery_id, clock) is DeliveryState.SENT
            return
    async with gateway_on(tmp_path, clock, channel) as gateway:
        assert await state_of(gateway, delivery_id) is DeliveryState.PENDING
        clock.turn_to("2026-06-01T12:00:02")
        assert await settled(gateway, delivery_id, clock) is DeliveryState.SENT


async def test_a_machine_that_slept_for_hours_goes_on_with_a_delivery(tmp_path: Path) -> None:
    clock, channel = StageClock.held(TODAY), Busy(4)
    async with gateway_on(tmp_path, clock, channel) as gateway:
        delivery_id = await post(gateway)
        for count in range(1, 5):
            await attempts(gateway, channel, count, delivery_id, clock)
            clock.set_to(f"2026-06-01T{12 + 2 * count}:00")
        assert await settled(gateway, delivery_id, clock) is DeliveryState.SENT
        assert channel.attempts == 5


async def test_a_delivery_is_still_given_up_when_its_waits_come_to_an_hour(tmp_path: Path) -> None:
    class Asking(Busy):
        async def send(self, part: OutboundPart) -> Sent:
            self.attempts += 1
            raise ChannelBusy("not now", 1200)

    clock, channel = StageClock.held(TODAY), Asking(0)
    async with gateway_on(tmp_path, clock, channel) as gateway:
        delivery_id = await post(gateway)
        for count in range(1, 4):
            await attempts(gateway, channel, count, delivery_id, clock)
            clock.turn_to(f"2026-06-01T{12 + count}:00")
        assert await settled(gateway, delivery_id, clock) is DeliveryState.FAILED
        assert channel.attempts == 4


# Runs and sessions


async def test_a_run_never_ends_before_it_started(tmp_path: Path) -> None:
    clock, goes_on, is_asked = StageClock.held(TOMORROW), asyncio.Event(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="done", gate=goes_on, reached=is_asked)])
    async with running(tmp_path, model, clock=clock) as gateway:
        run = await gateway.submit("main", "hi")
        await asyncio.wait_for(is_asked.wait(), 20)
        clock.set_to(TODAY)
        goes_on.set()
        await ended(gateway, run.id)
        run = await stored(gateway, run.id)
        assert run.started_at is not None
        assert run.ended_at is not None
        assert run.ended_at >= run.started_at


@pytest.mark.parametrize("restarts", [False, True])
async def test_when_a_run_that_is_set_aside_comes_again_is_told_rightly_after_the_clock_was_set_back(
    tmp_path: Path, restarts: bool
) -> None:
    clock = StageClock.held(TOMORROW)
    await die_in(tmp_path, "r", times=3, clock=clock)

    async def is_near() -> bool:
        run = await stored(gateway, "r")
        return run.is_set_aside and run.resume_at == moment(TODAY) + 60_000

    async with running(tmp_path, ScriptedModel(replies=["done"]), clock=clock) as gateway:
        await until(clock, lambda: _is_set_aside(gateway, "r"))
        if not restarts:
            clock.set_to(TODAY)
            await until(clock, is_near)
            clock.move_on(60)
            assert (await ended(gateway, "r")).reply == "done"
            return
    clock.set_to(TODAY)
    async with running(tmp_path, ScriptedModel(replies=["done"]), clock=clock) as gateway:
        await until(clock, is_near)


async def _is_set_aside(gateway: Gateway, run_id: str) -> bool:
    return (await stored(gateway, run_id)).is_set_aside


async def test_what_was_used_last_is_listed_first_after_the_clock_was_set_back(tmp_path: Path) -> None:
    clock, model = StageClock.held(TOMORROW), ScriptedModel(replies=echo)
    async with running(tmp_path, model, clock=clock) as gateway:
        await gateway.ask("agent:main:hook:first", "hi")
    clock.set_to(TODAY)
    async with running(tmp_path, model, clock=clock) as gateway:
        clock.turn_to("2026-06-01T12:00:01")
        await gateway.ask("agent:main:hook:second", "hi")
        listed = await gateway.tools().sessions_list()
        assert [row["key"] for row in listed["sessions"]] == ["agent:main:hook:second", "agent:main:hook:first"]


# The watch


def test_only_a_clock_that_was_set_back_is_noticed_and_once() -> None:
    clock = StageClock.held(TODAY)
    watch = ClockWatch(clock)
    clock.turn_to("2026-06-01T18:00")
    assert not watch.was_set_back()
    clock.set_to("2026-06-01T17:59:59")
    assert watch.was_set_back()
    assert not watch.was_set_back()
    clock.set_to(TOMORROW)
    assert not watch.was_set_back()
    clock.set_to("2026-06-02T11:59:59.9")
    assert not watch.was_set_back()


def test_the_real_clock_is_not_taken_for_one_that_was_set() -> None:
    watch = ClockWatch(SystemClock())
    assert not any(watch.was_set_back() for _ in range(1000))


async def test_the_time_between_a_failure_and_its_retry_is_no_time_that_the_run_took(tmp_path: Path) -> None:
    clock = StageClock.held(TODAY)
    model = ScriptedModel(replies=[ModelFailed("no", retryable=False), "hi"])
    async with running(tmp_path, model, clock=clock) as gateway:
        await gateway.submit("main", "hello", run_id="r")
        await ended(gateway, "r")
        clock.move_on(18)
        await gateway.store.retry_run("r")
        run = await ended(gateway, "r")
        assert run.ended_at is not None and run.started_at is not None
        assert (run.ended_at - run.started_at, duration_ms(run)) == (18_000, 0)
