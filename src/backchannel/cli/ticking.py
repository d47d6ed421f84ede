"""A clock that ticks while a line is read, and a Ctrl-C that is noticed whenever it comes.

Both are signals. The library that reads the line runs their handlers only when one of them wakes it: a signal that
comes while a key is drawn is noticed with the next one. So the clock goes on until a tick has been heard.

Of signals that came together, Python runs the second handler even if the first has raised, and fails over that. So
only the clock's raises, which is the later of the two by number: Ctrl-C just makes it tick at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

TICK_S = 0.2
AT_ONCE_S = 0.001


class Ticking:
    """Handles Ctrl-C and the clock for as long as it is entered; KeyboardInterrupt is raised as ever."""

    def __init__(self, on_tick: Callable[[], None]) -> None:
        self._on_tick = on_tick
        self._is_reading = False
        self._is_interrupted = False
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        for number, handler in ((signal.SIGALRM, self._tick), (signal.SIGINT, self._interrupt)):
            self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before[signal.SIGINT])
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before[signal.SIGALRM])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Tick every now and then while a line is read."""
        self._is_reading = True
        _wind(TICK_S)
        try:
            yield
        finally:
            self._is_reading = False  # the tick that comes yet is the last

    def _interrupt(self, number: int, frame: object) -> None:
        self._is_interrupted = True
        _wind(AT_ONCE_S)

    def _tick(self, number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # no tick comes in the middle of this one, or of what it raises
        if self._is_interrupted:
            self._is_interrupted = False
            raise KeyboardInterrupt
        if self._is_reading:
            self._on_tick()
            _wind(TICK_S)


def _wind(first_s: float) -> None:
    """Let the clock tick, again and again until a tick is heard."""
    signal.setitimer(signal.ITIMER_REAL, first_s, TICK_S)
