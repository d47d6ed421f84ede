"""Gateways whose clocks are wrong: all count by the clock of the database, and say so when theirs differs."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.config.load import config_from
from backchannel.config.schedules import show_moment
from backchannel.core.messages import decode_message
from backchannel.core.sessions import SessionFilter
from backchannel.gateway.app import Gateway
from backchannel.gateway.condition import examine
from backchannel.runtime.clocks import NOTICED_S, SystemClock
from tests.cluster.gateways import LEASE_S, execute, knows, until
from tests.cluster.lives import Gateways, check_done_once
from tests.support.clocks import AheadClock
from tests.support.gateways import CONFIG
from tests.support.postgres import new_database

pytestmark = pytest.mark.anyio

HOUR_S = 3600.0
_NUMBERS = itertools.count()


async def opened(exits: AsyncExitStack, folder: Path, url: str, ahead_s: float, **config: Any) -> Gateway:
    """Open a gateway on a machine whose clock is so far ahead."""
    shared = {"database": {"url": url}, "cluster": {"leaseSeconds": LEASE_S}}
    state = folder / f"g{next(_NUMBERS)}"
    gateway = Gateway(config_from({**CONFIG, **shared, **config}, {}, state=state), clock=AheadClock(ahead_s))
    gateway.add_model(ScriptedModel(replies=lambda request: "fine"))
    return await exits.enter_async_context(gateway)


async def say(gateway: Gateway, session: str) -> None:
    run = await gateway.submit(session, "hello")
    await gateway.runtime.wait(run.id, 20)


async def listed(gateway: Gateway) -> list[tuple[str, int]]:
    rows = await gateway.store.sessions(SessionFilter(), after=None, limit=10)
    return [(row.key, row.updated_at) for row in rows]


async def problem(gateway: Gateway) -> str | None:
    found = [each.message for each in (await examine(gateway.parts)).problems if each.code == "clock_differs"]
    return found[0] if found else None


@pytest.mark.parametrize(("ahead_s", "way"), [(-HOUR_S, "3600.0 s behind"), (HOUR_S, "3600.0 s ahead of")])
async def test_a_gateway_whose_clock_is_wrong_starts_and_moves_nobody(
    tmp_path: Path, url: str, ahead_s: float, way: str
) -> None:
    cron = {"jobs": [{"id": "later", "schedule": "every 1h", "message": "go"}]}
    async with AsyncExitStack() as exits:
        right = await opened(exits, tmp_path, url, 0, cron=cron)
        for name in ("first", "second", "third"):
            await say(right, f"agent:main:{name}")
        before, jobs = await listed(right), execute(url, "SELECT next_at FROM cron_jobs")
        wrong = await opened(exits, tmp_path, url, ahead_s, cron=cron)
        await knows(right, 2)
        assert await listed(right) == before
        assert execute(url, "SELECT next_at FROM cron_jobs") == jobs
        await say(wrong, "agent:main:fourth")
        assert [key for key, _ in await listed(right)] == [
            f"agent:main:{n}" for n in ("fourth", "third", "second", "first")
        ]
        assert await problem(right) is None
        assert way in (await problem(wrong) or "")


async def test_a_gateway_that_is_ahead_and_has_the_timers_fires_no_job_early(tmp_path: Path, url: str) -> None:
    soon = show_moment((int(time.time()) + 600) * 1000)
    jobs = [{"id": "now", "schedule": "every 1s", "message": "go"}, {"id": "later", "schedule": soon, "message": "go"}]
    async with AsyncExitStack() as exits:
        await opened(exits, tmp_path, url, HOUR_S, cron={"jobs": jobs})
        await until(lambda: execute(url, "SELECT count(*) > 1 FROM runs WHERE kind = 'cron'") == [(True,)])
        assert execute(url, "SELECT fired_at FROM cron_jobs WHERE id = 'later'") == [(None,)]


async def test_times_in_a_transcript_go_forwards_whoever_writes_and_however_clocks_are_set(
    tmp_path: Path, url: str
) -> None:
    async with AsyncExitStack() as exits:
        gateways = [await opened(exits, tmp_path, url, ahead_s) for ahead_s in (0, -HOUR_S, HOUR_S)]
        for gateway in gateways:
            await knows(gateway, 3)
        clock = gateways[0].clock
        assert isinstance(clock, AheadClock)
        for turn in range(4):
            clock.ahead_s = (-1) ** turn * HOUR_S  # somebody sets it while the gateway runs
            for gateway in gateways:
                await say(gateway, "agent:main:shared")
    bodies = execute(url, "SELECT body FROM messages ORDER BY session_id, seq")
    times = [decode_message(body).timestamp for (body,) in bodies]
    assert len(times) == 24
    assert times == sorted(times)
    assert abs(times[-1] - time.time() * 1000) < 60_000


async def test_what_is_left_by_a_clock_that_was_ahead_is_pulled_in_only_by_a_gateway_that_is_alone(
    tmp_path: Path, url: str
) -> None:
    ahead = int(time.time() * 1000) + 7_200_000
    async with AsyncExitStack() as exits:
        first = await opened(exits, tmp_path, url, 0)
        await say(first, "agent:main:s")
        execute(url, "UPDATE sessions SET updated_at = %s", ahead)
        second = await opened(exits, tmp_path, url, 0)
        await knows(second, 2)
        assert await listed(first) == [("agent:main:s", ahead)]
    async with AsyncExitStack() as exits:
        alone = await opened(exits, tmp_path, url, 0)
        ((_, updated_at),) = await listed(alone)
        assert updated_at < ahead


async def test_processes_whose_clocks_are_ten_minutes_apart_do_all_once_and_by_one_time(tmp_path: Path) -> None:
    url, began = new_database(), time.time()
    nodes = Gateways(tmp_path, url, 2.0, random.Random())
    lives = await asyncio.gather(*(nodes.begin(f"g{n}", ahead_s=ahead) for n, ahead in enumerate((-600, 0, 600))))
    for life in lives:
        await life.more(15)
    for life in lives:
        await nodes.stop(life)
    await nodes.come_to_rest()
    check_done_once(tmp_path, url, nodes.accepted)
    times = [decode_message(body).timestamp / 1000 for (body,) in execute(url, "SELECT body FROM messages")]
    times += [at / 1000 for (at,) in execute(url, "SELECT updated_at FROM sessions")]
    assert began - 5 < min(times)
    assert max(times) < time.time() + 5


def test_a_clock_is_moved_only_as_far_as_what_it_follows_asks_for() -> None:
    clock = SystemClock()
    assert clock.ahead_ms is None
    clock.follow(1_000_000, 10.0, 10.2)  # shown somewhere between the two
    zero = clock.now_ms() - clock.monotonic() * 1000
    assert 1_000_000 - 10_200 <= zero <= 1_000_001 - 10_000
    clock.follow(1_005_000, 5.0, 25.0)  # an answer that took long says nothing new
    assert clock.now_ms() - clock.monotonic() * 1000 == pytest.approx(zero, abs=50)
    clock.follow(500_000, 30.0, 30.0)  # the other clock was set back
    assert clock.now_ms() - clock.monotonic() * 1000 == pytest.approx(470_000, abs=50)


def test_a_small_correction_does_not_make_the_clock_run_backwards() -> None:
    clock = SystemClock()
    clock.follow(1_000_000_000, clock.monotonic(), clock.monotonic())
    before = clock.now_ms()
    clock.follow(1_000_000_000 - 100, clock.monotonic(), clock.monotonic())
    assert clock.now_ms() >= before
    clock.follow(1_000_000_000 - int(2000 * NOTICED_S), clock.monotonic(), clock.monotonic())
    assert clock.now_ms() < before
