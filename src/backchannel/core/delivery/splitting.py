"""Splitting: a text that is too long for one message becomes several.

A text is split between lines. A line that is too long alone is cut at a space, or where it must be if it has none. No
cut is inside one visible character: an accented letter, a joined emoji, a flag. Only white space at a cut is lost:
line breaks or spaces, never the indentation of the next line.

A cut inside a fenced code block closes the block in one part and opens it again, with its language, in the next. So
each part can be read on its own. A block inside a quote stays in the quote. A fence that would fill half a message is
treated as text.

The platform says how long a text is. A measure adds up over a text, and counts at least one for a character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from backchannel.core.text import ELLIPSIS

Measure: TypeAlias = Callable[[str], int]

_JOINER = "\u200d"
_LINE_BREAKS = "\r\n"
_EMPTY_LINE = ("\n\n", "\n\r\n")
_BEFORE_WORDS = " \t>"
"""A line is not cut behind these: nothing would be in it."""
_ANY_FENCE = re.compile(r"```|~~~")
_QUOTE = r"(?:>[ \t]{0,8}){0,8}"
_FENCE_LIKE = re.compile(rf"[ \t]{{0,8}}{_QUOTE}(?:```|~~~)")
_FENCE = re.compile(rf"([ \t]*{_QUOTE})(`{{3,}}|~{{3,}})[ \t]*([^\r\n]*)")


class _Fence(NamedTuple):
    """A block of code that is open."""

    mark: str
    opening: str
    """The line that opens it again: its mark and its language."""
    closing: str
    quote: str
    """What its lines begin with, where it stands in a quote."""

    def inside(self, line: str) -> str | None:
        """Give a line without the marks of the quote; None if it is not in the quote, which ends the block."""
        for _ in range(self.quote.count(">")):
            line = line.lstrip(" \t")
            if not line.startswith(">"):
                return None
            line = line[1:]
        return line


class _Cut(NamedTuple):
    """Where a part ends, where the next begins, and the block that is open there."""

    end: int
    start_of_next: int
    fence: _Fence | None


def split(text: str, limit: int, measure: Measure = len) -> list[str]:
    """Split a text into parts of at most `limit`; no part is blank, so a blank text has none."""
    if limit < 1:
        raise ValueError(f"a limit of {limit} characters leaves no room for any (expected 1 or more)")
    return _Splitter(text, limit, measure).parts()


def opening_of(text: str, limit: int, measure: Measure = len) -> str:
    """Give what one message can show of a text; one that is longer is cut, and ends with an ellipsis."""
    if len(text) <= limit and measure(text) <= limit:
        return text
    cut_mark = f"\n{ELLIPSIS}"
    room = limit - measure(cut_mark)
    first = split(text[: 2 * limit], room, measure)[:1] if room > 0 else []
    if not first:
        return ""
    ends_in_fence = _FENCE_LIKE.match(first[0].rpartition("\n")[2])
    return f"{first[0]}{cut_mark if ends_in_fence else ELLIPSIS}"


class _Splitter:
    def __init__(self, text: str, limit: int, measure: Measure) -> None:
        self._text = text
        self._limit = limit
        self._measure = measure
        self._has_fences = _ANY_FENCE.search(text) is not None

    def parts(self) -> list[str]:
        parts: list[str] = []
        start, fence = 0, None
        while not self._fits(start, fence):
            head, start, fence = self._head(start, fence)
            cut = self._cut(start, fence, self._limit - self._measure(head))
            body = self._text[start : cut.end].rstrip()
            if body:
                closing = f"\n{cut.fence.closing}" if cut.fence else ""
                parts.append(f"{head}{body}{closing}")
            start, fence = cut.start_of_next, cut.fence
            if fence is not None and (after := self._closing_line(start, fence)) is not None:
                start, fence = after, None
        last = self._text[start:]
        parts.append(f"{self._reopened(start, fence)}{last}" if last.strip() else last)
        return [part for part in parts if part and not part.isspace()]

    def _fits(self, start: int, fence: _Fence | None) -> bool:
        """Whether all that is left fits into one message."""
        if len(self._text) - start > self._limit:  # no character counts less than one
            return False
        return self._measure(self._reopened(start, fence) + self._text[start:]) <= self._limit

    def _reopened(self, start: int, fence: _Fence | None) -> str:
        """Write what opens a block again, and the quote in the middle of whose line the text goes on."""
        if fence is None:
            return ""
        return f"{fence.opening}\n{fence.quote if self._is_in_line(start) else ''}"

    def _is_in_line(self, at: int) -> bool:
        return at > 0 and self._text[at - 1] != "\n"

    def _head(self, start: int, fence: _Fence | None) -> tuple[str, int, _Fence | None]:
        """Begin a part: a block that is open is opened again, and the line that opens one is no line to cut after."""
        if fence is not None:
            return self._reopened(start, fence), start, fence
        line_end = self._text.find("\n", start, start + self._limit)
        if self._has_fences and line_end >= 0 and (opened := self._opened_by(self._text[start:line_end])):
            return self._text[start : line_end + 1], line_end + 1, opened
        return "", start, None

    def _cut(self, start: int, fence: _Fence | None, room: int) -> _Cut:
        """Cut so that there is room for the line that closes a block which is open there."""
        kept = 0
        while True:
            cut = self._cut_within(start, fence, room - kept)
            closing = 0 if cut.fence is None else self._measure(f"\n{cut.fence.closing}")
            if closing <= kept or self._measure(self._text[start : cut.end].rstrip()) + closing <= room:
                return cut
            kept = closing

    def _cut_within(self, start: int, fence: _Fence | None, room: int) -> _Cut:
        end, start_of_next = self._next_cut(start, self._reach(start, room))
        if not self._has_fences:
            return _Cut(end, start_of_next, None)
        before, at = fence, start
        while at < end:  # line by line: what is open at the cut
            line_end = self._text.find("\n", at, end)
            line_end = end if line_end < 0 else line_end
            line = self._text[at:line_end]
            is_rest = at == start and before is not None and self._is_in_line(at)
            after = before if is_rest else self._after(line, before)
            is_last = not self._text[line_end:end].strip()
            if before is None and after is not None and is_last and self._text[start:at].strip():
                return _Cut(at, at, None)  # nothing of the block would be in this part but its first line
            before, at = after, line_end + 1
        if before is not None and before.quote and self._text.endswith(_EMPTY_LINE, start, start_of_next):
            before = None  # it ends the quote, and what stands in it
        return _Cut(end, start_of_next, before)

    def _reach(self, start: int, room: int) -> int:
        """Find how far a part reaches that begins at `start`; one character at least."""
        low, high = start + 1, min(start + max(room, 1), len(self._text))
        if self._measure is len or self._measure(self._text[start:high]) <= room:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            if self._measure(self._text[start:middle]) <= room:
                low = middle
            else:
                high = middle - 1
        return low

    def _next_cut(self, start: int, stop: int) -> tuple[int, int]:
        """Find where the part that begins at `start` ends, and where the next one begins."""
        text = self._text
        end = text.rfind("\n", start, stop + 1)
        if end >= 0:
            return end, _skip(text, end, _LINE_BREAKS)
        end = text.rfind(" ", start, stop + 1)
        while end >= 0 and self._would_be_fence(end):
            end = text.rfind(" ", start, end)
        if end >= 0 and text[start : end + 1].strip().lstrip(_BEFORE_WORDS):
            return end, _skip(text, end, " ")
        end = stop
        while end > start and (_is_inside(text, start, end) or self._would_be_fence(end)):
            end -= 1
        if end == start:  # one character that is longer than the limit: cut it all the same
            end = stop
        return end, end

    def _would_be_fence(self, at: int) -> bool:
        """Whether what stands in the middle of a line would be a fence at the beginning of one."""
        return self._has_fences and _FENCE_LIKE.match(self._text, at) is not None

    def _after(self, line: str, fence: _Fence | None) -> _Fence | None:
        """Tell which block is open after a line."""
        inside = None if fence is None else fence.inside(line)
        if fence is None or inside is None:
            return self._opened_by(line)
        return None if _closes(inside, fence) else fence

    def _opened_by(self, line: str) -> _Fence | None:
        found = _FENCE.fullmatch(line.rstrip())
        if found is None:
            return None
        indent, mark, info = found.groups()
        if mark[0] == "`" and "`" in info:  # code inside a line
            return None
        language = info.split(maxsplit=1)[0] if info else ""
        quote = indent if ">" in indent else ""
        fence = _Fence(mark, f"{indent}{mark}{language}", f"{indent}{mark}", quote)
        opening = max(self._measure(line), self._measure(fence.opening) + self._measure(quote))
        size = opening + self._measure(fence.closing) + 2
        return fence if size <= self._limit // 2 else None

    def _closing_line(self, start: int, fence: _Fence) -> int | None:
        """Tell where the text goes on if the next line only closes a block, which the part before has closed.

        So does a line that leaves the quote of the block; nothing of that is passed over.
        """
        line_end = self._text.find("\n", start, start + self._limit)
        line_end = min(len(self._text), start + self._limit) if line_end < 0 else line_end
        if self._is_in_line(start):
            return None
        inside = fence.inside(self._text[start:line_end])
        if inside is None:
            return start
        if not _closes(inside, fence):
            return None
        return _skip(self._text, line_end, _LINE_BREAKS)


def _closes(line: str, fence: _Fence) -> bool:
    bare = line.strip()
    return bare.startswith(fence.mark) and not bare.strip(fence.mark[0])


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
