"""Cron jobs between OpenClaw's shape and ours.

Its clients write a schedule, a payload and a delivery as objects, and a name instead of an id. A job here cannot run in
the main session, run a command or post to an address: such requests are refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from backchannel.config.jobs import is_job_name
from backchannel.config.schedules import Every, Once, read_schedule, show_moment
from backchannel.config.schema_doors import LONGEST_CHECK_S, UNIT_MS, CronDeliver, CronJob, CronWhen
from backchannel.config.schema_models import ModelRowSettings, ModelSetting, fallbacks_of, primary_of
from backchannel.core.delivery.channels import no_channel
from backchannel.core.runs import MAX_RUN_S, RunState
from backchannel.core.text import STORED_LIMIT, clean_name, quoted
from backchannel.errors import InvalidRequest, InvalidSchedule
from backchannel.openclaw.jobs import DeliveryPreview, DeliveryView, JobSchedule, JobStateView, JobView, PayloadView
from backchannel.storage.jobs import ListedJob
from backchannel.tools.rows import duration_ms
from backchannel.wire.shapes import Params, SharedParams
from backchannel.wire.state_answers import JobShown

_NOT_IN_AN_ID = re.compile(r"[^a-z0-9_.-]+")
_ID_LENGTH = 64


JobName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=STORED_LIMIT)]


class PayloadGiven(SharedParams, frozen=True, kw_only=True):
    kind: str = "agentTurn"
    message: str | None = None
    model: ModelSetting | UnsetType | None = UNSET
    fallbacks: tuple[str, ...] | None = None
    thinking: str | None = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=MAX_RUN_S)] | UnsetType | None = UNSET


class DeliveryGiven(SharedParams, frozen=True, kw_only=True):
    mode: str = "announce"
    channel: str | None = None
    to: str | None = None
    account_id: str | None = None
    thread_id: str | int | None = None


class JobWhen(Params, frozen=True, kw_only=True):
    """Ours: a command that decides whether a job runs."""

    command: Annotated[str, Meta(min_length=1)]
    timeout_seconds: Annotated[float, Meta(gt=0, le=LONGEST_CHECK_S)] | None = None


def read_when(given: JobWhen) -> CronWhen:
    return CronWhen(command=given.command, timeout_seconds=given.timeout_seconds)


def read_given_schedule(given: JobSchedule) -> tuple[str, str | None]:
    """Read a schedule as ours is written, and its time zone.

    Raises:
        InvalidRequest: it is of a kind that there is not here, or what its kind needs is missing.
    """
    match given:
        case JobSchedule(kind="every", every_ms=int(every), anchor_ms=None):
            return _every(every), None
        case JobSchedule(kind="cron", expr=str(expr)):
            return expr, given.tz
        case JobSchedule(kind="at", at=str(at)):
            return at, given.tz
    raise InvalidRequest(
        "schedule: expected {kind: every, everyMs} (counted from when the job is added), {kind: cron, expr, tz?} "
        f"or {{kind: at, at}}, got the kind {quoted(given.kind, 64)}",
        param="schedule",
    )


def _every(ms: int) -> str:
    for unit in ("d", "h", "m", "s"):
        if ms % UNIT_MS[unit] == 0:
            return f"every {ms // UNIT_MS[unit]}{unit}"
    return f"every {ms / UNIT_MS['s']}s"


def _show_schedule(job: CronJob) -> JobSchedule:
    """Show a schedule. Five fields are shown as they are, since parsing them is slow."""
    if len(job.schedule.split()) == 5:
        return JobSchedule(kind="cron", expr=job.schedule, tz=job.tz)
    try:
        schedule = read_schedule(job.schedule, job.tz)
    except InvalidSchedule:  # this machine does not know its time zone
        schedule = read_schedule(job.schedule, None)
    if isinstance(schedule, Every):
        return JobSchedule(kind="every", every_ms=schedule.interval)
    assert isinstance(schedule, Once)
    return JobSchedule(kind="at", at=show_moment(schedule.at))


def _show_name(job: CronJob) -> str:
    """Show the name of a job, cleaned if an older gateway accepted it."""
    if job.name is None or is_job_name(job.name):
        return job.name or job.id
    return clean_name(job.name, limit=STORED_LIMIT) or job.id


def check_payload(given: PayloadGiven) -> None:
    """Refuse a payload that jobs here cannot do.

    Raises:
        InvalidRequest
    """
    if given.kind != "agentTurn":
        raise InvalidRequest(
            f"payload.kind: got {quoted(given.kind, 64)}, expected agentTurn (a job sends its agent a message)",
            param="payload.kind",
        )
    if given.thinking is not None:
        raise InvalidRequest(
            "payload.thinking: a job has its agent's thinking level (leave it out)", param="payload.thinking"
        )


def _show_payload(job: CronJob) -> PayloadView:
    return PayloadView(
        kind="agentTurn",
        message=job.message,
        model=primary_of(job.model),
        fallbacks=fallbacks_of(job.model),
        timeout_seconds=job.timeout_seconds,
    )


def read_model_row(given: PayloadGiven, otherwise: ModelSetting | None) -> ModelSetting | None:
    """Read the models of a payload, whose fallbacks stand beside the model.

    Raises:
        InvalidRequest: there are fallbacks, and no model.
    """
    model = otherwise if given.model is UNSET else given.model
    if given.fallbacks is None:
        return model
    if (primary := primary_of(model)) is None:
        raise InvalidRequest("payload.fallbacks: they need a model before them", param="payload.fallbacks")
    return ModelRowSettings(primary=primary, fallbacks=given.fallbacks)


def check_session_target(target: str | None) -> None:
    """Refuse another session than the job's own.

    Raises:
        InvalidRequest
    """
    if target not in (None, "isolated"):
        raise InvalidRequest(
            f"sessionTarget: got {quoted(target, 64)}, expected isolated (a job runs in a session of its own)",
            param="sessionTarget",
        )


def read_delivery(given: DeliveryGiven) -> CronDeliver | None:
    """Read the address of a reply; `last` is none, since nobody speaks to a job's session from outside.

    Raises:
        InvalidRequest: the place is incomplete, or of a kind that there is not here.
    """
    if given.mode == "none" or (given.mode == "announce" and given.channel in (None, "last") and given.to is None):
        return None
    if given.mode != "announce" or given.thread_id is not None:
        raise InvalidRequest(
            "delivery: expected the mode none, or announce with channel, to and accountId?", param="delivery"
        )
    if given.channel in (None, "last") or not given.to:
        raise InvalidRequest("delivery: a reply to a chat needs channel and to", param="delivery")
    return CronDeliver(channel=given.channel, to=given.to, account_id=given.account_id)


def _show_delivery(job: CronJob) -> DeliveryView:
    if job.deliver is None:
        return DeliveryView(mode="none")
    place = job.deliver
    return DeliveryView(mode="announce", channel=place.channel, to=place.to, account_id=place.account_id)


def preview_delivery(job: CronJob, channels: Collection[str]) -> DeliveryPreview:
    """Describe the address of a job's reply, and whether its channel exists."""
    if job.deliver is None:
        return DeliveryPreview(label="none", detail="the reply stays in the job's session")
    place = job.deliver
    detail = "set in the job" if place.channel in channels else no_channel(place.channel)
    return DeliveryPreview(label=f"announce -> {place.channel}:{place.to}", detail=detail)


