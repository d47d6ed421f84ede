"""Cron jobs as their rows say, and where each comes from."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from backchannel.config.schema_doors import CronJob
from backchannel.core.policy.checks import SkipCount
from backchannel.core.runs import Run
from backchannel.core.stored import StoredForm

STORED_JOB: StoredForm[CronJob] = StoredForm(CronJob)
STORED_SKIPS: StoredForm[dict[str, SkipCount]] = StoredForm(dict[str, SkipCount])


class Source(StrEnum):
    """Where a job comes from. Each start brings the jobs of the configuration up to date."""

    CONFIG = "config"
    RUNTIME = "runtime"


class JobStatus(StrEnum):
    """Whether a job is still to come."""

    SCHEDULED = "scheduled"
    DISABLED = "disabled"
    DONE = "done"
    ERROR = "error"


class StoredJob(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A job as its row says; the field names are the columns."""

    id: str
    source: Source
    body: str
    created_at: int
    next_at: int | None
    fired_at: int | None
    """The last scheduled time that came. A run by hand does not count."""
    last_run: str | None
    skipped: int
    error: str | None
    updated_at: int | None
    """When somebody last changed the job. Firing is no change."""
    checking: str | None
    """The id that the run will have; None if no check is under way."""
    checking_since: int | None
    checker: int | None
    """The number of the process that runs the command."""
    check_crashes: int
    """How often a process died during this check."""
    skips: str | None

    @property
    def job(self) -> CronJob:
        return STORED_JOB.read(self.body)

    @property
    def skips_by_reason(self) -> Mapping[str, SkipCount]:
        return {} if self.skips is None else STORED_SKIPS.read(self.skips)

    @property
    def status(self) -> JobStatus:
        if not self.job.enabled:
            return JobStatus.DISABLED
        if self.next_at is not None:
            return JobStatus.SCHEDULED
        return JobStatus.ERROR if self.error else JobStatus.DONE


class ListedJob(msgspec.Struct, frozen=True):
    """A job and its last run."""

    stored: StoredJob
    last_run: Run | None


class JobCheck(NamedTuple):
    """A check that this process has to make: the job, and the id that its run will have."""

    job: CronJob
    run_id: str
