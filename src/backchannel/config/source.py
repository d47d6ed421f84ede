"""The source of a configuration: a JSON5 file with lines, or a program's mapping.

The parser gives values without places. `scan` finds where each setting stands in the text: see `Positions`.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyjson5

from backchannel.config.findings import MAX_FINDINGS, ConfigFinding, config_error, show_path
from backchannel.core.settings import SettingPath, Step
from backchannel.core.text import cut

_LINE_END = re.compile("\n")
LINE_COMMENT = r"//[^\n\r\u2028\u2029]*"
_SPACE = re.compile(rf"(?:[\s\ufeff]+|{LINE_COMMENT}|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r"\"(?:[^\"\\\n\r]|\\.|\\\r\n)*\"|'(?:[^'\\\n\r]|\\.|\\\r\n)*'", re.DOTALL)
_IDENTIFIER = re.compile(r"(?:[\w$\u200c\u200d]|\\u[0-9a-fA-F]{4})+")
_SCALAR = re.compile(r"[+-]?(?:[\d.][\w.+-]*|Infinity|NaN)|true|false|null")  # the parser says which are numbers
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(\r\n|.))", re.DOTALL)
_SHORT_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_LINE_ENDS = frozenset(["\n", "\r", "\r\n", "\u2028", "\u2029"])
_MAX_DEPTH = 64


class SyntaxProblem(NamedTuple):
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
    problem: SyntaxProblem | None = None
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
    """Find where each setting of a JSON5 text stands. Never fails: see `Positions.problem`."""
    found = Positions(text)
    try:
        _Scanner(text, found).document()
    except _Lost as lost:
        found.problem = lost.problem
    return found


class _Lost(Exception):
    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.problem = SyntaxProblem(offset, problem)


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


_MAX_FILE_BYTES = 4 * 1024 * 1024

_MAX_SHOWN = 60

# A file that cannot be parsed has no settings yet, so what may be a secret is known by its name alone.
_SECRET_WORDS = r"(?:token|secret|apiKey|password|url)"
_SECRET_VALUE = re.compile(rf"({_SECRET_WORDS}[\"']?\s*:\s*)([^\n]*)", re.IGNORECASE)
_SECRET_NAME = re.compile(rf".*{_SECRET_WORDS}\Z", re.IGNORECASE | re.DOTALL)
_NEAR = re.compile(r"near (\d+)")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Settings as they were written, and where.

    A setting that the file has under an older name is looked up by today's path: see `origins`.
    """

    raw: dict[str, Any]
    file: Path | None = None
    positions: Positions | None = None
    origins: Mapping[SettingPath, SettingPath] = field(default_factory=dict)

    def named(self, path: SettingPath) -> str:
        """The path of a setting, as people write it."""
        return show_path(trace(path, self.origins))

    def line(self, path: SettingPath) -> int | None:
        """The line of a setting, when there is a file."""
        return self.positions.line(trace(path, self.origins)) if self.positions else None

    def shown(self, path: SettingPath, value: Any) -> str:
        """A value as an error may show it: not what a variable holds, for that may be a secret."""
        written = self._written(path)
        if isinstance(written, str) and "${" in written:
            return f"what `{written[:_MAX_SHOWN]}` stands for"
        shown = _literal(value)
        return cut(shown, _MAX_SHOWN)

    def _written(self, path: SettingPath) -> Any:
        value: Any = self.raw
        for step in trace(path, self.origins):
            try:
                value = value[step]
            except (LookupError, TypeError):
                return None
        return value


def trace(path: SettingPath, origins: Mapping[SettingPath, SettingPath]) -> SettingPath:
    """Follow a setting, or what is around it, to where it was written."""
    for length in range(len(path), 0, -1):
        if (origin := origins.get(path[:length])) is not None:
            return (*origin, *path[length:])
    return path


