"""Cron jobs: listing them, adding, changing and removing those of run time, firing one by hand, and what they did."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from backchannel.config.schema_doors import CronDeliver, CronJob
from backchannel.core.keys import SessionKey, normalise_agent_id
from backchannel.core.runs import MAX_RUN_S, Run, RunKind, RunState
from backchannel.core.text import cut
from backchannel.errors import InvalidRequest, JobExists
from backchannel.gateway.events.subscriptions import error_of
from backchannel.gateway.openclaw.job_shapes import (
    DeliveryGiven,
    JobName,
    JobPatch,
    PayloadGiven,
    ScheduleGiven,
    changed,
    check_payload,
    check_session_target,
    ids_of,
    job_id_of,
    preview_delivery,
    read_delivery,
    read_given_schedule,
    show_delivery,
    show_name,
    show_payload,
    show_schedule,
)
from backchannel.gateway.ws.connections import Call, Method
from backchannel.storage.jobs import ListedJob
from backchannel.tools.rows import duration_ms
from backchannel.wire.answers import JobFired, JobNotFired, JobRemoved
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.jobs import DeliveryPreview, JobPage, JobRunsPage, JobRunView, JobsStatus, JobStateView, JobView
from backchannel.wire.rows import JobDeliverShown, JobShown, LastRun
from backchannel.wire.shapes import Params, SharedParams

_MOST_JOBS, _MOST_RUNS = 1000, 200
_MOST_OF_A_NAME = 100
_MOST_SKIPPED = 10_000
_BESIDE_JOBS = 4096
_FINISHED = tuple(state for state in RunState if state not in (RunState.QUEUED, RunState.RUNNING))
_SUMMARY_LENGTH = 500


class JobDeliver(Params, frozen=True, kw_only=True):
    channel: str
    to: Annotated[str, Meta(min_length=1)]
    account_id: str | None = None


class CronAddParams(SharedParams, frozen=True, kw_only=True):
    """Ours are `id`, `message`, `tz`, `deliver`, `model`, `timeoutSeconds`; OpenClaw's the others."""

    id: str | None = None
    name: JobName | None = None
    schedule: str | ScheduleGiven
    message: str | None = None
    payload: PayloadGiven | None = None
    tz: str | None = None
    agent_id: str | None = None
    session_target: str | None = None
    deliver: JobDeliver | None = None
    delivery: DeliveryGiven | None = None
    model: str | None = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=MAX_RUN_S)] | None = None
    enabled: bool = True


class CronListParams(SharedParams, frozen=True, kw_only=True):
    include_disabled: bool = True
    enabled: Literal["all", "enabled", "disabled"] = "all"
    query: str = ""
    agent_id: str | None = None
    schedule_kind: str = "all"
    last_run_status: str = "all"
    sort_by: Literal["nextRunAtMs", "updatedAtMs", "name"] = "nextRunAtMs"
    sort_dir: Literal["asc", "desc"] = "asc"
    include_delivery_previews: bool = True
    compact: bool = False
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _MOST_JOBS
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class JobParams(SharedParams, frozen=True, kw_only=True):
    id: str | None = None
    job_id: str | None = None


class CronRunParams(JobParams, frozen=True, kw_only=True):
    mode: Literal["due", "force", "if-enabled"] = "force"


class CronUpdateParams(JobParams, frozen=True, kw_only=True):
    patch: JobPatch


class CronRunsParams(JobParams, frozen=True, kw_only=True):
    agent_id: str | None = None
    status: str = "all"
    statuses: tuple[str, ...] = ()
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 50
    offset: Annotated[int, Meta(ge=0, le=_MOST_SKIPPED)] = 0


