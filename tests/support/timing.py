"""The growth of time between two sizes. A slow or busy machine does not decide a test."""

from __future__ import annotations

import time
from collections.abc import Callable

NOTICED_S = 0.002
"""Less time than this is all noise."""
TRIES = 4
"""How often it is looked again before time is said to grow: somebody else may have had the processor's caches."""


def seconds(work: Callable[[], object]) -> float:
    """Tell how long this thread worked on something."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def is_at_most(
    most: float, work: Callable[[], object], than: Callable[[], object], *, noticed_s: float = NOTICED_S
) -> bool:
    """Whether one thing takes at most so many times as long as another."""
    return any(seconds(work) < most * max(seconds(than), noticed_s) for _ in range(TRIES))


def grows_linearly(work: Callable[[int], object], small: int, times: int = 4) -> bool:
    """Whether work on something so many times as large takes about as many times as long, and not their square."""
    most = (times + times**2) / 2
    return is_at_most(most, lambda: work(small * times), lambda: work(small))
