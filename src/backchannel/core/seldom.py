"""Log lines about repeated failures, at most one a minute for each cause."""

from __future__ import annotations

import re

EVERY_S = 60.0
MOST_CAUSES = 256
_NUMBER = re.compile(r"\d+")


class Seldom:
    """Tells whether a cause may be logged now. Numbers in it make it no other cause."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}

    def lets(self, cause: str, now: float) -> bool:
        """Whether this cause was not logged in the minute before `now`; from then on it was."""
        cause = _NUMBER.sub("#", cause)
        if now < self._next.get(cause, now):
            return False
        if len(self._next) >= MOST_CAUSES:
            self._next.clear()
        self._next[cause] = now + EVERY_S
        return True

    def forget(self) -> None:
        """Begin anew, as what was wrong is over."""
        self._next.clear()
