"""Checks of cron jobs: taken by one process, and ended in one commit.

| unit | what it commits |
|---|---|
| `cron.fire`, `cron.check_now` | The check: the id of the run that may follow. The next time is set. |
| `claim` | The number of the process that runs the command. Any process that has the agent may take it. |
| `finish` | The check is gone. There is a run, or a counted skip. |

A process that dies leaves a check whose process is not alive. A timer looks for those every few seconds, and another
process takes the check: the command may run again, but its run comes once. If processes keep dying, the time is
skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from backchannel.core.facts import CheckDue
from backchannel.core.policy.checks import CRASHES_UNTIL_SKIPPED, CheckVerdict, JobSkip, message_with_output
from backchannel.core.runs import Run
from backchannel.storage.jobs import STORED_SKIPS, JobCheck, StoredJob
from backchannel.storage.tables import CRON_JOBS
from backchannel.storage.tx import ALIVE, Tx, marks
from backchannel.storage.units import timers
from backchannel.storage.units.jobs import cron

_OPEN = f"checking IS NOT NULL AND (checker IS NULL OR checker NOT IN ({ALIVE}))"


def open_checks(tx: Tx) -> list[JobCheck]:
    """List the checks that no living process makes."""
    found = map(CRON_JOBS.read, tx.all(f"{CRON_JOBS.select} WHERE {_OPEN} ORDER BY checking_since, id"))
    return [JobCheck(stored.job, stored.checking) for stored in found if stored.checking is not None]


def claim(tx: Tx, check: JobCheck) -> bool:
    """Take a check for this process; False if another has it, or it is over."""
    claimed = tx.one(
        f"UPDATE cron_jobs SET checker = ? WHERE id = ? AND checking = ? AND {_OPEN} RETURNING check_crashes",
        tx.number,
        check.job.id,
        check.run_id,
    )
    if claimed is None:
        return False
    if claimed[0] >= CRASHES_UNTIL_SKIPPED:
        why = f"the process died {claimed[0]} times while the command ran"
        finish(tx, check, CheckVerdict(why=why, is_fault=True))
        return False
    return True


def finish(tx: Tx, check: JobCheck, verdict: CheckVerdict) -> Run | None:
    """End a check of this process: start the run, or count a skip. A job that has gone or changed process: nothing."""
    stored = cron.find(tx, check.job.id)
    if stored is None or stored.checking != check.run_id or stored.checker != tx.number:
        return None
    if verdict.why is None and cron.is_being_deleted(tx, cron.key_of(stored.job, tx.scheme)):
        # Checked again soon, as a time is that comes while its session is being deleted.
        tx.run("UPDATE cron_jobs SET checker = NULL WHERE id = ?", stored.id)
        timers.set_timer(tx, cron.CHECK_TIMER, stored.id, tx.now + cron.AGAIN_MS)
        return None
    tx.run("UPDATE cron_jobs SET checking = NULL, checking_since = NULL, checker = NULL WHERE id = ?", stored.id)
    timers.clear_timer(tx, cron.CHECK_TIMER, stored.id)
    return _settle(tx, stored, check.run_id, verdict)


def _settle(tx: Tx, stored: StoredJob, run_id: str, verdict: CheckVerdict) -> Run | None:
    if verdict.why is not None:
        cron.count_skip(tx, stored, JobSkip.WHEN, verdict.why, is_fault=verdict.is_fault)
        return None
    stored = _without_fault(tx, stored)
    if (skip := cron.lack(tx, stored)) is not None:
        cron.count_skip(tx, stored, skip)
        return None
    job = stored.job
    message = job.message if job.when is None else message_with_output(job.message, verdict.output)
    return cron.start(tx, job, run_id, message)


def _without_fault(tx: Tx, stored: StoredJob) -> StoredJob:
    """Record that the command works, if the last time it did not."""
    skips = dict(stored.skips_by_reason)
    last = skips.get(JobSkip.WHEN)
    if last is None or not last.is_fault:
        return stored
    skips[JobSkip.WHEN.value] = replace(last, is_fault=False)
    body = STORED_SKIPS.write(skips, stored.skips)
    tx.run("UPDATE cron_jobs SET skips = ? WHERE id = ?", body, stored.id)
    return replace(stored, skips=body)


def faults(tx: Tx) -> dict[str, str]:
    """Name the jobs whose command could not do its work the last time, each with the reason."""
    rows = tx.all("SELECT id, skips FROM cron_jobs WHERE skips IS NOT NULL ORDER BY id")
    found = {job_id: STORED_SKIPS.read(body).get(JobSkip.WHEN) for job_id, body in rows}
    return {job_id: last.why or "" for job_id, last in found.items() if last is not None and last.is_fault}


def due(tx: Tx, job_id: str) -> None:
    """Handle the timer of a check: tell of it if no living process makes it."""
    stored = cron.find(tx, job_id)
    if stored is None or stored.checking is None:
        return
    timers.set_timer(tx, cron.CHECK_TIMER, job_id, tx.now + cron.CHECKED_AGAIN_MS)
    if tx.one(f"SELECT 1 FROM cron_jobs WHERE id = ? AND {_OPEN}", job_id) is not None:
        tx.tell(CheckDue(job_id))


def end_dead(tx: Tx, dead: Sequence[int]) -> None:
    """Count a crash for each check that a dead process was making."""
    tx.run(
        f"UPDATE cron_jobs SET checker = NULL, check_crashes = check_crashes + 1 WHERE checker IN ({marks(dead)})",
        *dead,
    )
