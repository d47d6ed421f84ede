"""Cron jobs in the store: how they come, change and go, and what one firing writes."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from backchannel.config.schema_doors import CronDeliver, CronJob
from backchannel.core.contracts import Timer
from backchannel.core.keys import SessionKey
from backchannel.core.messages import ProvenanceKind
from backchannel.core.runs import Fence, Run, RunKind, RunState
from backchannel.errors import InvalidSchedule, JobConfigured, JobExists, JobNotFound, JobRunning
from backchannel.storage.jobs import JobStatus, ListedJob, Source
from backchannel.storage.store import Store
from tests.storage.support import ABORTED, START_MS, Host, answer, begin, transcript
from tests.support.databases import open_database

pytestmark = pytest.mark.anyio
MINUTE = 60_000
KEY = SessionKey.cron("main", "j")
PAST = "2020-01-01T00:00:00Z"  # the clock of these tests begins on 15 January 2027, at 8 in the morning
FUTURE = "2027-01-15T09:00:00Z"
FUTURE_MS = START_MS + 60 * MINUTE


def job(schedule: str = "every 10m", **more: Any) -> CronJob:
    return CronJob(**{"id": "j", "schedule": schedule, "message": "work", **more})


async def the_job(store: Store) -> ListedJob:
    (found,) = await store.cron_jobs()
    return found


async def next_at(store: Store) -> int | None:
    return (await the_job(store)).stored.next_at


async def carry_out_what_is_due(host: Host) -> None:
    for timer in (await host.store.due(100)).timers:
        await host.store.carry_out_timer(timer)


async def all_runs(store: Store) -> list[Run]:
    return (await store.runs(limit=100))[::-1]


async def end_runs(store: Store) -> None:
    """Work through the session of the job, as its lane does."""
    while started := await store.start_next(str(KEY)):
        await answer(store, started)


# Firing


async def test_a_firing_is_a_queued_run_of_a_new_chain_and_the_next_time_in_one_commit(host: Host) -> None:
    store = host.store
    deliver = CronDeliver(channel="desk", to="C", account_id="a")
    await store.add_cron_job(job(deliver=deliver, model="m/x", timeout_seconds=7))
    host.clock.tick(10 * MINUTE)
    commits = store.driver.commits
    await carry_out_what_is_due(host)
    assert store.driver.commits == commits + 1
    (run,) = await all_runs(store)
    assert (run.id, run.session_key) == ("cron:j:2027-01-15T08:10:00Z", "agent:main:cron:j")
    assert (run.kind, run.state) == (RunKind.CRON, RunState.QUEUED)
    assert (run.chain_id, run.hop) == (run.id, 0)
    assert (run.model, run.timeout_s, run.deliver) == ("m/x", 7, True)
    assert run.reply_to == '{"channel":"desk","to":"C","accountId":"a"}'
    found = await the_job(store)
    assert (found.stored.last_run, found.stored.fired_at) == (run.id, START_MS + 10 * MINUTE)
    assert found.last_run == run
    assert (await store.due(100)).timers == []
    assert await next_at(store) == (await store.due(1)).next_at == START_MS + 20 * MINUTE


async def test_the_model_hears_the_gateway_and_not_a_person(host: Host) -> None:
    await host.store.add_cron_job(job())
    host.clock.tick(10 * MINUTE)
    await carry_out_what_is_due(host)
    await end_runs(host.store)
    message = (await transcript(host.store, KEY))[0]
    assert message.provenance is not None
    assert message.provenance.kind is ProvenanceKind.INTERNAL_SYSTEM
    assert message.provenance.source_tool == "cron"
    assert message.text == "work"


async def test_without_a_place_to_deliver_to_nothing_is_delivered(host: Host) -> None:
    await host.store.add_cron_job(job())
    host.clock.tick(10 * MINUTE)
    await carry_out_what_is_due(host)
    await end_runs(host.store)
    (run,) = await all_runs(host.store)
    assert (run.deliver, run.reply_to) == (False, None)
    assert await host.store.receipts(limit=10) == []


async def test_while_the_last_run_lives_a_firing_is_skipped_and_counted(host: Host) -> None:
    store = host.store
    await store.add_cron_job(job())
    for _ in range(3):
        host.clock.tick(10 * MINUTE)
        await carry_out_what_is_due(host)
    assert len(await all_runs(store)) == 1
    assert (await the_job(store)).stored.skipped == 2
    assert await next_at(store) == START_MS + 40 * MINUTE
    await end_runs(store)
    host.clock.tick(10 * MINUTE)
    await carry_out_what_is_due(host)
    assert [run.id[-9:] for run in await all_runs(store)] == ["08:10:00Z", "08:40:00Z"]
    assert (await the_job(store)).stored.skipped == 2


async def test_messages_of_others_in_the_session_skip_nothing(host: Host) -> None:
    await host.store.add_cron_job(job())
    await begin(host.store, "what did you do?", KEY)
    host.clock.tick(10 * MINUTE)
    await carry_out_what_is_due(host)
    assert [run.kind for run in await all_runs(host.store)] == [RunKind.MESSAGE, RunKind.CRON]


async def test_times_that_were_missed_come_once_together_and_then_the_next_regular_one(host: Host) -> None:
    await host.store.add_cron_job(job())
    await host.stop()
    host.clock.tick(95 * MINUTE)
    store = await host.start()
    await store.sync_cron_jobs(())
    await carry_out_what_is_due(host)
    assert [run.id for run in await all_runs(store)] == ["cron:j:2027-01-15T08:10:00Z"]
    assert await next_at(store) == START_MS + 100 * MINUTE


async def test_what_was_missed_comes_after_the_run_that_was_interrupted_and_never_twice(host: Host) -> None:
    await host.store.add_cron_job(job())
    host.clock.tick(10 * MINUTE)
    await carry_out_what_is_due(host)
    assert await host.store.start_next(str(KEY)) is not None
    for _ in range(2):  # the gateway dies at work, and is back when the next times have passed
        await host.die()
        host.clock.tick(25 * MINUTE)
        await host.start()
        await carry_out_what_is_due(host)
    states = [(run.id[-9:], run.state) for run in await all_runs(host.store)]
    assert states == [("08:10:00Z", RunState.RUNNING), ("08:20:00Z", RunState.QUEUED)]
    assert (await the_job(host.store)).stored.skipped == 1


async def test_an_interval_does_not_drift_however_late_it_fires(host: Host) -> None:
    await host.store.add_cron_job(job("every 1m"))
    for late in (1, 999, 30_000, 59_999):
        host.clock.tick((await next_at(host.store) or 0) + late - host.clock.ms)
        await carry_out_what_is_due(host)
        await end_runs(host.store)
        assert ((await next_at(host.store) or 0) - START_MS) % MINUTE == 0


@pytest.mark.parametrize("schedule", ["every 10m", "*/10 * * * *"])
async def test_a_clock_that_is_set_back_as_a_time_comes_does_not_make_it_come_twice(host: Host, schedule: str) -> None:
    await host.store.add_cron_job(job(schedule))
    host.clock.tick(10 * MINUTE)
    (timer,) = (await host.store.due(100)).timers
    host.clock.tick(-5)
    await host.store.carry_out_timer(timer)
    assert await next_at(host.store) == START_MS + 20 * MINUTE
    host.clock.tick(5)
    await carry_out_what_is_due(host)
    assert len(await all_runs(host.store)) == 1


async def test_a_job_of_one_time_is_done_when_it_fired_and_stays_listed(host: Host) -> None:
    await host.store.add_cron_job(job(FUTURE))
    assert (await the_job(host.store)).stored.status is JobStatus.SCHEDULED
    host.clock.tick(60 * MINUTE)
    await carry_out_what_is_due(host)
    found = await the_job(host.store)
    assert (found.stored.status, found.stored.next_at) == (JobStatus.DONE, None)
    assert found.last_run is not None
    assert (await host.store.due(1)).next_at is None


async def test_a_run_id_that_a_client_has_taken_as_its_key_does_not_stop_the_job(host: Host) -> None:
    taken = "cron:j:2027-01-15T08:10:00Z"
    await begin(host.store, id=taken, digest="somebody")
    await host.store.add_cron_job(job())
    host.clock.tick(10 * MINUTE)
    await carry_out_what_is_due(host)
    assert [run.id for run in await all_runs(host.store)] == [taken, f"{taken}#2"]
    assert await next_at(host.store) == START_MS + 20 * MINUTE


async def test_a_firing_waits_for_the_end_of_a_deletion_and_starts_the_session_afresh(host: Host) -> None:
    store = host.store
    await store.add_cron_job(job(FUTURE))
    started = await begin(store, "hold", KEY)
    await store.delete_session(KEY)
    host.clock.tick(60 * MINUTE)
    await carry_out_what_is_due(host)
    assert len(await all_runs(store)) == 1
    assert (await store.due(1)).next_at == FUTURE_MS + 1000
    await answer_aborted(store, started.run.id)
    host.clock.tick(1000)
    await carry_out_what_is_due(host)
    assert [run.id for run in await all_runs(store)][1:] == ["cron:j:2027-01-15T09:00:00Z"]
    session = await store.session(str(KEY))
    assert session is not None
    assert session.archived_at is None


async def answer_aborted(store: Store, run_id: str) -> None:
    """End a run that was asked to stop."""
    await store.finish_run(Fence(run_id, store.number), ABORTED, reply=None, at_step=0, ran_ms=1)


async def test_a_timer_of_a_job_that_is_gone_changes_nothing(host: Host) -> None:
    await host.store.add_cron_job(job())
    await host.store.remove_cron_job("j")
    await host.store.postpone_timer(Timer("cron", "j", 0), 0)
    await carry_out_what_is_due(host)
    assert await all_runs(host.store) == []
    assert (await host.store.due(1)).next_at is None


async def test_a_schedule_that_can_no_longer_be_read_is_an_error_on_the_job(host: Host) -> None:
    hourly = job("0 * * * *", tz="Europe/Berlin")
    await host.store.sync_cron_jobs((hourly,))
    with closing(open_database(host.path)) as other, other:  # as on a machine that lacks the zone
        other.execute("UPDATE cron_jobs SET body = replace(body, 'Europe/Berlin', 'Atlantis/Capital')")
    host.clock.tick(60 * MINUTE)
    await carry_out_what_is_due(host)
    found = await the_job(host.store)
    assert found.last_run is not None
    assert (found.stored.status, (await host.store.due(1)).next_at) == (JobStatus.ERROR, None)
    assert "Atlantis/Capital" in (found.stored.error or "")
    await host.store.sync_cron_jobs((hourly,))
    assert (await the_job(host.store)).stored.status is JobStatus.SCHEDULED


# By hand


async def test_a_run_by_hand_leaves_the_next_time_as_it_is(host: Host) -> None:
    store = host.store
    await store.add_cron_job(job())
    host.clock.tick(1234)
    run = await store.run_cron_job("j")
    assert run.id == "cron:j:2027-01-15T08:00:01.234Z"
    assert await next_at(store) == START_MS + 10 * MINUTE
    assert (await the_job(store)).stored.fired_at is None
    with pytest.raises(JobRunning, match="wait for its run 'cron:j:2027") as refused:
        await store.run_cron_job("j")
    assert refused.value.details["runId"] == run.id
    await end_runs(store)
    assert (await store.run_cron_job("j")).id == f"{run.id}#2"


async def test_disabled_and_done_jobs_can_be_run_by_hand(host: Host) -> None:
    await host.store.sync_cron_jobs((job(enabled=False),))
    assert (await the_job(host.store)).stored.status is JobStatus.DISABLED
    assert (await host.store.run_cron_job("j")).state is RunState.QUEUED
    with pytest.raises(JobNotFound, match="no cron job 'k'"):
        await host.store.run_cron_job("k")


# Added and removed at run time


async def test_a_job_stays_over_restarts_until_it_is_removed(host: Host) -> None:
    added = await host.store.add_cron_job(job())
    assert added.stored.source is Source.RUNTIME
    store = await host.restart()
    await store.sync_cron_jobs(())
    assert await store.cron_jobs() == [added]
    await store.remove_cron_job("j")
    assert await store.cron_jobs() == []
    assert (await store.due(1)).next_at is None
    with pytest.raises(JobNotFound):
        await store.remove_cron_job("j")


async def test_the_very_same_again_changes_nothing_and_another_under_the_id_is_refused(host: Host) -> None:
    added = await host.store.add_cron_job(job())
    host.clock.tick(MINUTE)
    assert await host.store.add_cron_job(job()) == added
    with pytest.raises(JobExists, match="remove that one first"):
        await host.store.add_cron_job(job(message="other work"))
    assert await host.store.cron_jobs() == [added]


async def test_a_job_of_the_configuration_is_neither_replaced_nor_removed(host: Host) -> None:
    await host.store.sync_cron_jobs((job(),))
    with pytest.raises(JobExists, match="stands in the configuration"):
        await host.store.add_cron_job(job())
    with pytest.raises(JobConfigured, match=r"take it out of `cron\.jobs`"):
        await host.store.remove_cron_job("j")


async def test_one_time_that_has_passed_is_refused_when_it_is_added(host: Host) -> None:
    with pytest.raises(InvalidSchedule, match="has passed: it is 2027-01-15T08:00:00Z now"):
        await host.store.add_cron_job(job(PAST))
    assert await host.store.cron_jobs() == []


# The configuration


async def test_new_jobs_of_the_configuration_are_added_and_those_taken_out_go_with_their_timer(host: Host) -> None:
    store = host.store
    await store.sync_cron_jobs((job(), job(id="k")))
    assert [found.stored.id for found in await store.cron_jobs()] == ["j", "k"]
    await store.sync_cron_jobs((job(id="k"),))
    assert [found.stored.id for found in await store.cron_jobs()] == ["k"]
    host.clock.tick(10 * MINUTE)
    assert [timer.ref for timer in (await store.due(10)).timers] == ["k"]
    await store.sync_cron_jobs(())
    assert await store.cron_jobs() == []


async def test_what_an_unchanged_job_missed_stays_due_and_its_message_may_change(host: Host) -> None:
    await host.store.sync_cron_jobs((job(),))
    host.clock.tick(35 * MINUTE)
    store = await host.restart()
    await store.sync_cron_jobs((job(message="other work"),))
    assert await next_at(store) == START_MS + 10 * MINUTE
    await carry_out_what_is_due(host)
    await end_runs(store)
    assert (await transcript(store, KEY))[0].text == "other work"


@pytest.mark.parametrize("changed", [job("every 20m"), job("0 * * * *", tz="Europe/Berlin")])
async def test_other_times_are_counted_from_now(host: Host, changed: CronJob) -> None:
    await host.store.sync_cron_jobs((job(),))
    host.clock.tick(45 * MINUTE)
    await host.store.sync_cron_jobs((changed,))
    assert await next_at(host.store) == (await host.store.due(1)).next_at == START_MS + 60 * MINUTE


async def test_a_disabled_job_has_no_timer_and_goes_on_from_the_time_it_is_enabled(host: Host) -> None:
    store = host.store
    await store.sync_cron_jobs((job(),))
    await store.sync_cron_jobs((job(enabled=False),))
    assert (await next_at(store), (await store.due(1)).next_at) == (None, None)
    host.clock.tick(45 * MINUTE)
    await store.sync_cron_jobs((job(),))
    assert await next_at(store) == START_MS + 50 * MINUTE


async def test_one_time_that_passed_while_no_gateway_ran_comes_once(host: Host) -> None:
    store = host.store
    await store.sync_cron_jobs((job(PAST),))
    await carry_out_what_is_due(host)
    await end_runs(store)
    assert [run.id for run in await all_runs(store)] == ["cron:j:2020-01-01T00:00:00Z"]
    store = await host.restart()
    for again in (
        [job(PAST)],
        [job(PAST, message="other work")],
        [job(PAST, enabled=False)],
        [job(PAST)],
        [],
        [job(PAST)],
    ):
        await store.sync_cron_jobs(again)
    assert (await the_job(store)).stored.status is JobStatus.DONE
    await carry_out_what_is_due(host)
    assert len(await all_runs(store)) == 1


async def test_a_job_of_run_time_whose_id_the_configuration_takes_becomes_its_own(host: Host) -> None:
    await host.store.add_cron_job(job())
    await host.store.sync_cron_jobs((job("every 20m"),))
    found = (await the_job(host.store)).stored
    assert (found.source, found.next_at) == (Source.CONFIG, START_MS + 20 * MINUTE)


async def test_a_start_without_jobs_writes_nothing(host: Host) -> None:
    commits = host.store.driver.commits
    await host.store.sync_cron_jobs(())
    assert host.store.driver.commits == commits


async def test_those_that_come_next_are_listed_first(host: Host) -> None:
    jobs = (job(id="late"), job("every 1m", id="soon"), job(id="off", enabled=False), job(PAST, id="due"))
    await host.store.sync_cron_jobs(jobs)
    assert [found.stored.id for found in await host.store.cron_jobs()] == ["due", "soon", "late", "off"]
