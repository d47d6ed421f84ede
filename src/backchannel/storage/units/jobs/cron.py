"""Cron jobs: stored, fired, and taken from the configuration at each start.

A job with a next time has a timer, `cron` with the job's id. One unit fires it: it accepts the run, writes the time,
and sets the timer for the next time. So each time fires once, wherever a process dies. Several missed times are one
overdue timer, and fire once. A job with `when` begins a check in that unit instead: `storage/units/jobs/checks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backchannel.config.schedules import Once, read_schedule, show_moment
from backchannel.config.schema_doors import CronJob
from backchannel.config.schema_models import fallbacks_of, primary_of
from backchannel.core.cluster.members import read_ids
from backchannel.core.facts import CheckDue, JobSkipped, SessionChanged
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.messages import Provenance, ProvenanceKind, text_content
from backchannel.core.policy.checks import JobSkip, SkipCount
from backchannel.core.policy.queues import may_queue
from backchannel.core.runs import Run, RunKind, RunRequest, RunState
from backchannel.core.sessions import Address
from backchannel.core.text import quoted
from backchannel.errors import InvalidSchedule, JobConfigured, JobExists, JobNotFound, JobRunning
from backchannel.storage.jobs import STORED_JOB, STORED_SKIPS, JobCheck, ListedJob, Source, StoredJob
from backchannel.storage.tables import CRON_JOBS
from backchannel.storage.tx import Tx, required
from backchannel.storage.units import runs, sessions, timers
from backchannel.storage.units.money import reserving

CRON_TIMER = "cron"
CHECK_TIMER = "check"
CHECKED_AGAIN_MS = 5000
"""How often it is looked whether a living process runs the command of a check."""
AGAIN_MS = 1000
"""The pause before a job is fired again whose session was being deleted."""

_PROVENANCE = Provenance(kind=ProvenanceKind.INTERNAL_SYSTEM, source_tool="cron")


def find(tx: Tx, job_id: str) -> StoredJob | None:
    row = tx.one(f"{CRON_JOBS.select} WHERE id = ?", job_id)
    return None if row is None else CRON_JOBS.read(row)


def need(tx: Tx, job_id: str) -> StoredJob:
    stored = find(tx, job_id)
    if stored is None:
        raise JobNotFound(f"no cron job {quoted(job_id, 128)} (cron.list shows those there are)", jobId=job_id[:128])
    return stored


def listed(tx: Tx) -> list[ListedJob]:
    """List all jobs: those with a next time first, the others by id."""
    rows = tx.all(f"{CRON_JOBS.select} ORDER BY next_at IS NULL, next_at, id")
    return [_with_last_run(tx, CRON_JOBS.read(row)) for row in rows]


def look(tx: Tx, job_id: str) -> ListedJob:
    return _with_last_run(tx, need(tx, job_id))


def _with_last_run(tx: Tx, stored: StoredJob) -> ListedJob:
    return ListedJob(stored, None if stored.last_run is None else runs.find(tx, stored.last_run))


def any_configured(tx: Tx) -> bool:
    return tx.one("SELECT 1 FROM cron_jobs WHERE source = 'config' LIMIT 1") is not None


# Jobs come, change and go


def sync(tx: Tx, jobs: Sequence[CronJob]) -> None:
    """Take the jobs of the configuration. A job that no gateway at work has any more is removed with its timer.

    If gateways have different jobs with one id, the last started gateway's counts.
    """
    elsewhere = _of_others(tx)
    configured = {job.id for job in jobs}
    for (job_id,) in tx.all("SELECT id FROM cron_jobs WHERE source = 'config'"):
        if elsewhere is not None and job_id not in configured | elsewhere:
            _delete(tx, job_id)
    for job in jobs:
        stored = find(tx, job.id)
        if stored is None:
            _insert(tx, job, Source.CONFIG)
        else:
            _replace(tx, stored, job)


def _of_others(tx: Tx) -> set[str] | None:
    """List the jobs of other gateways' configurations; None if an older version does not list its own."""
    rows = tx.all("SELECT jobs FROM processes WHERE ended_at IS NULL AND number <> ?", tx.number)
    if any(jobs is None for (jobs,) in rows):
        return None
    return {id for (jobs,) in rows for id in read_ids(jobs)}


