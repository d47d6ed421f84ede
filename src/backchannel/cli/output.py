"""Output of commands: colour on a terminal, plain text elsewhere, JSON when asked.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console

_PATIENCE_S = 1.0
"""The longest silence of a command before it says what it waits for."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_PARTS = re.compile(r"\n|[^\S\n]+|\S+")


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


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, a line each. Unknown values are left out."""
    known = {name: value for name, value in facts.items() if value not in (None, "")}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        indented = str(value).replace("\n", "\n" + " " * (width + 2))
        say(f"{name.ljust(width)}  {indented}")


def console(stream: TextIO | None = None) -> Console:
    """Make a console for a terminal."""
    from rich.console import Console

    return Console(file=stream or sys.stdout, highlight=False)


def is_terminal(stream: TextIO) -> bool:
    """True if the stream is a terminal."""
    return not stream.closed and stream.isatty()


def clean(text: str) -> str:
    """Remove control characters; line breaks and tabs stay."""
    return _CONTROL.sub("", text)


class WordWrap:
    """Wraps prose at its words, a piece at a time. Text between fences stays as it is."""

    def __init__(self, width: int | None = None) -> None:
        # A line that fills the terminal would be followed by an empty one.
        self._width = width or shutil.get_terminal_size().columns - 1
        self._column = 0
        self._is_code = False
        self._may_break = False

    def feed(self, text: str) -> str:
        """Wrap the next piece. The pieces before it stay as they are."""
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


def _now_ms() -> int:
    return int(time.time() * 1000)


def age(then_ms: int | None, now_ms: int | None = None) -> str:
    """Show how long ago something was: `5s`, `12m`, `3h`, `9d`."""
    if then_ms is None:
        return ""
    seconds = max(0, (_now_ms() if now_ms is None else now_ms) - then_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def until(then_ms: int | None, now_ms: int | None = None) -> str:
    """Show how far in the future something is, rounded: an hour less a moment is `1h`, not `59m`."""
    if then_ms is None:
        return ""
    seconds = max(0, then_ms - (_now_ms() if now_ms is None else now_ms)) / 1000
    for unit, size, below in (("d", 86_400, 3_600), ("h", 3_600, 60), ("m", 60, 1)):
        if (rounded := round(seconds / below) * below) >= size:
            return f"{rounded // size}{unit}"
    return f"{round(seconds)}s"


def clock_time(at_ms: int) -> str:
    """Show when something was, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))


def hour_time(at_ms: int) -> str:
    """Show when something was or will be within a day, in local time."""
    return time.strftime("%H:%M", time.localtime(at_ms / 1000))


@contextmanager
def patience(text: str) -> Iterator[None]:
    """Show what the command waits for, once that takes longer than a second."""
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
