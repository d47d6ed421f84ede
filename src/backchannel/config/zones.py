"""Time zones: one by its name, or the machine's own, and the marks of days.

This module is not in the core because the rules of a time zone are read from files.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_DAY = timedelta(days=1)


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


def _at_hour(day: date, hour: int, zone: tzinfo) -> int:
    # A skipped hour has the offset from before the gap (fold 0), and so names the moment right after it.
    return (datetime.combine(day, time(hour), zone).astimezone(UTC) - _EPOCH) // _MS
