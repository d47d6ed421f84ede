"""Time zones: one by its name, or the machine's own, and the marks of days.

This module is not in the core because the rules of a time zone are read from files.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo

from backchannel.core.money.budgets import FOREVER, BudgetPeriod, Period

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_DAY = timedelta(days=1)
_HOUR_MS = 3_600_000


def read_zone(name: str) -> tzinfo:
    """Read a time zone by its name.

    Raises:
        ValueError: there is no such time zone; the message says what works.
    """
    from zoneinfo import ZoneInfo, available_timezones  # only settings with a zone pay for it

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        if not available_timezones():
            raise ValueError("this machine knows no time zones: install its package `tzdata`") from None
        raise ValueError("expected a time zone such as `Europe/Berlin` or `UTC`") from None


def time_zone_problem(name: str) -> str | None:
    """Say what is wrong with a time zone's name, if anything is."""
    try:
        read_zone(name)
    except ValueError as problem:
        return str(problem)
    return None


class MachineZone(tzinfo):
    """The time zone that the machine is set to, with its changes of the clock."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=self)


def zone_named(name: str | None) -> tzinfo:
    """Read the time zone of the setting `tz`; unset, it is the machine's.

    Raises:
        ValueError: as `read_zone`.
    """
    return MachineZone() if name is None else read_zone(name)


def last_mark(zone: tzinfo, now: int, hour: int) -> int:
    """Return the last time at which an hour of the day came, both times in milliseconds.

    Where clocks are changed, an hour that is skipped comes right after the gap, and one that comes twice counts the
    first time. So each day has one mark.
    """
    today = (_EPOCH + now * _MS).astimezone(zone).date()
    at = _at_hour(today, hour, zone)
    return at if at <= now else _at_hour(today - _DAY, hour, zone)


def period_at(zone: tzinfo, per: BudgetPeriod, now: int) -> Period:
    """Return the hour, day or month of a time. An hour that comes twice is two hours; a day may have 23 or 25."""
    local = (_EPOCH + now * _MS).astimezone(zone)
    today = local.date()
    match per:
        case BudgetPeriod.HOUR:
            start = now - (local.minute * 60 + local.second) * 1000 - local.microsecond // 1000
            return Period(start, start + _HOUR_MS)
        case BudgetPeriod.DAY:
            return Period(_at_hour(today, 0, zone), _at_hour(today + _DAY, 0, zone))
        case BudgetPeriod.MONTH:
            first = today.replace(day=1)
            return Period(_at_hour(first, 0, zone), _at_hour((first + 31 * _DAY).replace(day=1), 0, zone))
        case BudgetPeriod.TOTAL:
            return FOREVER


def _at_hour(day: date, hour: int, zone: tzinfo) -> int:
    # A skipped hour has the offset from before the gap (fold 0), and so names the moment right after it.
    return (datetime.combine(day, time(hour), zone).astimezone(UTC) - _EPOCH) // _MS
