"""Cron: messages that come by the clock.

The jobs of the configuration are taken over at each start, before any of them can fire. Others are added and removed
while the gateway runs, and stay. Rows decide when a job fires: `storage/units/jobs/cron.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from backchannel.config.jobs import job_problems
from backchannel.config.schedules import read_schedule
from backchannel.config.schema_doors import CronJob
from backchannel.config.schema_models import fallbacks_of, primary_of
from backchannel.core.delivery.channel_list import Channels
from backchannel.core.keys import normalise_agent_id
from backchannel.core.runs import Run
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest
from backchannel.storage.jobs import ListedJob
from backchannel.tools.base import Parts
from backchannel.triggers.checks import JobChecks


class CronJobs:
    """The cron jobs of a gateway: those of its configuration, and those that were added while it ran."""

    def __init__(self, parts: Parts, channels: Channels, checks: JobChecks) -> None:
        self._parts = parts
        self._checks = checks
        self._store = parts.store
        self._channels = channels

    async def sync(self) -> None:
        """Take over the jobs of the configuration, as it is now."""
        await self._store.sync_cron_jobs(self._parts.config.cron.jobs)

    async def list(self) -> list[ListedJob]:
        """List all jobs, each with its last run; those that come next first."""
        return await self._store.cron_jobs()

    async def add(self, job: CronJob) -> ListedJob:
        """Keep a job, also over restarts; the very same again changes nothing.

        Raises:
            InvalidRequest: something in it cannot be used; the message names it.
            InvalidSchedule: it never comes, or its one time has passed.
            JobExists: another job has this id.
            UnknownAgent, UnknownModel, UnknownChannel
        """
        return await self._store.add_cron_job(self._checked(job))

    async def change(self, job_id: str, decide: Callable[[CronJob], CronJob]) -> ListedJob:
        """Change a job that was added while a gateway ran, as `decide` says; its session and its runs stay.

        Raises:
            JobNotFound
            JobConfigured: it stands in the configuration, and is changed there.
            InvalidRequest, InvalidSchedule, UnknownAgent, UnknownModel, UnknownChannel: as `add`.
        """
        return await self._store.change_cron_job(job_id, lambda job: self._checked(decide(job), job))

    def _checked(self, job: CronJob, before: CronJob | None = None) -> CronJob:
        """Refuse what a job cannot be, unless it was so before: older gateways took more."""
        known = set() if before is None else set(job_problems(before))
        if wrong := next((each for each in job_problems(job) if each not in known), None):
            place = ".".join(wrong.path)
            raise InvalidRequest(f"{place}: got {quoted(wrong.value)}, {wrong.what}", param=place)
        if not job.message.strip():
            raise InvalidRequest("message: it is empty", param="message")
        read_schedule(job.schedule, job.tz)
        for ref in (primary_of(job.model), *(fallbacks_of(job.model) or ())):
            if ref is not None:
                self._parts.models.check(ref)
        if job.deliver is not None:
            self._channels.check(job.deliver.channel)
        if job.agent_id is not None:
            job = replace(job, agent_id=normalise_agent_id(job.agent_id))
        self._check_agent(job)
        return job

    def _check_agent(self, job: CronJob) -> None:
        self._parts.agents.get(job.agent_id or self._parts.scheme.default_agent)

    async def run(self, job_id: str) -> Run | None:
        """Fire a job now; when it comes next stays as it is.

        A job with `when` is checked first: this returns when its command has ended, with None if it said no.

        Raises:
            JobNotFound, UnknownAgent
            JobRunning: its last run or its check has not ended.
        """
        job = (await self._store.cron_job(job_id)).stored.job
        self._check_agent(job)
        if job.when is None:
            return await self._store.run_cron_job(job_id)
        return await self._checks.by_hand(await self._store.check_cron_job(job_id))

    async def remove(self, job_id: str) -> None:
        """Forget a job that was added while a gateway ran; its session and its runs stay.

        Raises:
            JobNotFound
            JobConfigured: it stands in the configuration, and is removed there.
        """
        await self._store.remove_cron_job(job_id)