def _replace(tx: Tx, stored: StoredJob, job: CronJob, source: Source = Source.CONFIG) -> None:
    """Replace a job. A time that it missed while no gateway ran stays due, unless its schedule changed."""
    was = stored.job
    updated_at = stored.updated_at if job == was else tx.now
    tx.run(
        "UPDATE cron_jobs SET source = ?, body = ?, updated_at = ? WHERE id = ?",
        source.value,
        STORED_JOB.write(job, stored.body),
        updated_at,
        stored.id,
    )
    if (was.schedule, was.tz, was.enabled) != (job.schedule, job.tz, job.enabled) or stored.error:
        _set_next(tx, stored.id, *_next_time(job, stored.created_at, stored.fired_at, tx.now))


def add(tx: Tx, job: CronJob) -> ListedJob:
    """Store a new job. The same job again changes nothing.

    Raises:
        JobExists: another job has the id.
        InvalidSchedule: it never comes, or its one time has passed.
    """
    stored = find(tx, job.id)
    if stored is not None:
        if stored.source is Source.RUNTIME and stored.job == job:
            return _with_last_run(tx, stored)
        raise _exists(stored)
    _check_to_come(job, tx.now)
    _insert(tx, job, Source.RUNTIME)
    _tell(tx, job)
    return look(tx, job.id)


def _check_to_come(job: CronJob, now: int) -> None:
    if read_schedule(job.schedule, job.tz).next_after(now) is None:
        raise InvalidSchedule(f"{job.schedule!r} has passed: it is {show_moment(now)} now", param="schedule")


def change(tx: Tx, job_id: str, decide: Callable[[CronJob], CronJob]) -> ListedJob:
    """Change a job to what `decide` returns; its id stays.

    Raises:
        JobNotFound, JobConfigured
        InvalidSchedule: it is to come at other times now, and never does.
    """
    stored = need(tx, job_id)
    _check_own(stored)
    was, job = stored.job, decide(stored.job)
    if (was.schedule, was.tz) != (job.schedule, job.tz):
        _check_to_come(job, tx.now)
    _replace(tx, stored, job, Source.RUNTIME)
    _tell(tx, job)
    return look(tx, job_id)


def _exists(stored: StoredJob) -> JobExists:
    if stored.source is Source.CONFIG:
        where = "stands in the configuration: choose another id, or change it there"
    else:
        where = "is there already, and is another one: choose another id, or remove that one first"
    return JobExists(f"the cron job {stored.id!r} {where}", id=stored.id)


def _insert(tx: Tx, job: CronJob, source: Source) -> None:
    tx.insert(CRON_JOBS, id=job.id, source=source.value, body=STORED_JOB.write(job), created_at=tx.now)
    next_at, error = _next_time(job, tx.now, None, tx.now)
    if next_at is not None and next_at <= tx.now and runs.find(tx, _run_id(job, next_at)) is not None:
        next_at = None  # its one time came before it was taken out and put in again: the run is there to tell
    _set_next(tx, job.id, next_at, error)


def remove(tx: Tx, job_id: str) -> None:
    """Remove a job. Its session stays, and a running run continues.

    Raises:
        JobNotFound, JobConfigured
    """
    stored = need(tx, job_id)
    _check_own(stored)
    _delete(tx, job_id)
    _tell(tx, stored.job)


def _check_own(stored: StoredJob) -> None:
    if stored.source is Source.CONFIG:
        raise JobConfigured(
            f"the cron job {stored.id!r} stands in the configuration: change it or take it out of `cron.jobs` there "
            "(or set its `enabled` to false) and restart the gateway",
            id=stored.id,
        )


def _tell(tx: Tx, job: CronJob) -> None:
    """Record that the list of jobs has changed, where no run does."""
    tx.tell(SessionChanged(str(key_of(job, tx.scheme)), "job"))


def _delete(tx: Tx, job_id: str) -> None:
    tx.run("DELETE FROM cron_jobs WHERE id = ?", job_id)
    timers.clear_timer(tx, CRON_TIMER, job_id)
    timers.clear_timer(tx, CHECK_TIMER, job_id)


# Times


