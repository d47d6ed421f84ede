"""OpenClaw's further methods for cron jobs: get, update, status, runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from backchannel.core.keys import normalise_agent_id
from backchannel.core.runs import Run, RunKind, RunState
from backchannel.core.text import cut
from backchannel.gateway.calls import Call, method
from backchannel.gateway.events.subscriptions import error_of
from backchannel.gateway.methods.cron import JobParams, job_id, job_key, view_job
from backchannel.gateway.openclaw.job_shapes import JobPatch, changed
from backchannel.openclaw.jobs import JobRunsPage, JobRunView, JobsStatus, JobView
from backchannel.storage.jobs import ListedJob
from backchannel.tools.rows import duration_ms
from backchannel.wire.frames import SharedNoParams, TokenScope

_MOST_RUNS, _MOST_SKIPPED = 200, 10_000
_FINISHED = tuple(state for state in RunState if state not in (RunState.QUEUED, RunState.RUNNING))
_SUMMARY_LENGTH = 500


class CronUpdateParams(JobParams, frozen=True, kw_only=True):
    patch: JobPatch


class CronRunsParams(JobParams, frozen=True, kw_only=True):
    agent_id: str | None = None
    status: str = "all"
    statuses: tuple[str, ...] = ()
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 50
    offset: Annotated[int, Meta(ge=0, le=_MOST_SKIPPED)] = 0


@method("cron.get", TokenScope.READ)
async def cron_get(call: Call, params: JobParams) -> JobView:
    """Shows one cron job."""
    return view_job(call, await call.parts.store.cron_job(job_id(params)))


@method("cron.update", TokenScope.ADMIN)
async def cron_update(call: Call, params: CronUpdateParams) -> JobView:
    """Changes a cron job that `cron.add` added; fields that are left out stay."""
    return view_job(call, await call.parts.cron.change(job_id(params), lambda job: changed(job, params.patch)))


@method("cron.status", TokenScope.READ)
async def cron_status(call: Call, params: SharedNoParams) -> JobsStatus:
    """Shows the number of cron jobs and the next time of one."""
    jobs = [each.stored for each in await call.parts.cron.list()]
    times = [job.next_at for job in jobs if job.next_at is not None]
    return JobsStatus(enabled=True, jobs=len(jobs), next_wake_at_ms=min(times, default=None))


@method("cron.runs", TokenScope.READ)
async def cron_runs(call: Call, params: CronRunsParams) -> JobRunsPage:
    """Lists the ended runs of one cron job or of all, newest first."""
    limit = min(params.limit, _MOST_RUNS)
    end = params.offset + limit
    if params.id or params.job_id:
        jobs = [await call.parts.store.cron_job(job_id(params))]
    else:
        jobs = await call.parts.cron.list()
    if params.agent_id is not None:
        jobs = [job for job in jobs if job_key(call, job).agent == normalise_agent_id(params.agent_id)]
    states = _states(params)
    entries = [entry for job in jobs if states for entry in await _runs_of(call, job, states, end + 1)]
    entries.sort(key=lambda entry: entry.ts, reverse=True)
    has_more = len(entries) > end
    return JobRunsPage(
        entries=entries[params.offset : end],
        total=await call.parts.store.count_runs([str(job_key(call, job)) for job in jobs], states, RunKind.CRON),
        offset=params.offset,
        limit=limit,
        has_more=has_more,
        next_offset=end if has_more else None,
    )


def _states(params: CronRunsParams) -> tuple[RunState, ...]:
    """Choose the states of runs asked for; a skipped run does not exist."""
    words = set(params.statuses) or {params.status}
    return tuple(state for state in _FINISHED if words & {"all", "ok" if state is RunState.OK else "error"})


async def _runs_of(call: Call, listed: ListedJob, states: tuple[RunState, ...], limit: int) -> list[JobRunView]:
    key = job_key(call, listed)
    runs = await call.parts.store.runs(session_key=str(key), states=states, kind=RunKind.CRON, limit=limit)
    return [_show_run(call, listed.stored.id, run) for run in runs]


def _show_run(call: Call, job_id: str, run: Run) -> JobRunView:
    is_ok = run.state is RunState.OK
    return JobRunView(
        ts=run.ended_at or run.accepted_at,
        job_id=job_id,
        action="finished",
        status="ok" if is_ok else "error",
        session_key=call.parts.rows.key(run.session_key),
        session_id=run.session_id,
        run_id=run.id,
        run_at_ms=run.started_at or run.accepted_at,
        duration_ms=duration_ms(run),
        error=None if is_ok else error_of(run),
        summary=None if run.reply is None else cut(run.reply, _SUMMARY_LENGTH),
        model=run.answered_by,
    )