async def cron_list(call: Call, params: CronListParams) -> JobPage:
    """Lists the cron jobs, those that come next first, each with its last run."""
    found = await call.parts.cron.list()
    chosen = [job for job in (view(call, each) for each in found) if _fits(job, params)]
    if params.sort_by != "nextRunAtMs":
        chosen.sort(key=lambda job: job.name if params.sort_by == "name" else job.updated_at_ms)
    if params.sort_dir == "desc":
        chosen.reverse()
    limit = min(params.limit, _MOST_JOBS)
    previews = _previews(call, found) if _wants_previews(params) else {}
    page = _fitting(chosen[params.offset : params.offset + limit], previews, call.connections.limits.frame_bytes)
    end = params.offset + len(page)
    return JobPage(
        jobs=page,
        total=len(chosen),
        offset=params.offset,
        limit=limit,
        has_more=end < len(chosen),
        next_offset=end if end < len(chosen) else None,
        snapshot_revision=hashlib.sha256("\n".join(each.stored.body for each in found).encode()).hexdigest()[:16],
        delivery_previews={job.id: previews[job.id] for job in page} if _wants_previews(params) else None,
    )


def _wants_previews(params: CronListParams) -> bool:
    return params.include_delivery_previews and not params.compact


def _previews(call: Call, found: list[ListedJob]) -> dict[str, DeliveryPreview]:
    return {each.stored.id: preview_delivery(each.stored.job, call.parts.channels) for each in found}


def _fitting(jobs: list[JobView], previews: dict[str, DeliveryPreview], room: int) -> list[JobView]:
    """Take as many jobs as a frame has room for, and at least one; none is cut: clients write back what they read."""
    room -= _BESIDE_JOBS
    for at, job in enumerate(jobs):
        room -= len(msgspec.json.encode((job, job.id, previews.get(job.id))))
        if room < 0:
            return jobs[: max(at, 1)]
    return jobs


def _fits(job: JobView, params: CronListParams) -> bool:
    shown = "all" if params.include_disabled else "enabled"
    return (
        {params.enabled, shown} <= {"all", "enabled" if job.enabled else "disabled"}
        and (not params.query or params.query.lower() in f"{job.id}\n{job.name}\n{job.payload.message}".lower())
        and (params.agent_id is None or normalise_agent_id(params.agent_id) == job.agent_id)
        and params.schedule_kind in ("all", job.schedule.kind)
        and params.last_run_status in ("all", job.state.last_run_status or "unknown")
    )


async def cron_get(call: Call, params: JobParams) -> JobView:
    """Shows one cron job."""
    return view(call, await call.parts.store.cron_job(_id(params)))


async def cron_add(call: Call, params: CronAddParams) -> JobView:
    """Adds a cron job that stays over restarts; the very same again changes nothing.

    Its id may be left out where it has a name: it is made of that, with a number where another job has it.
    """
    job = _read_job(params)
    if params.id is not None:
        return view(call, await call.parts.cron.add(job))
    for id in ids_of(job.id, _MOST_OF_A_NAME):
        with suppress(JobExists):
            return view(call, await call.parts.cron.add(msgspec.structs.replace(job, id=id)))
    raise JobExists(f"there are {_MOST_OF_A_NAME} other cron jobs with this name: choose another", name=params.name)


def _read_job(params: CronAddParams) -> CronJob:
    check_session_target(params.session_target)
    payload = params.payload or PayloadGiven()
    check_payload(payload)
    message = payload.message if params.message is None else params.message
    if message is None:
        raise InvalidRequest("cron.add: the parameter message is missing", param="message")
    if params.id is None and params.name is None:
        raise InvalidRequest("cron.add: the parameter id is missing (or a name, of which it is made)", param="id")
    schedule, tz = params.schedule, params.tz
    if isinstance(schedule, ScheduleGiven):
        schedule, tz = read_given_schedule(schedule)
    return CronJob(
        id=job_id_of(params.name or "") if params.id is None else params.id,
        name=params.name,
        schedule=schedule,
        tz=tz,
        agent_id=params.agent_id,
        message=message,
        deliver=_read_deliver(params),
        model=params.model if payload.model is UNSET else payload.model,
        timeout_seconds=params.timeout_seconds if payload.timeout_seconds is UNSET else payload.timeout_seconds,
        enabled=params.enabled,
    )


def _read_deliver(params: CronAddParams) -> CronDeliver | None:
    if params.deliver is not None:
        return CronDeliver(**msgspec.structs.asdict(params.deliver))
    return None if params.delivery is None else read_delivery(params.delivery)


