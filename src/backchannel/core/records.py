"""Records of the store that have no rules of their own: tokens, calls, exports, troubles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from backchannel.core.sessions import Session


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is kept; `digest` is the SHA-256 of the token itself."""

    id: str
    digest: str
    scopes: tuple[str, ...]
    session_key: str | None
    label: str | None
    created_at: int
    revoked_at: int | None = None


class McpCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request as its client sent it, and who that was."""

    id: str
    token_id: str
    session_key: str | None
    version: str
    message: str
    """The JSON-RPC request, with the idempotency key that makes it the same call when it is carried out again."""
    created_at: int


PAGE_SIZE = 1024 * 1024
"""How much of a transcript is read at a time, in characters: that is what databases count."""


class ExportListed(NamedTuple):
    """A session as it is at one moment, with the number of messages in its transcript."""

    length: int
    session: Session


class ExportPlace(NamedTuple):
    """Where reading a transcript goes on: at a message, and if that is too long to come whole, within it."""

    seq: int
    offset: int = 0


class Passage(NamedTuple):
    """Some of a transcript: whole messages, or a part of one; without a place to go on at it is the end."""

    lines: Sequence[str] = ()
    part: str | None = None
    next: ExportPlace | None = None


DAY_MS = 86_400_000


class DayUsed(NamedTuple):
    """What the runs of a day used; the number counts days since 1970."""

    number: int
    tokens_in: int
    tokens_out: int
    cost: float
    unpriced: int
    """How many of them used a model whose price is not known."""


class SpendingByDay(NamedTuple):
    """What was used, by days with runs; `is_part` where not all runs were looked at."""

    days: list[DayUsed]
    is_part: bool


class Troubles(msgspec.Struct, frozen=True, kw_only=True):
    """What needs somebody's attention."""

    deliveries: dict[str, int]
    """How many are pending, sending, failed and uncertain."""
    waiting: dict[str, int]
    """How many wait to be sent over each channel, or are on their way."""
    runs_failed: int
    """How many ended as error or timeout since the time asked for."""
    runs_set_aside: int
    next_resume_at: int | None
    """When the first of them is tried again."""
    runs_waiting: int
    """How many wait for a model."""
    jobs: int
    """How many cron jobs there are."""
    jobs_stopped: list[str]
    """Cron jobs that have no next time where there should be one."""
    jobs_failing: dict[str, str]
    """Cron jobs whose `when` command could not do its work the last time, each with the reason."""


class UnfinishedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier processes have accepted and not ended."""

    interrupted: int = 0
    queued: int = 0
    set_aside: int = 0
    resume_at: int | None = None
    """When the first that is set aside is tried again."""
    of_functions: dict[str, int] = {}
    """Runs of agents that programs have brought as functions, counted here alone: they may have to wait for one."""

    @property
    def runs(self) -> int:
        return self.interrupted + self.queued + self.set_aside + sum(self.of_functions.values())
