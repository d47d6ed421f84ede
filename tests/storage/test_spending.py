"""The usage of runs, added up by day."""

from __future__ import annotations

import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.messages import Usage
from backchannel.core.records import DAY_MS, DayUsed
from tests.storage.support import MAIN, START_MS, Host, begin, step

pytestmark = pytest.mark.anyio
TODAY = START_MS // DAY_MS
OTHER = SessionKey.of("other", "main")


async def use(host: Host, key: SessionKey, **used: float) -> None:
    started = await begin(host.store, key=key)
    await host.store.commit_reply(started.fence, step(started, usage=Usage(**used)))  # type: ignore[arg-type]  # as given


@pytest.mark.both_databases
async def test_tokens_and_cost_are_added_up_by_days_of_one_agent_or_of_all(host: Host) -> None:
    assert (await host.store.spending(since=0, until=START_MS)).days == []
    await use(host, MAIN, input=10, output=2, cost=0.5)
    await use(host, MAIN, input=1, output=1)
    await use(host, OTHER, input=5, output=5, cost=0.25)
    host.clock.tick(DAY_MS)
    await use(host, MAIN, input=3, output=4, cost=0.125)
    first = DayUsed(TODAY, 16, 8, 0.75, 1)
    second = DayUsed(TODAY + 1, 3, 4, 0.125, 0)
    until = host.clock.ms + 1
    assert await host.store.spending(since=0, until=until) == ([first, second], False)
    assert (await host.store.spending(since=0, until=until, agent_id="other")).days == [DayUsed(TODAY, 5, 5, 0.25, 0)]
    assert (await host.store.spending(since=(TODAY + 1) * DAY_MS, until=until)).days == [second]
    assert (await host.store.spending(since=0, until=(TODAY + 1) * DAY_MS)).days == [first]


async def test_it_is_said_where_not_all_runs_are_looked_at(host: Host) -> None:
    for _ in range(3):
        await use(host, MAIN, input=1, output=1)
        host.clock.tick(DAY_MS)
    assert await host.store.spending(since=0, until=host.clock.ms, most=1) == ([DayUsed(TODAY + 2, 1, 1, 0.0, 1)], True)
    newest = await host.store.spending(since=(TODAY + 2) * DAY_MS, until=host.clock.ms, most=1)
    assert newest.is_part is False, "what is left out is older than what was asked for"


@pytest.mark.both_databases
async def test_what_was_used_is_added_up_by_sessions_too(host: Host) -> None:
    await use(host, MAIN, input=10, output=2, cost=0.5)
    await use(host, OTHER, input=5, output=5)
    host.clock.tick(DAY_MS)
    await use(host, MAIN, input=3, output=4, cost=0.125)
    until = host.clock.ms + 1
    sums, (newest,) = await host.store.spending_by_session(since=0, until=until, limit=1)
    assert newest.key == str(MAIN) and not sums.is_part
    assert {key: used.total.tokens_in for key, used in sums.sessions.items()} == {str(MAIN): 13, str(OTHER): 5}
    assert {day: used.cost for day, used in sums.sessions[str(MAIN)].days.items()} == {TODAY: 0.5, TODAY + 1: 0.125}
    assert (sums.together.total.runs, sums.together.total.unpriced, sums.agents["other"].unpriced) == (3, 1, 1)
    alone, _ = await host.store.spending_by_session(since=0, until=until, session_key=str(OTHER), limit=9)
    assert alone.together.total.tokens_out == 5
    later, _ = await host.store.spending_by_session(since=(TODAY + 1) * DAY_MS, until=until, limit=9)
    assert list(later.sessions) == [str(MAIN)]
