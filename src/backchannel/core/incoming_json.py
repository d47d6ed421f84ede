r"""JSON from outside, checked and repaired piece by piece before it is decoded.

A decoder works on a whole text at once and holds the event loop meanwhile. Fifteen megabytes of `[],[],[]` take it
seconds; the same size of text takes a few milliseconds. So what costs time is counted first: the lists and objects, the
texts, the values and the digits. Each piece takes a few milliseconds, whatever is in it.

Decoders refuse a whole text for half of a surrogate pair (`"\ud800"`), or for one byte that is not UTF-8. Most
programs write both without noticing. Each becomes U+FFFD here.
"""

from __future__ import annotations

import codecs
import re

PIECE = 64 * 1024
"""How much is looked at in one go."""
MOST_WORK = 400_000
"""A list or object counts 4, a text or a comma 1. The costliest text with so much takes `msgspec` some 25 ms."""
MOST_BARE = 1024 * 1024
"""How many bytes there may be outside texts, without spaces: a number of 4,000 digits costs more than its bytes."""

MOST_ASKED = 100_000
"""The same for a request to one of our own doors, where arguments are decoded, checked and stored."""

_ALWAYS_READ = 32 * 1024
_SPACES = b" \t\r\n"
_SURROGATE = re.compile(
    rb"((?:\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})+)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""Half of a pair; or, as the first group, what only looks like one."""
_UNFINISHED = re.compile(rb"\\(?:u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?)?\Z")
_LONGEST_UNFINISHED = 11
_REPLACEMENT = b"\\ufffd"


class TooMuchJson(ValueError):
    """Decoding it would take too long."""

    def __init__(self) -> None:
        super().__init__("it has more lists, objects, texts or numbers in it than are read at once")


def check_parts(data: bytes, most: int = MOST_ASKED) -> None:
    """Look whether a request that is there as a whole can be decoded, passed on and checked in a moment.

    Raises:
        TooMuchJson: it cannot.
    """
    if len(data) <= _ALWAYS_READ:
        return
    data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if data.count(b'"') > 2 * most:
        raise TooMuchJson
    work, bare = _work_in(data.split(b'"'), is_in_text=False)
    if work > most or bare > most * 4:
        raise TooMuchJson


def _work_in(spans: list[bytes], *, is_in_text: bool) -> tuple[int, int]:
    """Count the work in what stands between quotes, and the bytes outside texts."""
    bare = b"".join(spans[is_in_text::2]).translate(None, _SPACES)
    work = 4 * (bare.count(b"[") + bare.count(b"{")) + bare.count(b",") + len(spans) // 2
    return work, len(bare)


class IncomingJson:
    """One JSON text on its way in."""

    def __init__(self, most_work: int = MOST_WORK) -> None:
        self._most_work = most_work
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""
        """The beginning of an escape, whose end is in the next piece."""
        self._is_in_text = False
        self._work = 0
        self._bare = 0

    def take(self, piece: bytes) -> bytes:
        """Give a piece, of at most `PIECE` bytes, as it can be decoded; a few bytes may come with the next one.

        Raises:
            TooMuchJson: there is too much of it by now.
        """
        return self._taken(self._held + self._as_utf8(piece), is_last=False)

    def end(self) -> bytes:
        """Give what was held back.

        Raises:
            TooMuchJson: there is too much of it.
        """
        return self._taken(self._held + self._decoder.decode(b"", final=True).encode(), is_last=True)

    def _as_utf8(self, piece: bytes) -> bytes:
        if piece.isascii() and not self._decoder.getstate()[0]:
            return piece
        return self._decoder.decode(piece).encode()

    def _taken(self, data: bytes, *, is_last: bool) -> bytes:
        end = len(data) if is_last else _end_of_whole(data)
        data, self._held = data[:end], data[end:]
        if b"\\ud" in data or b"\\uD" in data:
            data = _SURROGATE.sub(lambda found: found[1] or _REPLACEMENT, data)
        self._count(data)
        return data

    def _count(self, data: bytes) -> None:
        if b"\\" in data:
            data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
        spans = data.split(b'"')
        work, bare = _work_in(spans, is_in_text=self._is_in_text)
        self._is_in_text ^= len(spans) % 2 == 0
        self._work += work
        self._bare += bare
        if self._work > self._most_work or self._bare > MOST_BARE:
            raise TooMuchJson


def _end_of_whole(data: bytes) -> int:
    """Find where an escape begins that does not end here."""
    start = max(0, len(data) - _LONGEST_UNFINISHED)
    while (found := _UNFINISHED.search(data, start)) is not None:
        before = data[: found.start()]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return found.start()
        start = found.start() + 1  # an escaped backslash; a later one may be unfinished
    return len(data)
