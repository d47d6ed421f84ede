"""A terminal before OpenClaw's terminal UI: what somebody sees of what it draws."""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.cli.program import Terminal

from .conftest import PATIENCE_S, OpenClaw

_RESTING = ("connected | idle", "connected | aborted")
LINES, COLUMNS = 250, 140  # so many lines that it never scrolls

_PIECES = re.compile(
    r"\x1b\[(?P<args>[0-9;?<>=]*)(?P<verb>[@-~])|\x1b\].*?(?:\x07|\x1b\\)|\x1b[^\[\]]|(?P<key>.)", re.DOTALL
)


class Screen:
    """The lines of a screen on which the cursor is moved about, as far as this program does it."""

    def __init__(self) -> None:
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        for piece in _PIECES.finditer(text):
            if piece["verb"]:
                self._obey(piece["verb"], piece["args"])
            elif piece["key"]:
                self._put(piece["key"])

    @property
    def lines(self) -> list[str]:
        return ["".join(line).rstrip() for line in self._lines]

    def _obey(self, verb: str, args: str) -> None:
        first = int(args.split(";")[0] or 0) if args.replace(";", "").isdigit() else 0
        match verb:
            case "A":
                self._row = max(0, self._row - (first or 1))
            case "B":
                self._go_to(self._row + (first or 1))
            case "G":
                self._column = max(0, first - 1)
            case "H":
                self._row = self._column = 0
            case "K" if first == 2:
                self._lines[self._row] = []
            case "K":
                del self._lines[self._row][self._column :]
            case "J" if first in (2, 3):
                self._lines = [[] for _ in range(self._row + 1)]
            case "J":
                del self._lines[self._row][self._column :], self._lines[self._row + 1 :]

    def _put(self, key: str) -> None:
        match key:
            case "\r":
                self._column = 0
            case "\n":
                self._go_to(self._row + 1)
            case _ if key.isprintable():
                line = self._lines[self._row]
                line += " " * (self._column + 1 - len(line))
                line[self._column] = key
                self._column += 1

    def _go_to(self, row: int) -> None:
        self._row = row
        self._lines += [[] for _ in range(row + 1 - len(self._lines))]


class Tui(Terminal):
    """The terminal UI, typed at and looked at."""

    def __init__(self, openclaw: OpenClaw, *words: str) -> None:
        super().__init__(openclaw.command(*words), openclaw.env, openclaw.home)
        self.resize(LINES, COLUMNS)

    @property
    def lines(self) -> list[str]:
        screen = Screen()
        screen.write(self.written)
        return screen.lines

    def count(self, text: str) -> int:
        """Count the lines on which a text is seen."""
        return sum(text in line for line in self.lines)

    def sees(self, *texts: str) -> None:
        """Wait until each of these is seen at the same time."""
        self.until(lambda: all(self.count(text) for text in texts), f"{texts}")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"{what} was not seen, but\n" + "\n".join(self.lines)
            ready, _, _ = select.select([self._master], [], [], 1)
            assert not ready or self._read(), f"{what} was not seen before the end, but\n" + "\n".join(self.lines)

    def submit(self, text: str) -> None:
        """Type a line, see it, and press Enter."""
        self.type(text)
        self.until(lambda: any(line.strip() == text for line in self._below()), text)
        self.type("\r")

    def rests(self) -> None:
        """Wait until it is connected and no run is at work."""
        self.until(lambda: any(line.endswith(_RESTING) for line in self._below()), "rest")

    def _below(self) -> list[str]:
        """Read the lines about the prompt: its state, what is typed, and what it offers to complete it with."""
        return [line for line in self.lines if line][-20:]


@contextmanager
def opened(openclaw: OpenClaw, *words: str) -> Iterator[Tui]:
    """Open the terminal UI by a command."""
    started = Tui(openclaw, *words)
    try:
        yield started
    finally:
        started.close()


@contextmanager
def tui(openclaw: OpenClaw, key: str) -> Iterator[Tui]:
    """Open the terminal UI on a session, and wait until it has connected."""
    with opened(openclaw, "tui", "--session", key) as started:
        started.rests()
        yield started
