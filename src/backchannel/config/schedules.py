"""Schedules of cron jobs: their three forms, and the next time of each.

Three forms: five fields as crontabs have them (`0 9 * * *`), an interval (`every 10m`), and one moment (an ISO time).
Everything here is counted in milliseconds since 1970. A time zone matters to the first form, and to an ISO time without
an offset. This module is not in the core because the rules of a time zone are read from files.

Where clocks are changed, a time of day that is skipped comes right after the gap. One that happens twice comes the
first time only. Fields whose hour is `*` follow real time instead: every hour is every hour, on such days too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TypeAlias

from backchannel.config.schema_doors import UNIT_MS
from backchannel.config.zones import read_zone
from backchannel.core.text import quoted
from backchannel.errors import InvalidSchedule

SHORTEST_MS = 1000
LONGEST_MS = 3660 * 86_400_000
MAX_LENGTH = 256

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_EVERY = re.compile(r"every\s+([0-9]+(?:\.[0-9]+)?)\s*([smhd])\Z", re.IGNORECASE)
_EXPECTED = 'expected "0 9 * * *" (minute, hour, day, month, weekday), "every 10m", or an ISO time'
_FIRST_YEAR, _LAST_YEAR = 1971, 9998  # a day less or more, by its offset, is a time all the same
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """The times that five fields name, in one time zone."""

    fields: str
    zone: tzinfo

    def next_after(self, after: int) -> int | None:
        """Tell the first of its times after a moment; None when none comes in fifty years."""
        from cronsim import CronSim

        # In an hour that happens twice the first ones named may lie before the moment: they were had already.
        times = map(_ms, CronSim(self.fields, _moment(after, self.zone)))
        return next((at for at in times if at > after), None)


@dataclass(frozen=True, slots=True)
class Every:
    """An interval, counted from an anchor that never moves: restarts shift nothing.

    Before its anchor, which happens where the clock was set back, it comes at the same pace.
    """

    interval: int
    anchor: int

    def next_after(self, after: int) -> int:
        """Tell the first of its times after a moment."""
        steps = (after - self.anchor) // self.interval + 1
        return self.anchor + steps * self.interval


@dataclass(frozen=True, slots=True)
class Once:
    """One moment."""

    at: int

    def next_after(self, after: int) -> int | None:
        """Tell the moment, if it is still to come."""
        return self.at if self.at > after else None


Schedule: TypeAlias = Cron | Every | Once


def read_schedule(text: str, tz: str | None, *, anchor: int = 0) -> Schedule:
    """Read a schedule; without a time zone it is in UTC, and an interval is counted from `anchor`.

    Raises:
        InvalidSchedule: it cannot be read, never comes, or its time zone is not known.
    """
    try:
        zone = UTC if tz is None else read_zone(tz)
    except ValueError as problem:
        raise InvalidSchedule(f"not a time zone: {quoted(tz or '')} ({problem})", param="tz") from None
    try:
        return _read(text, zone, anchor)
    except ValueError as problem:
        raise InvalidSchedule(f"not a schedule: {quoted(text)} ({problem})", param="schedule") from None


def job_id_problem(job_id: str) -> str | None:
    """Say what is wrong with the id of a job, if anything is."""
    if _JOB_ID.match(job_id):
        return None
    return "expected letters, digits, `_`, `.` and `-`, at most 128, such as `nightly-report`"


def schedule_problem(text: str) -> str | None:
    """Say what is wrong with a schedule, if anything is."""
    try:
        _read(text, UTC, 0)
    except ValueError as problem:
        return str(problem)
    return None


def show_moment(ms: int) -> str:
    """Write a moment in UTC: `2026-03-29T01:00:00Z`, with its milliseconds if it has any."""
    spec = "milliseconds" if ms % 1000 else "seconds"
    return _moment(ms, UTC).replace(tzinfo=None).isoformat(timespec=spec) + "Z"


def _read(text: str, zone: tzinfo, anchor: int) -> Schedule:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"a schedule has at most {MAX_LENGTH} characters")
    text = text.strip()
    if match := _EVERY.match(text):
        return Every(_read_interval(match[1], match[2]), anchor)
    if len(text.split()) == 5:
        return _read_fields(text, zone)
    return Once(_read_moment(text, zone))


def _read_moment(text: str, zone: tzinfo) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ValueError(f"expected a year from {_FIRST_YEAR} to {_LAST_YEAR}")
    return _ms(moment if moment.tzinfo else _after_gap(moment.replace(tzinfo=zone)))


def _after_gap(moment: datetime) -> datetime:
    """Move a time of day that clocks skip to the first that there is."""
    while moment.astimezone(UTC).astimezone(moment.tzinfo) != moment:
        moment += timedelta(minutes=1)
    return moment


def _read_interval(number: str, unit: str) -> int:
    interval = round(float(number) * UNIT_MS[unit.lower()])
    if interval < SHORTEST_MS:
        raise ValueError("the shortest interval is 1 s")
    if interval > LONGEST_MS:
        raise ValueError(f"the longest interval is {LONGEST_MS // UNIT_MS['d']} d")
    return interval


def _read_fields(text: str, zone: tzinfo) -> Cron:
    from cronsim import CronSim, CronSimError

    minute, hour, day, month, weekday = text.split()
    if hour not in ("*", "*/1"):
        # CronSim treats fields with a star as real time and others as times of day; only the hour decides here.
        minute, hour = minute.replace("*", "0-59"), hour.replace("*", "0-23")
    for checked in (f"{minute} {hour} {day} * {weekday}", f"0 0 * {month} *"):
        try:
            CronSim(checked, _EPOCH)
        except CronSimError as error:
            raise ValueError(f"{str(error).lower()}: {_EXPECTED}") from None
    cron = Cron(f"{minute} {hour} {day} {month} {weekday}", zone)
    try:
        comes = cron.next_after(0)
    except CronSimError:  # each field is fine, but no such month has such a day
        comes = None
    if comes is None:
        raise ValueError("no such day ever comes")
    return cron


def _moment(ms: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone)


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MS
