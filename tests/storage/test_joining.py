"""The same request again, without an idempotency key: answered by the run that it has started already."""

from __future__ import annotations

import pytest

from backchannel.core.runs import Join
from backchannel.storage.store import Store
from tests.storage.support import Host, accept, answer, begin, texts

pytestmark = pytest.mark.anyio

SAME = Join(digest="the same")


async def test_the_same_request_joins_the_run_that_lives(store: Store) -> None:
    started = await begin(store, "once", join=SAME)
    again = await accept(store, "once", join=SAME)
    assert (again.run.id, again.is_repeat) == (started.run.id, True)
    assert await texts(store) == ["once"]


async def test_it_joins_one_that_a_killed_process_has_left_behind(host: Host) -> None:
    started = await begin(host.store, "once", join=SAME)
    store = await host.restart()
    assert (await accept(store, "once", join=SAME)).run.id == started.run.id


async def test_the_same_request_after_the_run_has_ended_is_a_new_one(store: Store) -> None:
    await answer(store, await begin(store, "again", join=SAME))
    assert not (await accept(store, "again", join=SAME)).is_repeat
    assert await texts(store) == ["again", "hi", "again"]


async def test_a_repetition_joins_also_a_run_that_has_just_ended(host: Host) -> None:
    started = await begin(host.store, "once", join=SAME)
    ended_at = host.clock.tick(100)
    await answer(host.store, started)
    host.clock.tick(50)
    joined = await accept(host.store, "once", join=Join(digest="the same", ended_since=ended_at))
    assert (joined.run.id, joined.is_repeat) == (started.run.id, True)
    too_late = await accept(host.store, "once", join=Join(digest="the same", ended_since=ended_at + 1))
    assert not too_late.is_repeat


async def test_another_request_joins_nothing(store: Store) -> None:
    started = await begin(store, "one", join=SAME)
    assert (await accept(store, "two", join=Join(digest="another"))).run.id != started.run.id
