"""Where things stand in a JSON5 text: the line of each setting, keys that come twice, the first slip.

The values themselves come from the JSON5 parser, which tells no positions. This scanner only follows the
structure (braces, keys, strings, comments) and notes the offset of each key and list item. Where it loses
its way it stops and says where: what it has found until then still counts.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from backchannel.config.findings import SettingPath, Step

_LINE_END = re.compile("\n")
_SPACE = re.compile(r"(?:[\s\ufeff]+|//[^\n\r\u2028\u2029]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r"\"(?:[^\"\\\n\r]|\\.|\\\r\n)*\"|'(?:[^'\\\n\r]|\\.|\\\r\n)*'", re.DOTALL)
_IDENTIFIER = re.compile(r"(?:[\w$\u200c\u200d]|\\u[0-9a-fA-F]{4})+")
_SCALAR = re.compile(r"[+-]?(?:[\d.][\w.+-]*|Infinity|NaN)|true|false|null")  # the parser says which are numbers
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(\r\n|.))", re.DOTALL)
_SHORT_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_LINE_ENDS = frozenset(["\n", "\r", "\r\n", "\u2028", "\u2029"])
_MAX_DEPTH = 64


class Slip(NamedTuple):
    """The place at which the text stops being JSON5."""

    offset: int
    problem: str


class Span(NamedTuple):
    """Where a setting's name ends, and where its value begins and ends. An item of a list has no name."""

    name_end: int
    value: int
    end: int


@dataclass(slots=True)
class Positions:
    """What a scan found. The whole text is the setting with the path `()`."""

    text: str
    offsets: dict[SettingPath, int] = field(default_factory=dict)
    spans: dict[SettingPath, Span] = field(default_factory=dict)
    repeated: list[SettingPath] = field(default_factory=list)
    slip: Slip | None = None
    _ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._ends = [match.start() for match in _LINE_END.finditer(self.text)]

    def line(self, path: SettingPath) -> int | None:
        """The line of a setting, or of the nearest thing around it that is in the text."""
        for length in range(len(path), 0, -1):
            if (offset := self.offsets.get(path[:length])) is not None:
                return self.place(offset)[0]
        return None

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1."""
        line = bisect.bisect_left(self._ends, offset) + 1
        return line, offset - (self._ends[line - 2] if line > 1 else -1)


def scan(text: str) -> Positions:
    """Find where each setting of a JSON5 text stands. Never fails: see `Positions.slip`."""
    found = Positions(text)
    try:
        _Scanner(text, found).document()
    except _Lost as lost:
        found.slip = lost.slip
    return found


class _Lost(Exception):
    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.slip = Slip(offset, problem)


_ReadOne: TypeAlias = Callable[[SettingPath, int], None]


class _Scanner:
    def __init__(self, text: str, found: Positions) -> None:
        self._text = text
        self._found = found
        self._at = 0

    def document(self) -> None:
        self._skip_space()
        if not self._peek():
            raise _Lost(self._at, "there are no settings here (`{}` takes the defaults)")
        self._value((), self._at)
        self._skip_space()
        if self._at < len(self._text):
            raise _Lost(self._at, f"unexpected {self._shown()} after the end of the settings")

    def _value(self, path: SettingPath, name_end: int) -> None:
        started_at = self._at
        if len(path) > _MAX_DEPTH:
            raise _Lost(self._at, f"nested more than {_MAX_DEPTH} deep")
        match self._peek():
            case "{":
                self._members(path, "}", self._member)
            case "[":
                self._members(path, "]", self._item)
            case '"' | "'":
                self._string()
            case "":
                raise _Lost(self._at, "the text ends where a value is expected")
            case _:
                self._scalar()
        self._found.spans[path] = Span(name_end, started_at, self._at)

    def _members(self, path: SettingPath, closing: str, read_one: _ReadOne) -> None:
        opened_at = self._at
        self._at += 1
        count = 0
        while True:
            self._skip_space()
            if self._take(closing):
                return
            if not self._peek():
                raise self._unclosed(opened_at)
            read_one(path, count)
            count += 1
            self._skip_space()
            if not self._take(",") and self._peek() != closing:
                if not self._peek():
                    raise self._unclosed(opened_at)
                raise _Lost(self._at, f"expected ',' or '{closing}', found {self._shown()}")

    def _member(self, path: SettingPath, _index: int) -> None:
        started_at = self._at
        name = self._key()
        name_end = self._at
        here = self._note((*path, name), started_at)
        self._skip_space()
        if not self._take(":"):
            raise _Lost(self._at, f"expected ':' after {name!r}, found {self._shown()}")
        self._skip_space()
        self._value(here, name_end)

    def _item(self, path: SettingPath, index: int) -> None:
        self._value(self._note((*path, index), self._at), self._at)

    def _note(self, path: tuple[Step, ...], offset: int) -> SettingPath:
        if path in self._found.offsets:
            self._found.repeated.append(path)
        self._found.offsets[path] = offset  # the parser keeps the last one of a repeated key, so do we
        return path

    def _key(self) -> str:
        if self._peek() in ('"', "'"):
            return self._string()
        if match := _IDENTIFIER.match(self._text, self._at):
            self._at = match.end()
            return _unescape(match[0])
        raise _Lost(self._at, f"expected a setting's name, found {self._shown()}")

    def _string(self) -> str:
        if match := _STRING.match(self._text, self._at):
            self._at = match.end()
            return _unescape(match[0][1:-1])
        raise _Lost(self._at, "this text in quotes is not closed on its line")

    def _scalar(self) -> None:
        if match := _SCALAR.match(self._text, self._at):
            self._at = match.end()
        elif _IDENTIFIER.match(self._text, self._at):  # not shown: it may be a secret without its quotes
            raise _Lost(self._at, "expected a value, found a bare word (text needs quotes)")
        else:
            raise _Lost(self._at, f"expected a value, found {self._shown()}")

    def _skip_space(self) -> None:
        if match := _SPACE.match(self._text, self._at):
            self._at = match.end()
        if self._text.startswith("/*", self._at):
            raise _Lost(self._at, "this comment is not closed")

    def _take(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self._at += 1
        return True

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _shown(self) -> str:
        return repr(self._peek()) if self._peek() else "the end of the file"

    def _unclosed(self, opened_at: int) -> _Lost:
        line, _ = self._found.place(opened_at)
        opening = self._text[opened_at]
        return _Lost(self._at, f"the file ends before the '{opening}' of line {line} is closed")


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        four, two, other = match.groups()
        if code := four or two:
            return chr(int(code, 16))
        return "" if other in _LINE_ENDS else _SHORT_ESCAPES.get(other, other)

    return _ESCAPE.sub(replace, text) if "\\" in text else text