def show_job(shown: JobShown, listed: ListedJob) -> JobView:
    """Show a job, and beside it how it is shown in our words."""
    job = listed.stored.job
    return JobView(
        id=shown.id,
        name=_show_name(job),
        enabled=job.enabled,
        agent_id=shown.agent_id,
        session_key=shown.session_key,
        created_at_ms=shown.created_at,
        updated_at_ms=listed.stored.updated_at or shown.created_at,
        schedule=_show_schedule(job),
        session_target="isolated",
        wake_mode="now",
        payload=_show_payload(job),
        delivery=_show_delivery(job),
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


def job_id_of(name: str) -> str:
    """Make a job's id from its name, always the same, so that a repeated request adds nothing."""
    plain = _NOT_IN_AN_ID.sub("-", name.lower()).strip("-._")[:_ID_LENGTH]
    return plain or f"job-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def ids_of(id: str, count: int) -> Iterator[str]:
    """Give an id, then the same with numbers, for jobs of the same name."""
    yield id
    yield from (f"{id}-{n}" for n in range(2, count + 1))


class JobPatch(SharedParams, frozen=True, kw_only=True):
    """A change of a job; fields that are left out stay."""

    name: JobName | None = None
    enabled: bool | None = None
    agent_id: str | UnsetType | None = UNSET
    schedule: JobSchedule | None = None
    session_target: str | None = None
    payload: PayloadGiven | None = None
    delivery: DeliveryGiven | None = None
    when: JobWhen | UnsetType | None = UNSET


def changed(job: CronJob, patch: JobPatch) -> CronJob:
    """Decide what a job is after a change.

    Raises:
        InvalidRequest: it cannot be so.
    """
    check_session_target(patch.session_target)
    payload = patch.payload or PayloadGiven()
    check_payload(payload)
    given: dict[str, Any] = {"name": patch.name, "enabled": patch.enabled, "message": payload.message}
    new = {name: value for name, value in given.items() if value is not None}
    model = read_model_row(payload, job.model)
    given = {"agent_id": patch.agent_id, "model": model, "timeout_seconds": payload.timeout_seconds}
    new |= {name: value for name, value in given.items() if value is not UNSET}
    if patch.when is not UNSET:
        new["when"] = None if patch.when is None else read_when(patch.when)
    if patch.schedule is not None:
        new["schedule"], new["tz"] = read_given_schedule(patch.schedule)
    if patch.delivery is not None:
        new["deliver"] = read_delivery(patch.delivery)
    return msgspec.structs.replace(job, **new)
