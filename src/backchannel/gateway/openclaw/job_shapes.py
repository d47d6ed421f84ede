"""Cron jobs in OpenClaw's words: the one place that translates between its shape of a job and ours.

Its clients write a schedule, what is done, and where the reply goes as objects, and a name instead of an id. What a
job here cannot do is refused with what it can: run in the main session, run a command, post to an address.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from backchannel.config.jobs import is_job_name
from backchannel.config.schedules import Every, Once, read_schedule, show_moment
from backchannel.config.schema_doors import UNIT_MS, CronDeliver, CronJob
from backchannel.core.runs import MAX_RUN_S
from backchannel.core.text import STORED_LIMIT, clean_name, quoted
from backchannel.errors import InvalidRequest, InvalidSchedule
from backchannel.wire.jobs import DeliveryPreview, DeliveryView, PayloadView, ScheduleView
from backchannel.wire.shapes import SharedParams

MAX_EVERY_MS = 8_640_000_000_000_000
_NOT_IN_AN_ID = re.compile(r"[^a-z0-9_.-]+")
_ID_LENGTH = 64


JobName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=STORED_LIMIT)]


class ScheduleGiven(SharedParams, frozen=True, kw_only=True):
    kind: str
    at: str | None = None
    every_ms: Annotated[int, Meta(ge=1, le=MAX_EVERY_MS)] | None = None
    anchor_ms: int | None = None
    expr: str | None = None
    tz: str | None = None


class PayloadGiven(SharedParams, frozen=True, kw_only=True):
    kind: str = "agentTurn"
    message: str | None = None
    model: str | UnsetType | None = UNSET
    thinking: str | None = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=MAX_RUN_S)] | UnsetType | None = UNSET


class DeliveryGiven(SharedParams, frozen=True, kw_only=True):
    mode: str = "announce"
    channel: str | None = None
    to: str | None = None
    account_id: str | None = None
    thread_id: str | int | None = None


def read_given_schedule(given: ScheduleGiven) -> tuple[str, str | None]:
    """Read a schedule as ours is written, and its time zone.

    Raises:
        InvalidRequest: it is of a kind that there is not here, or what its kind needs is missing.
    """
    match given:
        case ScheduleGiven(kind="every", every_ms=int(every), anchor_ms=None):
            return _every(every), None
        case ScheduleGiven(kind="cron", expr=str(expr)):
            return expr, given.tz
        case ScheduleGiven(kind="at", at=str(at)):
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


def show_schedule(job: CronJob) -> ScheduleView:
    """Show when a job comes. Its five fields are shown as they are: reading those takes long."""
    if len(job.schedule.split()) == 5:
        return ScheduleView(kind="cron", expr=job.schedule, tz=job.tz)
    try:
        schedule = read_schedule(job.schedule, job.tz)
    except InvalidSchedule:  # this machine does not know its time zone
        schedule = read_schedule(job.schedule, None)
    if isinstance(schedule, Every):
        return ScheduleView(kind="every", every_ms=schedule.interval)
    assert isinstance(schedule, Once)
    return ScheduleView(kind="at", at=show_moment(schedule.at))


def show_name(job: CronJob) -> str:
    """Show how lists call a job; older gateways let every name in."""
    if job.name is None or is_job_name(job.name):
        return job.name or job.id
    return clean_name(job.name, limit=STORED_LIMIT) or job.id


def check_payload(given: PayloadGiven) -> None:
    """Refuse what a job here does not do.

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
            "payload.thinking: a job thinks as its agent does (leave it out)", param="payload.thinking"
        )


def show_payload(job: CronJob) -> PayloadView:
    return PayloadView(kind="agentTurn", message=job.message, model=job.model, timeout_seconds=job.timeout_seconds)


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
    """Read where a reply goes; `last` is nowhere, since nobody speaks to a job's session from outside.

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
        raise InvalidRequest("delivery: a reply that goes out needs channel and to", param="delivery")
    return CronDeliver(channel=given.channel, to=given.to, account_id=given.account_id)


def show_delivery(job: CronJob) -> DeliveryView:
    if job.deliver is None:
        return DeliveryView(mode="none")
    place = job.deliver
    return DeliveryView(mode="announce", channel=place.channel, to=place.to, account_id=place.account_id)


def preview_delivery(job: CronJob, channels: Collection[str]) -> DeliveryPreview:
    """Tell in words where a job's reply goes, and whether that channel is among those there are."""
    if job.deliver is None:
        return DeliveryPreview(label="none", detail="the reply stays in the job's session")
    place = job.deliver
    detail = "set in the job" if place.channel in channels else f"there is no channel {place.channel} here"
    return DeliveryPreview(label=f"announce -> {place.channel}:{place.to}", detail=detail)


def job_id_of(name: str) -> str:
    """Make a job's id of its name: the same of the same, so that a request that is repeated adds nothing."""
    plain = _NOT_IN_AN_ID.sub("-", name.lower()).strip("-._")[:_ID_LENGTH]
    return plain or f"job-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def ids_of(id: str, count: int) -> Iterator[str]:
    """Give an id, then the same with a number each, for jobs whose names are alike."""
    yield id
    yield from (f"{id}-{n}" for n in range(2, count + 1))


class JobPatch(SharedParams, frozen=True, kw_only=True):
    """What `cron.update` changes; what is left out stays."""

    name: JobName | None = None
    enabled: bool | None = None
    agent_id: str | UnsetType | None = UNSET
    schedule: ScheduleGiven | None = None
    session_target: str | None = None
    payload: PayloadGiven | None = None
    delivery: DeliveryGiven | None = None


def changed(job: CronJob, patch: JobPatch) -> CronJob:
    """Decide what a job is after a change.

    Raises:
        InvalidRequest: it cannot be so.
    """
    check_session_target(patch.session_target)
    if patch.name is not None:
        job = msgspec.structs.replace(job, name=patch.name)
    if patch.enabled is not None:
        job = msgspec.structs.replace(job, enabled=patch.enabled)
    if patch.agent_id is not UNSET:
        job = msgspec.structs.replace(job, agent_id=patch.agent_id)
    if patch.schedule is not None:
        schedule, tz = read_given_schedule(patch.schedule)
        job = msgspec.structs.replace(job, schedule=schedule, tz=tz)
    if patch.delivery is not None:
        job = msgspec.structs.replace(job, deliver=read_delivery(patch.delivery))
    return job if patch.payload is None else _with_payload(job, patch.payload)


def _with_payload(job: CronJob, given: PayloadGiven) -> CronJob:
    check_payload(given)
    if given.message is not None:
        job = msgspec.structs.replace(job, message=given.message)
    if given.model is not UNSET:
        job = msgspec.structs.replace(job, model=given.model)
    if given.timeout_seconds is not UNSET:
        job = msgspec.structs.replace(job, timeout_seconds=given.timeout_seconds)
    return job
