"""What the schedule of a cron job may look like. When it fires is decided where jobs are run."""

from __future__ import annotations

import re
from datetime import datetime

_EVERY = re.compile(r"every\s+(\d+(?:\.\d+)?)\s*([smhd])\Z", re.IGNORECASE)
_FIELD = re.compile(r"[0-9A-Za-z*/,#?-]+\Z")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EXPECTED = 'expected "0 9 * * *" (minute, hour, day, month, weekday), "every 10m", or an ISO time'


def schedule_problem(schedule: str) -> str | None:
    """Say what is wrong with a schedule, if anything is."""
    text = schedule.strip()
    if match := _EVERY.match(text):
        seconds = float(match[1]) * _UNIT_SECONDS[match[2].lower()]
        return None if seconds >= 1 else "the shortest interval is 1 s"
    fields = text.split()
    if len(fields) == 5 and all(map(_FIELD.match, fields)):
        return None
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return _EXPECTED
    return None


def time_zone_problem(name: str) -> str | None:
    """Say what is wrong with a time zone's name, if anything is."""
    from zoneinfo import ZoneInfo  # only configurations with a zone pay for it

    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        return "expected a time zone such as `Europe/Berlin` or `UTC`"
    return None
