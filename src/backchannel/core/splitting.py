"""Splitting: a text that is too long for one message of a channel becomes several.

Cuts are made between lines. A line that alone is too long is cut at a space, and one without spaces where it must be,
though not inside what readers see as one character: an accented letter, a joined emoji, a flag. Only white space is
lost, and only where the text was cut: line breaks or spaces, never the indentation of the next line.
"""

from __future__ import annotations

import unicodedata

_JOINER = "\u200d"
_LINE_BREAKS = "\r\n"


def split(text: str, limit: int) -> list[str]:
    """Split a text into parts of at most `limit` characters; no part is blank, so a blank text has none."""
    if limit < 1:
        raise ValueError(f"a limit of {limit} characters leaves no room for any (expected 1 or more)")
    parts: list[str] = []
    start = 0
    while len(text) - start > limit:
        end, start_of_next = _cut(text, start, limit)
        parts.append(text[start:end].rstrip())
        start = start_of_next
    parts.append(text[start:])
    return [part for part in parts if part and not part.isspace()]


def _cut(text: str, start: int, limit: int) -> tuple[int, int]:
    """Find where the part that begins at `start` ends, and where the next one begins."""
    stop = start + limit
    end = text.rfind("\n", start, stop + 1)
    if end >= 0:
        return end, _skip(text, end, _LINE_BREAKS)
    end = text.rfind(" ", start, stop + 1)
    if end >= 0 and not text[start : end + 1].isspace():
        return end, _skip(text, end, " ")
    end = stop
    while end > start and _is_inside(text, start, end):
        end -= 1
    if end == start:  # one character that is longer than the limit: cut it all the same
        end = stop
    return end, end


def _skip(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def _is_inside(text: str, start: int, at: int) -> bool:
    """Whether to cut the part that begins at `start` before `text[at]` would tear one visible character apart."""
    before, after = text[at - 1], text[at]
    if before == _JOINER or after == _JOINER or unicodedata.category(after).startswith("M") or _is_skin_tone(after):
        return True
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":  # halves that came in separately
        return True
    return _is_flag_letter(after) and _flag_letters_before(text, start, at) % 2 == 1


def _is_skin_tone(character: str) -> bool:
    return "\U0001f3fb" <= character <= "\U0001f3ff"


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _flag_letters_before(text: str, start: int, at: int) -> int:
    """Count the flag letters that end at `at`; two of them make a flag."""
    first = at
    while first > start and _is_flag_letter(text[first - 1]):
        first -= 1
    return at - first
