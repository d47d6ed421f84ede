"""Cron jobs in OpenClaw's shape, with ours under `backchannel`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from backchannel.wire.shapes import Answer
from backchannel.wire.state_answers import JobShown


class JobSchedule(Answer, frozen=True, kw_only=True):
    """The times of a job, as requests and answers have them. A request with `anchorMs` is refused."""

    kind: str
    """`every`, `cron` or `at`."""
    at: str | None = None
    every_ms: Annotated[int, Meta(ge=1, le=8_640_000_000_000_000)] | None = None
    anchor_ms: int | None = None
    expr: str | None = None
    tz: str | None = None


class PayloadView(Answer, frozen=True, kw_only=True):
    kind: str
    message: str
    model: str | None = None
    fallbacks: tuple[str, ...] | None = None
    timeout_seconds: float | None = None


class DeliveryView(Answer, frozen=True, kw_only=True):
    mode: str
    channel: str | None = None
    to: str | None = None
    account_id: str | None = None


class DeliveryPreview(Answer, frozen=True, kw_only=True):
    """The address of a reply, in words."""

    label: str
    detail: str


class JobStateView(Answer, frozen=True, kw_only=True):
    next_run_at_ms: int | None = None
    running_at_ms: int | None = None
    last_run_at_ms: int | None = None
    last_run_status: str | None = None
    """`ok` or `error`."""
    last_error: str | None = None
    last_duration_ms: int | None = None


class JobView(Answer, frozen=True, kw_only=True):
    id: str
    name: str
    enabled: bool
    agent_id: str
    session_key: str
    created_at_ms: int
    updated_at_ms: int
    schedule: JobSchedule
    session_target: str
    wake_mode: str
    payload: PayloadView
    delivery: DeliveryView
    state: JobStateView
    backchannel: JobShown


class JobPage(Answer, frozen=True, kw_only=True):
    """A page of jobs."""

    jobs: list[JobView]
    total: int
    offset: int
    limit: int
    has_more: bool
    next_offset: int | None
    snapshot_revision: str
    """It changes with any job, so that a client sees whether two pages belong together."""
    delivery_previews: dict[str, DeliveryPreview] | None = None
    """By job id; absent with `compact` or without `includeDeliveryPreviews`."""


class JobRunView(Answer, frozen=True, kw_only=True):
    ts: int
    job_id: str
    action: str
    status: str
    session_key: str
    run_id: str
    run_at_ms: int
    session_id: str | None = None
    duration_ms: int | None = None
    error: str | None = None
    summary: str | None = None
    model: str | None = None


class JobRunsPage(Answer, frozen=True, kw_only=True):
    entries: list[JobRunView]
    total: int
    offset: int
    limit: int
    has_more: bool
    next_offset: int | None


class JobsStatus(Answer, frozen=True, kw_only=True):
    enabled: bool
    jobs: int
    next_wake_at_ms: int | None
