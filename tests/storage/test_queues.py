"""Full queues: refused in the unit that accepts, and only what comes from outside."""

from __future__ import annotations

import asyncio

import pytest

from backchannel.config.schema_doors import CronJob
from backchannel.core.policy.queues import SessionRules
from backchannel.core.runs import RunKind
from backchannel.errors import QueueFull
from backchannel.storage.store import Store
from tests.storage.support import CRON, MAIN, Host, accept, answer, begin, digest_of, note, request

pytestmark = [pytest.mark.both_databases, pytest.mark.anyio]


async def small(host: Host, most: int = 2) -> Store:
    host.rules = SessionRules(max_queued=most)
    return await host.restart(clean=True)


@pytest.mark.parametrize("kind", [RunKind.MESSAGE, RunKind.HOOK, RunKind.NODE])
async def test_a_message_beyond_the_limit_is_refused_with_what_to_do(host: Host, kind: RunKind) -> None:
    store = await small(host)
    started = await begin(store, kind=kind)
    for _ in range(2):
        await accept(store, kind=kind)

    with pytest.raises(QueueFull) as refused:
        await accept(store, "one too many", kind=kind, id="k", digest=digest_of("a"))
    assert "2 messages wait in this session, and session.maxQueued is 2: try again" in refused.value.message
    assert refused.value.details["sessionKey"] == str(MAIN)
    session = await store.session(str(MAIN))
    assert session is not None and session.queued == 2

    await answer(store, started)
    assert await store.start_next(str(MAIN)) is not None
    again = await accept(store, "one too many", kind=kind, id="k", digest=digest_of("a"))
    assert not again.is_repeat


async def test_a_repeated_message_finds_the_first_one_though_the_queue_is_full(host: Host) -> None:
    store = await small(host, 1)
    await begin(store)
    first = await accept(store, id="k", digest=digest_of("a"))
    again = await accept(store, id="k", digest=digest_of("a"))

    assert again.is_repeat and again.run.id == first.run.id


async def test_of_many_callers_at_once_only_as_many_as_fit_pass(host: Host) -> None:
    store = await small(host, 5)
    await begin(store)
    outcomes = await asyncio.gather(
        *(store.accept_run(request(f"m{n}"), start=True) for n in range(20)), return_exceptions=True
    )

    assert sum(isinstance(outcome, QueueFull) for outcome in outcomes) == 15
    session = await store.session(str(MAIN))
    assert session is not None and session.queued == 5


async def test_a_message_that_starts_at_once_needs_no_room(host: Host) -> None:
    store = await small(host, 1)

    assert (await accept(store)).started is not None


async def test_waiting_runs_and_notes_are_read_in_one_order_page_by_page(host: Host) -> None:
    store = host.store
    await begin(store)
    for n in range(5):
        host.clock.tick()
        await accept(store, f"m{n}")
        await store.add_note(MAIN, note(f"n{n}", host.clock.ms))
    seen: list[str] = []
    page = await store.pending(str(MAIN), 3)
    while page.messages:
        assert page.total == 10 - len(seen)
        seen += [message.text for message in page.messages]
        page = await store.pending(str(MAIN), 3, page.places[-1])

    assert seen == [f"{kind}{n}" for n in range(5) for kind in "mn"]


async def test_a_job_whose_session_is_full_is_skipped_and_counted(host: Host) -> None:
    store = await small(host, 1)
    await store.add_cron_job(CronJob(id="nightly", schedule="every 10m", message="work"))
    started = await begin(store, "by hand", CRON)
    await accept(store, "waits", CRON)
    host.clock.tick(600_000)
    (timer,) = (await store.due(10)).timers
    await store.carry_out_timer(timer)
    (job,) = await store.cron_jobs()
    assert (job.stored.skipped, job.stored.last_run) == (1, None)
    with pytest.raises(QueueFull):
        await store.run_cron_job("nightly")

    await answer(store, started)
    assert await store.start_next(str(CRON)) is not None
    assert (await store.run_cron_job("nightly")).session_key == str(CRON)
