"""Limits on chains of runs, and the check for circles of waits.

A chain is how far one cause reaches through sends, spawns and wakes.

A person's message, a cron firing, a hook and an operator's send start a chain at hop 0. A send, a spawn and a wake go
one hop further; reply-back turns and announces keep the hop of their send. A chain at its limit of hops or runs goes no
further: sends and spawns are refused, and wakes become posts. Steps of what was accepted before still happen. They are
few, and stopping them would lose a reply.

A session that waits keeps its lane until the other session has answered. Sessions that wait for each other in a circle
would all stand still until their waits expire. So the send that would close a circle is refused at once. The check
reads the rows in the unit that adds a row: two sends cannot both pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Protocol

import msgspec

from backchannel.core.policy.decisions import Decision
from backchannel.core.runs import Chain
from backchannel.core.settings import Settings, setting

MAX_HOPS = "session.agentToAgent.maxHops"
MAX_CHAIN_RUNS = "session.agentToAgent.maxChainRuns"

_SHOWN_AT_EACH_END = 6


class ExchangeLimitSettings(Settings, frozen=True, kw_only=True):
    """How far sessions may talk to each other before they are stopped."""

    max_ping_pong_turns: Annotated[int, setting("Most reply-back turns after a send.", ge=0, le=5)] = 5
    max_hops: Annotated[int, setting("Most sends, spawns and wakes in a row from one cause.", ge=1)] = 8
    max_chain_runs: Annotated[int, setting("Most runs in total from one cause.", ge=1)] = 100


class ChainLimits(Protocol):
    """How far a chain may go: as configured now, or as it was when a sub-agent was accepted."""

    @property
    def max_hops(self) -> int: ...

    @property
    def max_chain_runs(self) -> int: ...


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands in its chain."""

    chain: Chain
    path: tuple[str, ...]
    """The sessions that the chain came through, as they are shown; the last is the run's own."""
    runs: int
    """How many runs the chain has had, this one included."""


def may_go_on(origin: Lineage | None, to: str, limits: ChainLimits) -> Decision:
    """Decide whether a chain may go one hop further, to the session shown as `to`; no origin starts a new chain."""
    if origin is None:
        return Decision(True, "a new chain")
    hop = origin.chain.hop + 1
    path = show_path((*origin.path, to))
    if hop > limits.max_hops:
        reason = (
            f"this would be hop {hop} of one chain, and {MAX_HOPS} is {limits.max_hops} (a higher value would allow it)"
        )
        return Decision(False, f"{reason}: {path}", MAX_HOPS)
    if origin.runs >= limits.max_chain_runs:
        reason = f"this chain has had {origin.runs} runs, and {MAX_CHAIN_RUNS} is {limits.max_chain_runs}"
        return Decision(False, f"{reason} (a higher value would allow it): {path}", MAX_CHAIN_RUNS)
    return Decision(True, f"hop {hop} of {limits.max_hops}: {path}")


def go_on(origin: Lineage | None, to: str, run_id: str) -> tuple[Chain, tuple[str, ...]]:
    """Make the chain and path of the run that goes one hop further; a new chain is named after its first run."""
    if origin is None:
        return Chain(run_id), (to,)
    return Chain(origin.chain.id, origin.chain.hop + 1), (*origin.path, to)


def path_at(path: tuple[str, ...], session: str) -> tuple[str, ...]:
    """Make the path of a run of this session: a reply-back turn comes from the session at the path's end."""
    return path if path[-1:] == (session,) else (*path, session)


def show_path(path: tuple[str, ...]) -> str:
    """Show a path on one line, its middle left out when it is very long."""
    left_out = len(path) - 2 * _SHOWN_AT_EACH_END
    if left_out < 2:
        return " → ".join(path)
    start, end = path[:_SHOWN_AT_EACH_END], path[-_SHOWN_AT_EACH_END:]
    return " → ".join((*start, f"({left_out} more)", *end))


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
    why = "a session cannot wait for itself" if len(circle) == 2 else "each of them would wait for the next one"
    return Decision(False, f"waiting would close a circle: {path} ({why}; timeoutSeconds 0 sends without waiting)")


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
