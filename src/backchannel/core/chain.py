"""Chains: how far one cause may reach through sends, spawns and wakes.

A person's message, a cron firing, a hook and an operator's send start a chain at hop 0. A send, a spawn and a wake go
one hop further; reply-back turns and announces keep the hop of their send. A chain that has gone too far, or has had
too many runs, goes no further: sends and spawns are refused, wakes become posts. Steps of what was accepted before
still happen; they are few, and stopping them would lose a reply.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from backchannel.core.decisions import Decision
from backchannel.core.runs import Chain

MAX_HOPS = "session.agentToAgent.maxHops"
MAX_CHAIN_RUNS = "session.agentToAgent.maxChainRuns"

_SHOWN_AT_EACH_END = 6


class ChainLimits(Protocol):
    """`session.agentToAgent`, as configured."""

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
