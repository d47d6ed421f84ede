"""Timers: what must happen later is a row, found when it is due."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backchannel.core.contracts import Timer
from backchannel.core.facts import Fact, TimerSet
from backchannel.storage.sqlite.driver import SqliteDriver
from backchannel.storage.sqlite.file import SqliteDatabase
from backchannel.storage.store import Store
from backchannel.storage.units import timers
from tests.storage.support import START_MS
from tests.support.clocks import StageClock

pytestmark = pytest.mark.anyio


class Timers:
    """The transactions on a driver of their own: flows set timers inside other units, never through the store."""

    def __init__(self, driver: SqliteDriver, clock: StageClock) -> None:
        self._driver = driver
        self._clock = clock

    async def set(self, kind: str, ref: str, due_at: int) -> None:
        await self._driver.write(timers.set_timer, kind, ref, due_at)

    async def clear(self, kind: str, ref: str) -> None:
        await self._driver.write(timers.clear_timer, kind, ref)

    async def due(self, now: int, limit: int = 100) -> list[Timer]:
        self._clock.tick(now - self._clock.ms)
        return await self._driver.read(timers.due, limit)

    async def next_due(self) -> int | None:
        return await self._driver.read(timers.next_due)


@pytest.fixture
def told() -> list[Fact]:
    return []


@pytest.fixture
async def clockwork(tmp_path: Path, told: list[Fact]) -> AsyncIterator[Timers]:
    SqliteDatabase(tmp_path / "test.db").prepare()
    clock = StageClock.still(START_MS)
    driver = SqliteDriver(tmp_path / "test.db", clock, on_facts=told.extend, on_fatal=lambda cause: None)
    yield Timers(driver, clock)
    await driver.close()


async def test_what_is_due_is_found_oldest_first(clockwork: Timers) -> None:
    for ref, due_at in (("c", 30), ("a", 10), ("b", 20)):
        await clockwork.set("wait", ref, due_at)
    assert await clockwork.due(9) == []
    assert await clockwork.due(20) == [Timer("wait", "a", 10), Timer("wait", "b", 20)]
    assert await clockwork.due(99, limit=1) == [Timer("wait", "a", 10)]


async def test_a_timer_set_again_is_moved(clockwork: Timers, told: list[Fact]) -> None:
    await clockwork.set("wait", "a", 10)
    await clockwork.set("wait", "a", 50)
    assert await clockwork.due(49) == []
    assert await clockwork.next_due() == 50
    assert told == [TimerSet(10), TimerSet(50)]


async def test_timers_of_different_kinds_do_not_touch_each_other(clockwork: Timers) -> None:
    await clockwork.set("wait", "a", 10)
    await clockwork.set("retry", "a", 20)
    await clockwork.clear("wait", "a")
    assert await clockwork.due(99) == [Timer("retry", "a", 20)]


async def test_a_cleared_timer_is_never_due(clockwork: Timers) -> None:
    await clockwork.set("wait", "a", 10)
    await clockwork.clear("wait", "a")
    await clockwork.clear("wait", "nobody")
    assert await clockwork.due(99) == []
    assert await clockwork.next_due() is None


async def test_a_store_with_nothing_to_do_has_no_next_time(store: Store) -> None:
    assert (await store.due(1)).next_at is None
    assert (await store.due(10)).timers == []
