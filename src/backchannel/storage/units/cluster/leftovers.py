"""Leftovers: one query that shows if other gateways left work.

Each gateway asks once a second, and mostly there is nothing. Otherwise the queries that know the work look at it. So
each condition here is that of the query that it stands for.
"""

from __future__ import annotations

from typing import NamedTuple

from backchannel.storage.tx import Tx, required
from backchannel.storage.units import drafts, recovery, sending
from backchannel.storage.units.cluster import growing, members


class Leftovers(NamedTuple):
    """The kinds of work that were left."""

    functions: tuple[str, ...] = ()
    """Agents that programs have registered as functions."""
    has_drafts: bool = False
    has_runs: bool = False
    """Whether ended processes held runs."""
    has_queue: bool = False
    """Whether a queued run could start."""
    has_parts: bool = False
    """Whether ended processes were sending something."""
    has_lanes: bool = False
    """Whether a chat has a queue that nobody sends."""
    has_due: bool = False
    """Whether something is due."""
    has_readers: bool = False
    """Whether somebody reads a run of another gateway."""


def look(tx: Tx, since_ms: int) -> Leftovers:
    """Check all kinds. A delivery is left when it has waited for `since_ms`."""
    row = required(
        tx.one(
            f"SELECT (SELECT string_agg(id, ' ') FROM ({recovery.FUNCTIONS}) f), EXISTS ({drafts.DRAFTS_LEFT}), "
            f"EXISTS ({recovery.INTERRUPTED_RUNS}), EXISTS ({members.STARTABLE}), EXISTS ({sending.DELIVERIES_LEFT}), "
            f"EXISTS ({sending.WAITING}), "
            "EXISTS (SELECT 1 FROM timers WHERE due_at <= ?) "
            "OR EXISTS (SELECT 1 FROM deliveries WHERE due_at IS NOT NULL AND due_at <= ?), "
            f"EXISTS ({growing.READ})",
            tx.now,
            tx.now - since_ms,
            tx.now,
            tx.now,
        )
    )
    return Leftovers(tuple((row[0] or "").split()), *map(bool, row[1:]))
