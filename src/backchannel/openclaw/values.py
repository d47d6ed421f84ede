"""Values of another program's JSON: each has its expected type, or counts as absent."""

from __future__ import annotations

import calendar
import json
import re
import sys
from typing import Any

import msgspec

LATEST_MS = 8_640_000_000_000_000
"""The last moment that JavaScript has a date for."""
MOST_COUNTED = 2**53
_DEEPEST = 64
"""How deeply values may be nested, so that walking through one cannot exhaust the stack."""

_ISO_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9})\d*)?\s*(?:Z|([+-])(\d\d):?(\d\d))?", re.ASCII
)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class NotJson(ValueError):
    """The text is no JSON; the message says where that shows."""


def decode(data: bytes) -> Any:
    """Read JSON as JavaScript writes it.

    Raises:
        NotJson: it is none.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # JavaScript also writes lone surrogates, and reads broken bytes.
        return _decode_leniently(data)


def _decode_leniently(data: bytes) -> Any:
    try:
        return whole(json.loads(data.decode("utf-8", "replace"), parse_constant=_no_constant))
    except RecursionError:
        raise NotJson("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} (character {error.pos + 1})") from None
    except ValueError as error:
        raise NotJson(str(error)) from None


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def whole(value: Any) -> Any:
    """Replace lone surrogates in all strings of a value: no database takes them."""
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case list():
            return [whole(item) for item in value]
        case dict():
            return {whole(name): whole(item) for name, item in value.items()}
    return value


def is_deep(value: Any) -> bool:
    """Whether a value is nested too deeply to be kept."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = [*value.values()]
    return value if isinstance(value, list) else []


def text_in(mapping: Any, *names: str) -> str | None:
    """Find the first of these names that has a text in it."""
    for name in names:
        value = mapping.get(name) if isinstance(mapping, dict) else None
        if isinstance(value, str) and value.strip():
            return value
    return None


def id_in(mapping: Any, *names: str) -> str | None:
    """Find the first of these names that has an id: a text, or a whole number as some platforms give them."""
    for name in names:
        value = mapping.get(name) if isinstance(mapping, dict) else None
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
    return None


def count_in(mapping: Any, *names: str) -> int | None:
    """Find the first of these names that has a whole number, zero or more."""
    for name in names:
        value = mapping.get(name) if isinstance(mapping, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_COUNTED:
            return int(value)
    return None


def number_in(mapping: Any, name: str) -> float | None:
    value = mapping.get(name) if isinstance(mapping, dict) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    return None


def time_in(mapping: Any, *names: str) -> int | None:
    """Find the first of these names that has a time, in milliseconds or as ISO 8601."""
    for name in names:
        value = mapping.get(name) if isinstance(mapping, dict) else None
        at = _read_iso_time(value) if isinstance(value, str) else count_in(mapping, name)
        if at is not None and at <= LATEST_MS:
            return at
    return None


def _read_iso_time(text: str) -> int | None:
    found = _ISO_TIME.fullmatch(text.strip())
    if found is None:
        return None
    fraction, sign, hours, minutes = found[7] or "", found[8], found[9], found[10]
    try:
        seconds = calendar.timegm(tuple(int(part) for part in found.groups()[:6]))
    except ValueError:
        return None
    ahead = int(f"{sign}1") * (int(hours) * 60 + int(minutes)) * 60 if sign else 0
    at = (seconds - ahead) * 1000 + int(f"{fraction:0<3}"[:3])
    return at if at >= 0 else None