def _next_time(job: CronJob, created_at: int, fired_at: int | None, now: int) -> tuple[int | None, str | None]:
    """Compute when a job comes next, or why that is unknown. A job with one time comes, however late."""
    if not job.enabled:
        return None, None
    try:
        # Whole seconds: the times of an interval are in the ids of its runs, which people read.
        schedule = read_schedule(job.schedule, job.tz, anchor=created_at - created_at % 1000)
    except InvalidSchedule as error:  # it could be read when it was added: this machine knows fewer time zones
        return None, error.message
    if isinstance(schedule, Once):
        return (None if schedule.at == fired_at else schedule.at), None
    return schedule.next_after(now), None


def reschedule(tx: Tx, job_id: str) -> None:
    """Compute a job's next time again after the clock was set back. A time that has come but not fired stays due."""
    stored = find(tx, job_id)
    if stored is None or stored.next_at is None:
        timers.clear_timer(tx, CRON_TIMER, job_id)
    elif stored.next_at <= tx.now:
        timers.set_timer(tx, CRON_TIMER, job_id, tx.now)
    else:
        _set_next(tx, job_id, *_next_time(stored.job, stored.created_at, stored.fired_at, tx.now))


def _set_next(tx: Tx, job_id: str, next_at: int | None, error: str | None) -> None:
    tx.run("UPDATE cron_jobs SET next_at = ?, error = ? WHERE id = ?", next_at, error, job_id)
    if next_at is None:
        timers.clear_timer(tx, CRON_TIMER, job_id)
    else:
        timers.set_timer(tx, CRON_TIMER, job_id, next_at)


# Firing


def fire(tx: Tx, job_id: str) -> None:
    """Handle a job's timer: accept its run or count it as skipped, and set the next time."""
    stored = find(tx, job_id)
    if stored is None or stored.next_at is None:
        return
    job, at = stored.job, stored.next_at
    if _has_come(tx, job, at):
        pass  # the clock was set back since
    elif (skip := _skip(tx, stored, at)) is not None:
        count_skip(tx, stored, skip)
    elif is_being_deleted(tx, key_of(job, tx.scheme)):
        timers.set_timer(tx, CRON_TIMER, job_id, tx.now + AGAIN_MS)
        return
    else:
        run_id = runs.free_id(tx, _run_id(job, at))  # taken, too, by a run by hand at this very moment
        if job.when is None:
            start(tx, job, run_id, job.message)
        else:
            _begin_check(tx, job, run_id, None)
    tx.run("UPDATE cron_jobs SET fired_at = ? WHERE id = ?", at, job_id)
    # The clock may have been set back since the time came: it must not come again.
    _set_next(tx, job_id, *_next_time(job, stored.created_at, at, max(tx.now, at)))


def run_now(tx: Tx, job_id: str) -> Run:
    """Fire a job by hand. Its next time stays.

    Raises:
        JobNotFound
        JobRunning: its last run or its check has not ended.
    """
    job = _idle(tx, job_id)
    return start(tx, job, runs.free_id(tx, _run_id(job, tx.now)), job.message)


def check_now(tx: Tx, job_id: str) -> JobCheck:
    """Begin the check of a job by hand, for this process. Its next time stays.

    Raises:
        JobNotFound, JobRunning: as `run_now`.
    """
    job = _idle(tx, job_id)
    run_id = runs.free_id(tx, _run_id(job, tx.now))
    _begin_check(tx, job, run_id, tx.number)
    return JobCheck(job, run_id)


def _idle(tx: Tx, job_id: str) -> CronJob:
    """Give a job that may be fired by hand."""
    stored = need(tx, job_id)
    if stored.checking is not None:
        raise JobRunning(
            f"the cron job {job_id!r} is at work: wait for the end of its `when` command", id=job_id, runId=""
        )
    if _last_alive(tx, stored) is not None:
        raise JobRunning(
            f"the cron job {job_id!r} is at work: wait for its run {stored.last_run!r} to end, or abort it",
            id=job_id,
            runId=stored.last_run,
        )
    return stored.job


