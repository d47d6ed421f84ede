"""What commands print: tables and colour on a terminal, plain text elsewhere, JSON when asked.

Texts of sessions come from anywhere, so whatever goes to a terminal is cleaned of control characters first:
a reply cannot move the cursor or rename the window.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PATIENCE_S = 1.0
"""How long a command may be silent before it says what it waits for."""

NARROWEST = 16
"""The least room for the first column of a table, however narrow the terminal."""

PROSE = 16
"""The room that prose, the last column of a table, gets before other columns are left out."""
LEAST_PROSE = 8
"""The room that is left to it before the first column is folded."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_PARTS = re.compile(r"\n|[^\S\n]+|\S+")
_STYLES = {
    "ok": "green",
    "allowed": "green",
    "sent": "green",
    "running": "cyan",
    "announcing": "cyan",
    "sending": "cyan",
    "queued": "yellow",
    "pending": "yellow",
    "warning": "yellow",
    "aborted": "yellow",
    "suppressed": "yellow",
    "error": "red",
    "timeout": "red",
    "denied": "red",
    "failed": "red",
    "uncertain": "red",
}


def say(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print a text, cleaned if it goes to a terminal."""
    stream = sys.stderr if err else sys.stdout
    shown = clean(text) if is_terminal(stream) else text.encode("utf-8", "replace").decode()
    stream.write(shown + end)
    stream.flush()


def say_dim(text: str, *, err: bool = False) -> None:
    """Print a side remark."""
    say_styled(text, err=err, dim=True)


def say_styled(text: str, *, err: bool = False, end: str = "\n", **style: Any) -> None:
    """Print a text in a style, on terminals that want one."""
    stream = sys.stderr if err else sys.stdout
    is_plain = not is_terminal(stream) or os.environ.get("NO_COLOR")
    stream.write((clean(text) if is_plain else typer.style(clean(text), **style)) + end)
    stream.flush()


def show_json(value: Any, *, lines: bool = False) -> None:
    """Print a value as JSON: for people to read, or with `lines` one a line."""
    import msgspec

    body = msgspec.json.encode(value)
    if not lines:
        body = msgspec.json.format(body)
    if is_terminal(sys.stdout):
        body = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", body.decode()).encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(body + b"\n")  # JSON is UTF-8 in every locale
    sys.stdout.buffer.flush()


def as_plain(answer: Any) -> dict[str, Any]:
    """Turn an answer of the gateway into plain values, for JSON that has more in it."""
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(answer)
    return values


def say_or_json(text: str, answer: Any, *, as_json: bool) -> None:
    """Print a text, or with `--json` the answer of the gateway that it is about."""
    if as_json:
        show_json(answer)
    else:
        say(text)


Rows: TypeAlias = Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Long:
    """A text of a table that has a short form, for terminals without room for the whole of it."""

    text: str
    short: str

    def __str__(self) -> str:
        return self.text


def show_table(columns: Sequence[str], rows: Rows, *, empty: str, spare: Sequence[str] = ()) -> None:
    """Print rows under their columns; without any, say what their absence means."""
    if not rows:
        say(empty)
        return
    if is_terminal(sys.stdout):
        console().print(build_table(columns, rows, spare))
        return
    cells = _cells(rows)
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in ([column.upper() for column in columns], *cells):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def build_table(columns: Sequence[str], rows: Rows, spare: Sequence[str] = (), *, is_flat: bool = False) -> Table:
    """Build a table as wide as the terminal. Empty columns are left out.

    Where there is no room, texts that have a short form take it, the last column first; then the `spare` columns are
    left out. The last column may hold prose, which is wrapped at its words, and gives way to the first one, which names
    the row: it is folded only where even that leaves no room for it. A flat table has a line for each row: what would
    be wrapped or folded is cut, and a row that tells of a failure stands out.
    """
    from rich.cells import chop_cells
    from rich.table import Table
    from rich.text import Text

    whole = dict(zip(columns, zip(*_cells(rows), strict=True), strict=True))
    short = dict(zip(columns, zip(*_cells(rows, is_short=True), strict=True), strict=True))
    shown = {column: texts for column, texts in whole.items() if any(texts)}
    columns = [column for column in columns if column in shown or column == columns[-1]]
    room = console().width
    for column in reversed(columns):
        if column in shown and _width(shown) > room:
            shown[column] = short[column]
    for column in spare:
        if _least_width(shown, columns) > room:
            shown.pop(column, None)
    others = _least_width(shown, columns, prose=LEAST_PROSE) - _width({columns[0]: shown[columns[0]]})
    table = Table(box=None, header_style="bold", pad_edge=False)
    if is_flat:
        return _flattened(table, shown, columns, room - others)
    for column in shown:
        table.add_column(column, overflow="fold", no_wrap=whole[column] != short[column] or column == columns[0])
    for first, *rest in zip(*shown.values(), strict=True):
        folded = "\n".join(chop_cells(first, min(room, max(NARROWEST, room - others))))
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in (folded, *rest)))
    return table


def _flattened(table: Table, shown: Mapping[str, Sequence[str]], columns: Sequence[str], first: int) -> Table:
    """Fill a table with a line for each row, its first column at most so wide and its last as wide as there is room."""
    from rich.text import Text

    widest = {columns[0]: max(NARROWEST, first)}
    if columns[-1] in shown:
        named = _width({columns[0]: [text[: widest[columns[0]]] for text in shown[columns[0]]]})
        others = _width({column: texts for column, texts in shown.items() if column not in (columns[0], columns[-1])})
        widest[columns[-1]] = max(LEAST_PROSE, console().width - named - others - 4)
    for column in shown:
        table.add_column(column, overflow="ellipsis", no_wrap=True, max_width=widest.get(column))
    for row in zip(*shown.values(), strict=True):
        is_wrong = any(_STYLES.get(text) == "red" for text in row)
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in row), style="bold red" if is_wrong else "")
    return table


def _width(shown: Mapping[str, Sequence[str]]) -> int:
    """How wide a table of these columns is."""
    from rich.cells import cell_len

    widths = [max(cell_len(text) for text in (column, *texts)) for column, texts in shown.items()]
    return sum(widths) + 2 * len(widths) - 2


def _least_width(shown: Mapping[str, Sequence[str]], columns: Sequence[str], prose: int = PROSE) -> int:
    """How wide a table is at least, when what stands in its last column is wrapped."""
    last = columns[-1]
    return _width({**shown, last: [text[:prose] for text in shown[last]]} if last in shown else shown)


def _cells(rows: Rows, *, is_short: bool = False) -> list[list[str]]:
    return [[_cell(cell, is_short) for cell in row] for row in rows]


def _cell(cell: object, is_short: bool) -> str:
    text = cell.short if is_short and isinstance(cell, Long) else "" if cell is None else str(cell)
    return clean(text).replace("\n", " ")


def say_more(limit: int) -> None:
    """Say that a list is cut, and how to see the rest."""
    say(f"There are more: --limit {limit * 2} shows them.", err=True)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, a line each; what is not known is left out."""
    known = {name: value for name, value in facts.items() if value not in (None, "")}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        indented = str(value).replace("\n", "\n" + " " * (width + 2))
        say(f"{name.ljust(width)}  {indented}")


def console(stream: TextIO | None = None) -> Console:
    """A console for what only terminals get."""
    from rich.console import Console

    return Console(file=stream or sys.stdout, highlight=False)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person watches the stream."""
    return not stream.closed and stream.isatty()


def clean(text: str) -> str:
    """Leave out what would control a terminal; line breaks and tabs stay."""
    return _CONTROL.sub("", text)


class WordWrap:
    """Wraps prose at its words as it comes, a piece at a time; what is between fences stays as it is."""

    def __init__(self, width: int | None = None) -> None:
        # A line that fills the terminal would be followed by an empty one.
        self._width = width or shutil.get_terminal_size().columns - 1
        self._column = 0
        self._is_code = False
        self._may_break = False

    def feed(self, text: str) -> str:
        """Give the next piece, with line breaks where a word would not fit. What was given before stays."""
        return "".join(map(self._part, _PARTS.findall(text)))

    def _part(self, part: str) -> str:
        from rich.cells import cell_len

        if part == "\n":
            self._column, self._may_break = 0, False
            return part
        if self._column == 0 and part.startswith("```"):
            self._is_code = not self._is_code
        size = cell_len(part)
        is_word = not part.isspace()
        if is_word and self._may_break and not self._is_code and self._column + size > self._width:
            self._column, part = 0, f"\n{part}"
        self._column += size
        self._may_break = not is_word
        return part


def wrapped(text: str) -> str:
    """Break a text between its words where a person reads it."""
    return WordWrap().feed(text) if is_terminal(sys.stdout) else text


def counted(number: int, word: str) -> str:
    """Show how many there are: `1 session`, `2 sessions`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def age(then_ms: int | None, now_ms: int | None = None) -> str:
    """Show how long ago something was: `5s`, `12m`, `3h`, `9d`."""
    if then_ms is None:
        return ""
    seconds = max(0, (int(time.time() * 1000) if now_ms is None else now_ms) - then_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def until(then_ms: int, now_ms: int) -> str:
    """Show in how long something will be, as `age` does, rounded: one hour less a moment is `1h`, not `59m`."""
    seconds = max(0, then_ms - now_ms) / 1000
    for unit, size, below in (("d", 86_400, 3_600), ("h", 3_600, 60), ("m", 60, 1)):
        if (rounded := round(seconds / below) * below) >= size:
            return f"{rounded // size}{unit}"
    return f"{round(seconds)}s"


def clock_time(at_ms: int) -> str:
    """Show when something was, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))


@contextmanager
def patience(text: str) -> Iterator[None]:
    """Say on the terminal what is waited for, once that takes longer than a second."""
    spinner = Spinner(text)
    try:
        yield
    finally:
        spinner.end()


class Spinner:
    """A spinner that shows up only when something takes long."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._is_over = False
        self._status: Any = None
        self._timer: threading.Timer | None = None
        if is_terminal(sys.stderr):
            self._timer = threading.Timer(_PATIENCE_S, self._show)
            self._timer.daemon = True
            self._timer.start()

    def _show(self) -> None:
        with self._lock:
            if not self._is_over:
                self._status = console(sys.stderr).status(self._text)
                self._status.start()

    def end(self) -> None:
        """Take the spinner away; a second time does nothing."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._status is not None:
                self._status.stop()
                self._status = None
