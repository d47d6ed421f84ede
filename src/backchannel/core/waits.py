"""Waits: who waits for whom, and that nobody ever waits in a circle.

A session that waits keeps its lane until the other one has answered. Sessions that wait for each other in a circle
would all stand still until their waits run out, so the send that would close a circle is refused at once. The check
reads the rows in the very unit that adds a row: two sends cannot both pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from backchannel.core.decisions import Decision


class Wait(msgspec.Struct, frozen=True):
    """One session waits for another; both are keys as stored."""

    waiter: str
    target: str


def may_wait(waits: Iterable[Wait], waiter: str, target: str, show: Callable[[str], str] = str) -> Decision:
    """Decide whether a session may begin to wait for another; `show` writes a key as the caller sees it."""
    circle = find_circle(waits, waiter, target)
    if circle is None:
        return Decision(True, f"{show(target)} does not wait for {show(waiter)}")
    path = " → ".join(map(show, circle))
    told = "a session cannot wait for itself" if len(circle) == 2 else "each of them would wait for the next one"
    return Decision(False, f"waiting would close a circle: {path} ({told}; timeoutSeconds 0 sends without waiting)")


def find_circle(waits: Iterable[Wait], waiter: str, target: str) -> tuple[str, ...] | None:
    """Find the shortest circle that one more wait would close, from the waiter back to itself."""
    if waiter == target:
        return waiter, target
    way = _way(_targets_of(waits), target, waiter)
    return None if way is None else (waiter, *way)


def _targets_of(waits: Iterable[Wait]) -> Mapping[str, list[str]]:
    """Gather whom each session waits for; one run may wait for several, in parallel tool calls."""
    targets: dict[str, list[str]] = {}
    for wait in waits:
        targets.setdefault(wait.waiter, []).append(wait.target)
    return targets


def _way(targets: Mapping[str, list[str]], start: str, end: str) -> tuple[str, ...] | None:
    """Find the shortest way from one session to another along the waits."""
    came_from: dict[str, str | None] = {start: None}
    ahead = deque([start])
    while ahead:
        here = ahead.popleft()
        if here == end:
            return _back(came_from, end)
        for there in targets.get(here, ()):
            if there not in came_from:
                came_from[there] = here
                ahead.append(there)
    return None


def _back(came_from: Mapping[str, str | None], end: str) -> tuple[str, ...]:
    way = [end]
    while (before := came_from[way[-1]]) is not None:
        way.append(before)
    return tuple(reversed(way))
