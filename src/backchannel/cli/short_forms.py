"""Short forms of ids and keys, for tables on narrow terminals; `naming.py` reads them back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from backchannel.core.short_ids import GAP

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
SHORTEST = 12
"""The least of an id that is shown: as much as holds the millisecond in which it was made."""
_LONGEST = 28
_BASE = re.compile(rf"([0-9a-f]{{32}}|{UUID})(/.*)?")
_KEY_PART = re.compile(UUID)


@dataclass(frozen=True, slots=True)
class Long:
    """A text with a short form, for narrow terminals."""

    text: str
    short: str

    def __str__(self) -> str:
        return self.text


def short_ids(ids: Sequence[str]) -> list[Long]:
    """Give ids short forms that differ, and that `find_id` reads."""
    length = SHORTEST
    while len({_short_id(whole, length) for whole in ids}) < len(set(ids)) and length < max(map(len, ids)):
        length += 1
    return [Long(whole, _short_id(whole, length)) for whole in ids]


def _short_id(whole: str, length: int) -> str:
    if match := _BASE.fullmatch(whole):
        base, part = match.groups()
        return f"{base[:length]}{GAP}{part}" if part else base[:length]
    return _cut_middle(whole, length) if len(whole) > max(_LONGEST, 2 * length) else whole


def short_key(key: str) -> Long:
    """Give a key a short form, cut in the middle, that `find_key` reads."""
    short = _KEY_PART.sub(lambda match: match.group()[:8] + GAP, key)
    return Long(key, short if len(short) <= _LONGEST + 2 else _cut_middle(key, 18))


def _cut_middle(text: str, head: int) -> str:
    return f"{text[:head]}{GAP}{text[-11:]}"
