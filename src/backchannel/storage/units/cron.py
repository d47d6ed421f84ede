"""Units about cron jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from backchannel.config.schema_doors import CronJob
from backchannel.core.runs import Run
from backchannel.storage.transactions import cron
from backchannel.storage.transactions.cron import ListedJob
from backchannel.storage.units.base import Units


class CronUnits(Units):
    """Cron jobs; what fires them is their timer."""

    async def sync_cron_jobs(self, jobs: Sequence[CronJob]) -> None:
        """Take over the jobs of the configuration, in one commit."""
        known = self._driver.look(cron.any_configured)
        if jobs or known:
            await self._driver.write(partial(cron.sync, jobs=jobs, now=self._now))

    async def cron_jobs(self) -> list[ListedJob]:
        return await self._read(cron.listed)

    async def cron_job(self, job_id: str) -> ListedJob:
        """Load a job and its last run.

        Raises:
            JobNotFound
        """
        return self._driver.look(partial(cron.look, job_id=job_id))

    async def add_cron_job(self, job: CronJob) -> ListedJob:
        """Keep a new job.

        Raises:
            JobExists, InvalidSchedule
        """
        return await self._driver.write(partial(cron.add, job=job, now=self._now))

    async def run_cron_job(self, job_id: str) -> Run:
        """Fire a job by hand.

        Raises:
            JobNotFound, JobRunning
        """
        return await self._driver.write(partial(cron.run_now, job_id=job_id, scheme=self.scheme, now=self._now))

    async def remove_cron_job(self, job_id: str) -> None:
        """Forget a job.

        Raises:
            JobNotFound, JobConfigured
        """
        await self._driver.write(partial(cron.remove, job_id=job_id))