async def cron_update(call: Call, params: CronUpdateParams) -> JobView:
    """Changes a cron job that was added by `cron.add`; what is left out stays."""
    return view(call, await call.parts.cron.change(_id(params), lambda job: changed(job, params.patch)))


async def cron_run(call: Call, params: CronRunParams) -> JobFired | JobNotFired:
    """Fires a cron job now, unless its last run is at work; when it comes next stays as it is."""
    stored = (await call.parts.store.cron_job(_id(params))).stored
    if params.mode == "if-enabled" and not stored.job.enabled:
        return JobNotFired(ok=True, id=stored.id, ran=False, reason="disabled")
    if params.mode == "due" and (stored.next_at is None or stored.next_at > call.parts.clock.now_ms()):
        return JobNotFired(ok=True, id=stored.id, ran=False, reason="not-due")
    run = await call.parts.cron.run(stored.id)
    return JobFired(ok=True, id=stored.id, ran=True, run_id=run.id, session_key=call.parts.rows.key(run.session_key))


async def cron_remove(call: Call, params: JobParams) -> JobRemoved:
    """Removes a cron job that was added by `cron.add`; its session stays, and a run at work goes on."""
    await call.parts.cron.remove(_id(params))
    return JobRemoved(ok=True, id=_id(params), removed=True)


async def cron_status(call: Call, params: SharedNoParams) -> JobsStatus:
    """Tells how many cron jobs there are, and when the next one comes."""
    jobs = [each.stored for each in await call.parts.cron.list()]
    times = [job.next_at for job in jobs if job.next_at is not None]
    return JobsStatus(enabled=True, jobs=len(jobs), next_wake_at_ms=min(times, default=None))


async def cron_runs(call: Call, params: CronRunsParams) -> JobRunsPage:
    """Lists the runs of a cron job that have ended, or of all, newest first."""
    limit = min(params.limit, _MOST_RUNS)
    end = params.offset + limit
    if params.id or params.job_id:
        jobs = [await call.parts.store.cron_job(_id(params))]
    else:
        jobs = await call.parts.cron.list()
    if params.agent_id is not None:
        jobs = [job for job in jobs if _key(call, job).agent == normalise_agent_id(params.agent_id)]
    states = _states(params)
    entries = [entry for job in jobs if states for entry in await _runs_of(call, job, states, end + 1)]
    entries.sort(key=lambda entry: entry.ts, reverse=True)
    has_more = len(entries) > end
    return JobRunsPage(
        entries=entries[params.offset : end],
        total=await call.parts.store.count_runs([str(_key(call, job)) for job in jobs], states, RunKind.CRON),
        offset=params.offset,
        limit=limit,
        has_more=has_more,
        next_offset=end if has_more else None,
    )


def _states(params: CronRunsParams) -> tuple[RunState, ...]:
    """Tell which runs are asked for; one that was skipped is no run."""
    words = set(params.statuses) or {params.status}
    return tuple(state for state in _FINISHED if words & {"all", "ok" if state is RunState.OK else "error"})


async def _runs_of(call: Call, listed: ListedJob, states: tuple[RunState, ...], limit: int) -> list[JobRunView]:
    key = _key(call, listed)
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


def _id(params: JobParams) -> str:
    given = params.id or params.job_id
    if not given:
        raise InvalidRequest("the parameter id is missing", param="id")
    return given


def _key(call: Call, listed: ListedJob) -> SessionKey:
    return SessionKey.cron(listed.stored.job.agent_id or call.parts.scheme.default_agent, listed.stored.id)


def view(call: Call, listed: ListedJob) -> JobView:
    """Show a job in both shapes: OpenClaw's, and ours under our name."""
    shown, job = _shown(call, listed), listed.stored.job
    return JobView(
        id=shown.id,
        name=show_name(job),
        enabled=job.enabled,
        agent_id=shown.agent_id,
        session_key=shown.session_key,
        created_at_ms=shown.created_at,
        updated_at_ms=listed.stored.updated_at or shown.created_at,
        schedule=show_schedule(job),
        session_target="isolated",
        wake_mode="now",
        payload=show_payload(job),
        delivery=show_delivery(job),
        state=_state(listed),
        backchannel=shown,
    )