def load_source(file: Path) -> ConfigSource:
    """Read a JSON5 file.

    Raises:
        ConfigError: it cannot be read, or is not one JSON5 object with distinct keys.
    """
    return parse_source(load_text(file).removeprefix("\ufeff").replace("\r\n", "\n"), file)


def parse_source(text: str, file: Path) -> ConfigSource:
    """Read the text of a file, as `load_source` does."""
    positions = scan(text)
    if not text.strip():
        raise _unreadable(file, "the file is empty (`{}` takes the defaults)")
    try:
        raw = pyjson5.decode(text)
    except pyjson5.Json5DecoderException as error:
        raise config_error([_syntax_finding(error, positions)], file) from None
    if not isinstance(raw, dict):
        raise _unreadable(file, f"the file holds {_named(raw)}, expected an object: `{{ agents: … }}`")
    if positions.repeated:
        raise config_error(
            [_repeated_finding(path, positions) for path in positions.repeated[: MAX_FINDINGS + 1]], file
        )
    return ConfigSource(raw, file, positions)


def source_from(mapping: Mapping[str, Any]) -> ConfigSource:
    """Take settings as an embedding program gives them: names as in the file, plain values."""
    return ConfigSource(_plain(mapping))


def load_text(file: Path) -> str:
    """Read a file's text, byte for byte.

    Raises:
        ConfigError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _unreadable(
            file, "there is no such file (`backchannel init` writes one; without one the defaults hold)"
        ) from None
    except IsADirectoryError:
        raise _unreadable(file, "this is a folder, expected a JSON5 file") from None
    except OSError as error:
        raise _unreadable(file, f"the file cannot be read: {error.strerror}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise _unreadable(file, f"the file is larger than {_MAX_FILE_BYTES // 1024**2} MiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"the file is not UTF-8 text (byte 0x{content[error.start]:02x} in line {line})"
        raise config_error([ConfigFinding("error", "", message, line)], file) from None


def _unreadable(file: Path, message: str) -> Exception:
    return config_error([ConfigFinding("error", "", message)], file)


def _syntax_finding(error: pyjson5.Json5DecoderException, positions: Positions) -> ConfigFinding:
    # The scanner's place is exact. The parser's own is off by one at times, and is used for the few
    # things that only the parser refuses, such as a malformed escape.
    if positions.problem:
        offset, problem = positions.problem
    else:
        near = _NEAR.search(str(error.args[0]))
        offset = min(int(near[1]), len(positions.text)) if near else 0
        problem = "this is not JSON5"
    line, column = positions.place(offset)
    return ConfigFinding("error", "", f"column {column}: {problem}{_excerpt(positions.text, line, column)}", line)


def _excerpt(text: str, line: int, column: int) -> str:
    """The offending line with a mark under the column, and without what may be a secret."""
    start = max(0, column - 60)
    shown = _covered(text).split("\n")[line - 1][start : start + 100].replace("\t", " ").rstrip()
    return f"\n    {shown}\n    {' ' * (column - 1 - start)}^"


def without_secrets(text: str) -> str:
    """Hide what its name, or its looks, give away as a secret."""
    from backchannel.core.secrets.redaction import (
        redact,  # its patterns take their time, and most commands show no secrets
    )

    return redact(_covered(text))[0]


def _covered(text: str) -> str:
    """Cover what follows a secret's name up to the end of its line; all else stays in its place."""
    return _SECRET_VALUE.sub(lambda match: match[1] + "•" * len(match[2]), text)


def may_be_secret(name: str) -> bool:
    """Whether a setting of this name may hold a secret."""
    return _SECRET_NAME.match(name) is not None


def _repeated_finding(path: SettingPath, positions: Positions) -> ConfigFinding:
    return ConfigFinding(
        "error", show_path(path), "this setting is given twice; keep one of them", positions.line(path)
    )


def _literal(value: Any) -> str:
    """Write a plain value as JSON5 does."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and abs(value) > 10**_MAX_SHOWN:
        return "a huge number"  # Python refuses to write the largest ones
    return repr(value)


def _named(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
