"""A clock that ticks while a line is read, so that news can be shown."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Self

_TICK_S = 0.2
AT_ONCE_S = 0.001


class TickingInput:
    """A clock that ticks while a line is read, and a Ctrl-C that is always noticed.

    Both are signals. readline runs Python's handlers only when a signal interrupts its wait for a key: one that arrives
    while a key is drawn is handled with the next one. So the clock repeats until a tick has been handled.

    Of signals that came together, Python runs the second handler even if the first has raised, and fails over that. So
    only the clock's handler raises KeyboardInterrupt, as its signal's number is the higher one: Ctrl-C makes it tick
    at once.
    """

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

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Tick while a line is read."""
        self._is_reading = True
        _start_clock(_TICK_S)
        try:
            yield
        finally:
            self._is_reading = False  # the next tick is the last

    def _interrupt(self, number: int, frame: object) -> None:
        self._is_interrupted = True
        _start_clock(AT_ONCE_S)

    def _tick(self, number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # no tick comes in the middle of this one, or of what it raises
        if self._is_interrupted:
            self._is_interrupted = False
            raise KeyboardInterrupt
        if self._is_reading:
            self._on_tick()
            _start_clock(_TICK_S)


def _start_clock(first_s: float) -> None:
    """Start the clock; it ticks until a tick has been handled."""
    signal.setitimer(signal.ITIMER_REAL, first_s, _TICK_S)
