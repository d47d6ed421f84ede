"""Cron jobs: listing them, adding and removing those of run time, and firing one by hand."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backchannel.config.schema_doors import CronDeliver, CronJob
from backchannel.core.answers import JobAdded, JobFired, JobRemoved, JobsListed
from backchannel.core.keys import SessionKey
from backchannel.core.rows import JobDeliverShown, JobShown, LastRun
from backchannel.core.runs import Run
from backchannel.core.shapes import Params, SharedParams
from backchannel.gateway.connections import Call, Method
from backchannel.gateway.methods.runs import MAX_RUN_S
from backchannel.gateway.protocol import SharedNoParams, TokenScope
from backchannel.storage.cron import ListedJob


class JobDeliver(Params, frozen=True, kw_only=True):
    channel: str
    to: Annotated[str, Meta(min_length=1)]
    account_id: str | None = None


class CronAddParams(Params, frozen=True, kw_only=True):
    id: str
    schedule: str
    message: str
    tz: str | None = None
    agent_id: str | None = None
    deliver: JobDeliver | None = None
    model: str | None = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=MAX_RUN_S)] | None = None
    enabled: bool = True


class JobParams(SharedParams, frozen=True, kw_only=True):
    id: str


async def cron_list(call: Call, params: SharedNoParams) -> JobsListed:
    """Lists the cron jobs, those that come next first, each with its last run."""
    return JobsListed(jobs=[_shown(call, job) for job in await call.parts.cron.list()])


async def cron_add(call: Call, params: CronAddParams) -> JobAdded:
    """Adds a cron job that stays over restarts; the very same again changes nothing."""
    given = msgspec.structs.asdict(params)
    if params.deliver is not None:
        given["deliver"] = CronDeliver(**msgspec.structs.asdict(params.deliver))
    return JobAdded(job=_shown(call, await call.parts.cron.add(CronJob(**given))))


async def cron_run(call: Call, params: JobParams) -> JobFired:
    """Fires a cron job now, unless its last run is at work; when it comes next stays as it is."""
    run = await call.parts.cron.run(params.id)
    return JobFired(id=params.id, run_id=run.id, session_key=call.parts.rows.key(run.session_key))


async def cron_remove(call: Call, params: JobParams) -> JobRemoved:
    """Removes a cron job that was added by `cron.add`; its session stays, and a run at work goes on."""
    await call.parts.cron.remove(params.id)
    return JobRemoved(ok=True, id=params.id)


def _shown(call: Call, listed: ListedJob) -> JobShown:
    stored, job, run = listed.stored, listed.stored.job, listed.last_run
    agent_id = job.agent_id or call.parts.scheme.default_agent
    return JobShown(
        id=stored.id,
        status=stored.status,
        source=stored.source,
        schedule=job.schedule,
        tz=job.tz,
        agent_id=agent_id,
        session_key=call.parts.rows.key(str(SessionKey.cron(agent_id, stored.id))),
        message=job.message,
        deliver=None if job.deliver is None else JobDeliverShown(**msgspec.structs.asdict(job.deliver)),
        model=job.model,
        timeout_seconds=job.timeout_seconds,
        next_at=stored.next_at,
        last_run=None if run is None else _last_run(run),
        last_error=stored.error or (None if run is None else run.error),
        skipped=stored.skipped,
        created_at=stored.created_at,
    )


def _last_run(run: Run) -> LastRun:
    return LastRun(run_id=run.id, status=run.state.value, accepted_at=run.accepted_at, ended_at=run.ended_at)


_JOB = (
    "{id, status: scheduled | disabled | done | error, source: config | runtime, schedule, tz?, agentId, sessionKey, "
    "message, deliver? {channel, to, accountId?}, model?, timeoutSeconds?, nextAt?, "
    "lastRun? {runId, status, acceptedAt, endedAt?}, lastError?, skipped, createdAt}"
)

METHODS: tuple[Method[Any], ...] = (
    Method("cron.list", SharedNoParams, TokenScope.READ, cron_list, f"`{{jobs: [{_JOB}]}}`"),
    Method("cron.add", CronAddParams, TokenScope.ADMIN, cron_add, "`{job}`, as `cron.list` shows it"),
    Method(
        "cron.run", JobParams, TokenScope.WRITE, cron_run, "`{id, runId, sessionKey}`; `agent.wait` waits for the run"
    ),
    Method("cron.remove", JobParams, TokenScope.ADMIN, cron_remove, "`{ok, id}`"),
)
