"""The transactions of cron jobs and timers, as the store has them."""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.config.schema_doors import CronJob
from backchannel.storage import clock
from backchannel.storage.driver import Driver, look, read, write
from backchannel.storage.units import timers
from backchannel.storage.units.jobs import checks, cron


class ScheduleUnits:
    """What happens by the clock."""

    driver: Driver

    cron_jobs = read(cron.listed)
    cron_job = look(cron.look)
    add_cron_job = write(cron.add)
    change_cron_job = write(cron.change)
    run_cron_job = write(cron.run_now)
    check_cron_job = write(cron.check_now)
    remove_cron_job = write(cron.remove)
    open_checks = read(checks.open_checks)
    claim_check = write(checks.claim)
    finish_check = write(checks.finish)
    due = read(clock.due)
    carry_out_timer = write(clock.carry_out)
    postpone_timer = write(timers.postpone)

    async def sync_cron_jobs(self, jobs: Sequence[CronJob]) -> None:
        """Take over the jobs of the configuration, in one commit, if there are any or were."""
        known = await self.driver.look(cron.any_configured)
        if jobs or known:
            await self.driver.write(cron.sync, jobs)