def _begin_check(tx: Tx, job: CronJob, run_id: str, checker: int | None) -> None:
    """Record that a job's command has to run, for this process or for whichever takes it."""
    tx.run(
        "UPDATE cron_jobs SET checking = ?, checking_since = ?, checker = ?, check_crashes = 0 WHERE id = ?",
        run_id,
        tx.now,
        checker,
        job.id,
    )
    timers.set_timer(tx, CHECK_TIMER, job.id, tx.now + CHECKED_AGAIN_MS)
    if checker is None:
        tx.tell(CheckDue(job.id))
    _tell(tx, job)


def start(tx: Tx, job: CronJob, run_id: str, message: str) -> Run:
    """Accept a job's run."""
    request = RunRequest(
        key=key_of(job, tx.scheme),
        content=text_content(message),
        provenance=_PROVENANCE,
        kind=RunKind.CRON,
        id=run_id,
        deliver=job.deliver is not None,
        reply_to=_address(job),
        model=primary_of(job.model),
        fallbacks=fallbacks_of(job.model),
        timeout_s=job.timeout_seconds,
    )
    run = runs.accept(tx, request, start=False).run
    tx.run("UPDATE cron_jobs SET last_run = ? WHERE id = ?", run.id, job.id)
    return run


def key_of(job: CronJob, scheme: KeyScheme) -> SessionKey:
    return SessionKey.cron(job.agent_id or scheme.default_agent, job.id)


def _run_id(job: CronJob, at: int) -> str:
    return f"cron:{job.id}:{show_moment(at)}"


def _address(job: CronJob) -> Address | None:
    if job.deliver is None:
        return None
    return Address(channel=job.deliver.channel, to=job.deliver.to, account_id=job.deliver.account_id)


def count_skip(tx: Tx, stored: StoredJob, reason: JobSkip, why: str | None = None, *, is_fault: bool = False) -> None:
    """Count a time that becomes no run."""
    skips = dict(stored.skips_by_reason)
    before = skips.get(reason, SkipCount())
    skips[reason.value] = SkipCount(count=before.count + 1, last_at=tx.now, why=why, is_fault=is_fault)
    body = STORED_SKIPS.write(skips, stored.skips)
    tx.run("UPDATE cron_jobs SET skipped = skipped + 1, skips = ? WHERE id = ?", body, stored.id)
    tx.tell(JobSkipped(stored.id, reason.value, why, is_fault))
    _tell(tx, stored.job)


def _skip(tx: Tx, stored: StoredJob, at: int) -> JobSkip | None:
    """Decide whether a time is skipped, and why."""
    if stored.checking is not None or _is_busy(tx, stored, at):
        return JobSkip.BUSY
    return lack(tx, stored)


def _is_busy(tx: Tx, stored: StoredJob, at: int) -> bool:
    """Decide whether a time is skipped because the last run is live.

    A time that was missed while no gateway ran is not skipped for an interrupted run: its run waits behind that one,
    unless another waits there already.
    """
    last = _last_alive(tx, stored)
    if last is None:
        return False
    (began,) = required(tx.one("SELECT started_at FROM processes ORDER BY number DESC LIMIT 1"))
    return last.state is RunState.QUEUED or at >= began


def lack(tx: Tx, stored: StoredJob) -> JobSkip | None:
    """Say what a job's run lacks: room in its session, where operators may write too, or money."""
    key = key_of(stored.job, tx.scheme)
    session = sessions.find(tx, str(key))
    if session is not None and not may_queue(session, tx.rules.max_queued).allowed:
        return JobSkip.FULL
    return None if reserving.is_open(tx, key, session) else JobSkip.BUDGET


def _has_come(tx: Tx, job: CronJob, at: int) -> bool:
    """Whether a job has a run for this time."""
    run = runs.find(tx, _run_id(job, at))
    return run is not None and run.kind is RunKind.CRON and run.session_key == str(key_of(job, tx.scheme))


def _last_alive(tx: Tx, stored: StoredJob) -> Run | None:
    """Find the last run of a job, if it is live and not set aside."""
    run = None if stored.last_run is None else runs.find(tx, stored.last_run)
    return None if run is None or run.is_finished or run.is_set_aside else run


def is_being_deleted(tx: Tx, key: SessionKey) -> bool:
    session = sessions.find(tx, str(key))
    return session is not None and session.deleting
