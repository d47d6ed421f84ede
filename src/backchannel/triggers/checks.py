"""Checks of cron jobs: the commands of `when` are run, and their ends committed.

Rows decide (`storage/units/jobs/checks.py`). This service takes the checks of agents that are here. It runs each
command like the agent's own `exec`: in the workspace and sandbox, with the same limits and slots.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from backchannel.core.contracts import ToolContext
from backchannel.core.facts import CheckDue, JobSkipped
from backchannel.core.keys import SessionKey
from backchannel.core.policy.checks import CheckEnd, CheckVerdict, JobSkip, judge_check
from backchannel.core.runs import Run
from backchannel.core.secrets.known import KnownSecrets
from backchannel.core.secrets.redaction import redact
from backchannel.core.text import storable_text
from backchannel.errors import FenceLost, GatewayError
from backchannel.runtime.events import Event
from backchannel.runtime.runtime import Runtime
from backchannel.runtime.supervisor import Tasks
from backchannel.service import Service
from backchannel.storage.jobs import JobCheck
from backchannel.tools.base import Parts
from backchannel.workspace.commands import ShellCommands

log = structlog.get_logger(__name__)


class JobChecks(Service):
    """Makes the checks of the agents that are here."""

    def __init__(self, parts: Parts, runtime: Runtime, commands: ShellCommands, secrets: KnownSecrets) -> None:
        self._store, self._agents, self._scheme = parts.store, parts.agents, parts.scheme
        self._runtime = runtime
        self._commands = commands
        self._secrets = secrets
        self._tasks = Tasks()
        self._is_open = False
        runtime.hub.listen(lambda event: self._look_soon(), CheckDue, elsewhere=True)
        runtime.duties.listen(self._look_soon)  # a gateway has gone: what it left is not waited for
        runtime.hub.listen(log_skips, JobSkipped)

    async def start(self) -> None:
        """Take the checks that an earlier process left."""
        self._is_open = True
        self._look_soon()

    async def halt(self) -> None:
        await self.close()

    async def close(self) -> None:
        """End all commands. The next process runs them again."""
        self._is_open = False
        await self._tasks.cancel()

    def _look_soon(self) -> None:
        if self._is_open:
            self._tasks.spawn(self._look(), name="checks of jobs")

    async def _look(self) -> None:
        """Take what nobody has, as far as the agent is here."""
        try:
            for check in await self._runtime.durably(self._store.open_checks):
                if self._is_here(check) and await self._runtime.durably(partial(self._store.claim_check, check)):
                    self._tasks.spawn(self._make(check), name=f"check of {check.job.id}")
        except FenceLost:
            return  # the store is closed: the next start goes on

    def _is_here(self, check: JobCheck) -> bool:
        agent_id = check.job.agent_id or self._scheme.default_agent
        return not self._runtime.duties.is_shared or agent_id in self._agents.ids_here()

    async def by_hand(self, check: JobCheck) -> Run | None:
        """Make a check that this process has begun; returns the run, or None if there is none."""
        made = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._make(check, made), name=f"check of {check.job.id}")
        run: Run | None = await made
        return run

    async def _make(self, check: JobCheck, made: asyncio.Future[Run | None] | None = None) -> None:
        run: Run | None = None
        try:
            verdict = self._without_secrets(judge_check(await self._run(check)))
            run = await self._runtime.durably(partial(self._store.finish_check, check, verdict))
        except FenceLost:
            return  # the store is closed, or another process has taken over
        finally:
            if made is not None and not made.done():
                made.set_result(run)

    async def _run(self, check: JobCheck) -> CheckEnd:
        when = check.job.when
        if when is None:  # taken out of the job meanwhile
            return CheckEnd(code=0, how="", output="-")
        agent_id = check.job.agent_id or self._scheme.default_agent
        key = SessionKey.cron(agent_id, check.job.id)
        context = ToolContext(call_id=check.run_id, run_id=check.run_id, session_key=str(key), agent_id=agent_id)
        try:
            return await self._commands.check(context, when.command, when.limit_s)
        except GatewayError as refused:
            return CheckEnd(how=refused.message)
        except Exception as error:  # the edge that keeps the job going: its time is skipped, and the next one comes
            log.exception("the check of a job failed", job=check.job.id)
            return CheckEnd(how=f"{type(error).__name__}: {error}")

    def _without_secrets(self, verdict: CheckVerdict) -> CheckVerdict:
        """Hide credentials in what operators are shown; the message of the run is for the model."""
        if verdict.why is None:
            return CheckVerdict(output=storable_text(verdict.output))
        why = self._secrets.hide(redact(storable_text(verdict.why))[0])
        return CheckVerdict(why=why, is_fault=verdict.is_fault)


def log_skips(event: Event) -> None:
    """Write into the log that a command said no to a time of a job; a listener."""
    if isinstance(event, JobSkipped) and event.reason == JobSkip.WHEN:
        tell = log.warning if event.is_fault else log.info
        tell("a job was skipped", job=event.job_id, reason=event.reason, why=event.why)
