"""Cron jobs as their rows say, and where each comes from."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from backchannel.config.schema_doors import CronJob
from backchannel.core.runs import Run
from backchannel.core.stored import StoredForm

STORED_JOB: StoredForm[CronJob] = StoredForm(CronJob)


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

    @property
    def job(self) -> CronJob:
        return STORED_JOB.read(self.body)

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