def _state(listed: ListedJob) -> JobStateView:
    stored, run = listed.stored, listed.last_run
    if run is None:
        return JobStateView(next_run_at_ms=stored.next_at, last_error=stored.error)
    is_over = run.is_finished
    return JobStateView(
        next_run_at_ms=stored.next_at,
        running_at_ms=run.started_at if run.state is RunState.RUNNING else None,
        last_run_at_ms=run.started_at or run.accepted_at,
        last_run_status=("ok" if run.state is RunState.OK else "error") if is_over else None,
        last_error=stored.error or run.error,
        last_duration_ms=duration_ms(run) if is_over else None,
    )


def _shown(call: Call, listed: ListedJob) -> JobShown:
    stored, job, run = listed.stored, listed.stored.job, listed.last_run
    key = _key(call, listed)
    return JobShown(
        id=stored.id,
        status=stored.status,
        source=stored.source,
        schedule=job.schedule,
        tz=job.tz,
        agent_id=key.agent,
        session_key=call.parts.rows.key(str(key)),
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
    "{id, name, enabled, agentId, sessionKey, createdAtMs, updatedAtMs, schedule {kind: every | cron | at, everyMs?, "
    "expr?, tz?, at?}, sessionTarget, wakeMode, payload {kind, message, model?, timeoutSeconds?}, delivery {mode: "
    "none | announce, channel?, to?, accountId?}, state {nextRunAtMs?, runningAtMs?, lastRunAtMs?, lastRunStatus?: "
    "ok | error, lastError?, lastDurationMs?}, backchannel {id, status: scheduled | disabled | done | error, source: "
    "config | runtime, schedule, tz?, agentId, sessionKey, deliver? {channel, to, accountId?}, model?, "
    "timeoutSeconds?, nextAt?, lastRun? {runId, status, acceptedAt, endedAt?}, lastError?, skipped, createdAt}}"
)
_AS_LISTED = (
    "`{id, name, enabled, agentId, sessionKey, createdAtMs, updatedAtMs, schedule, sessionTarget, wakeMode, payload, "
    "delivery, state, backchannel}`, as `cron.list` shows it"
)

METHODS: tuple[Method[Any], ...] = (
    Method(
        "cron.list",
        CronListParams,
        TokenScope.READ,
        cron_list,
        f"`{{jobs: [{_JOB}], total, offset, limit, hasMore, nextOffset, snapshotRevision, "
        "deliveryPreviews? {id: {label, detail}}}`, "
        "the last unless `compact` is true or `includeDeliveryPreviews` false",
    ),
    Method("cron.get", JobParams, TokenScope.READ, cron_get, _AS_LISTED),
    Method("cron.status", SharedNoParams, TokenScope.READ, cron_status, "`{enabled, jobs, nextWakeAtMs}`"),
    Method(
        "cron.add",
        CronAddParams,
        TokenScope.ADMIN,
        cron_add,
        f"{_AS_LISTED}. A schedule is a text as in the configuration, or an object as `cron.list` shows it; `message`, "
        "`model` and `timeoutSeconds` may stand in a `payload`, and `deliver` may be a `delivery`. A `delivery` to the "
        "channel `last` goes nowhere: nobody speaks to a job's session from outside",
    ),
    Method("cron.update", CronUpdateParams, TokenScope.ADMIN, cron_update, _AS_LISTED),
    Method(
        "cron.run",
        CronRunParams,
        TokenScope.WRITE,
        cron_run,
        "`{ok, id, ran, runId, sessionKey}`, and `agent.wait` waits for the run; or, by its mode, "
        "`{ok, id, ran, reason: disabled | not-due}`",
    ),
    Method(
        "cron.runs",
        CronRunsParams,
        TokenScope.READ,
        cron_runs,
        "`{entries: [{ts, jobId, action, status: ok | error, sessionKey, sessionId?, runId, runAtMs, durationMs?, "
        "error?, summary?, model?}], total, offset, limit, hasMore, nextOffset}`",
    ),
    Method("cron.remove", JobParams, TokenScope.ADMIN, cron_remove, "`{ok, id, removed}`"),
)
