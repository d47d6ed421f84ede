"""Cron jobs: listing, adding, firing and removing them."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta

from backchannel.config.schema_doors import CronDeliver, CronJob, CronWhen
from backchannel.config.schema_models import ModelSetting, fallbacks_of, primary_of
from backchannel.core.keys import SessionKey, normalise_agent_id
from backchannel.core.policy.checks import JobSkip
from backchannel.core.runs import MAX_RUN_S, Run
from backchannel.core.secrets.redaction import redact
from backchannel.core.sessions import Address
from backchannel.errors import InvalidRequest, JobExists
from backchannel.gateway.calls import Call, method
from backchannel.gateway.openclaw.job_shapes import (
    DeliveryGiven,
    JobName,
    JobWhen,
    PayloadGiven,
    check_payload,
    check_session_target,
    ids_of,
    job_id_of,
    preview_delivery,
    read_delivery,
    read_given_schedule,
    read_model_row,
    read_when,
    show_job,
)
from backchannel.openclaw.jobs import DeliveryPreview, JobPage, JobSchedule, JobView
from backchannel.storage.jobs import ListedJob
from backchannel.wire.answers import JobFired, JobRemoved
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Params, SharedParams
from backchannel.wire.state_answers import JobShown, LastRun, SkipsShown, WhenShown

_MOST_JOBS = 1000
_MOST_OF_A_NAME = 100
_BESIDE_JOBS = 4096


class JobDeliver(Params, frozen=True, kw_only=True):
    channel: str
    to: Annotated[str, Meta(min_length=1)]
    account_id: str | None = None


class CronAddParams(SharedParams, frozen=True, kw_only=True):
    """A job in our words (`id`, `message`, `when`, `tz`, `deliver`, `model`, `timeoutSeconds`) or in OpenClaw's."""

    id: str | None = None
    name: JobName | None = None
    schedule: str | JobSchedule
    message: str | None = None
    payload: PayloadGiven | None = None
    tz: str | None = None
    agent_id: str | None = None
    session_target: str | None = None
    when: JobWhen | None = None
    deliver: JobDeliver | None = None
    delivery: DeliveryGiven | None = None
    model: ModelSetting | None = None
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


@method("cron.list", TokenScope.READ)
async def cron_list(call: Call, params: CronListParams) -> JobPage:
    """Lists the cron jobs, next ones first, each with its last run."""
    found = await call.parts.cron.list()
    chosen = [job for job in (view_job(call, each) for each in found) if _fits(job, params)]
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
    """Take as many jobs as fit into a frame, at least one; none is cut, since clients write back what they read."""
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


@method("cron.add", TokenScope.ADMIN)
async def cron_add(call: Call, params: CronAddParams) -> JobView:
    """Adds a cron job that survives restarts; adding the same job again changes nothing.

    Without an `id` it is made from the `name`, with a number if another job has it. A schedule is a text as in the
    configuration, or an object as `cron.list` shows it. `message`, `model` and `timeoutSeconds` may stand in a
    `payload`, and `deliver` may be a `delivery`. A `delivery` to the channel `last` goes nowhere, since nobody speaks
    to a job's session from outside.
    """
    job = _read_job(params)
    if params.id is not None:
        return view_job(call, await call.parts.cron.add(job))
    for id in ids_of(job.id, _MOST_OF_A_NAME):
        with suppress(JobExists):
            return view_job(call, await call.parts.cron.add(msgspec.structs.replace(job, id=id)))
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
    if isinstance(schedule, JobSchedule):
        schedule, tz = read_given_schedule(schedule)
    return CronJob(
        id=job_id_of(params.name or "") if params.id is None else params.id,
        name=params.name,
        schedule=schedule,
        tz=tz,
        agent_id=params.agent_id,
        message=message,
        when=None if params.when is None else read_when(params.when),
        deliver=_read_deliver(params),
        model=read_model_row(payload, params.model),
        timeout_seconds=params.timeout_seconds if payload.timeout_seconds is UNSET else payload.timeout_seconds,
        enabled=params.enabled,
    )


def _read_deliver(params: CronAddParams) -> CronDeliver | None:
    if params.deliver is not None:
        return CronDeliver(**msgspec.structs.asdict(params.deliver))
    return None if params.delivery is None else read_delivery(params.delivery)


@method("cron.run", TokenScope.WRITE)
async def cron_run(call: Call, params: CronRunParams) -> JobFired:
    """Fires a cron job now, unless its last run is at work; its next time does not change.

    The answer of a job with `when` comes after its command. If that says no, there is no run: `reason` is `when`, and
    `cron.list` has what it said.
    """
    stored = (await call.parts.store.cron_job(job_id(params))).stored
    if params.mode == "if-enabled" and not stored.job.enabled:
        return JobFired(ok=True, id=stored.id, ran=False, reason="disabled")
    if params.mode == "due" and (stored.next_at is None or stored.next_at > call.parts.clock.now_ms()):
        return JobFired(ok=True, id=stored.id, ran=False, reason="not-due")
    run = await call.parts.cron.run(stored.id)
    if run is None:
        return JobFired(ok=True, id=stored.id, ran=False, reason=JobSkip.WHEN.value)
    return JobFired(ok=True, id=stored.id, ran=True, run_id=run.id, session_key=call.parts.rows.key(run.session_key))


@method("cron.remove", TokenScope.ADMIN)
async def cron_remove(call: Call, params: JobParams) -> JobRemoved:
    """Removes a cron job that `cron.add` added; its session stays, and a run at work goes on."""
    await call.parts.cron.remove(job_id(params))
    return JobRemoved(ok=True, id=job_id(params), removed=True)


def job_id(params: JobParams) -> str:
    given = params.id or params.job_id
    if not given:
        raise InvalidRequest("the parameter id is missing", param="id")
    return given


def job_key(call: Call, listed: ListedJob) -> SessionKey:
    return SessionKey.cron(listed.stored.job.agent_id or call.parts.scheme.default_agent, listed.stored.id)


def view_job(call: Call, listed: ListedJob) -> JobView:
    """Show a job in OpenClaw's shape, and in ours under `backchannel`."""
    return show_job(_shown(call, listed), listed)


def _shown(call: Call, listed: ListedJob) -> JobShown:
    stored, job, run = listed.stored, listed.stored.job, listed.last_run
    key = job_key(call, listed)
    return JobShown(
        id=stored.id,
        status=stored.status,
        source=stored.source,
        schedule=job.schedule,
        tz=job.tz,
        agent_id=key.agent,
        session_key=call.parts.rows.key(str(key)),
        deliver=None if job.deliver is None else Address(**msgspec.structs.asdict(job.deliver)),
        model=primary_of(job.model),
        fallbacks=fallbacks_of(job.model),
        timeout_seconds=job.timeout_seconds,
        next_at=stored.next_at,
        last_run=None if run is None else _last_run(run),
        last_error=stored.error or (None if run is None else run.error),
        skipped=stored.skipped,
        skips={reason: SkipsShown(**msgspec.structs.asdict(each)) for reason, each in stored.skips_by_reason.items()},
        when=None if job.when is None else _when(call, job.when),
        checking_since=stored.checking_since,
        created_at=stored.created_at,
    )


def _when(call: Call, when: CronWhen) -> WhenShown:
    command = call.parts.secrets.hide(redact(when.command)[0])
    return WhenShown(command=command, timeout_seconds=when.timeout_seconds)


def _last_run(run: Run) -> LastRun:
    return LastRun(run_id=run.id, status=run.state.value, accepted_at=run.accepted_at, ended_at=run.ended_at)
