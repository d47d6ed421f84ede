"""Leftovers: whether other gateways have left anything to do, seen by one query.

It is asked once a second by each gateway, and mostly there is nothing. What there is, is then looked at by the queries
that know it; so each condition here is that of the query that it stands for.
"""

from __future__ import annotations

from typing import NamedTuple

from backchannel.storage.tx import Tx, required
from backchannel.storage.units import drafts, recovery, sending
from backchannel.storage.units.cluster import growing, members


class Leftovers(NamedTuple):
    """What there is to look at."""

    functions: tuple[str, ...] = ()
    """Agents that programs have brought as functions."""
    has_drafts: bool = False
    has_runs: bool = False
    """Whether processes that have ended were at work on runs."""
    has_queue: bool = False
    """Whether a queued run could start."""
    has_parts: bool = False
    """Whether processes that have ended were sending something."""
    has_lanes: bool = False
    """Whether something stands in line for a chat that nobody sends."""
    has_due: bool = False
    """Whether something is due."""
    has_readers: bool = False
    """Whether somebody reads what a run of another gateway streams."""


def look(tx: Tx, since_ms: int) -> Leftovers:
    """Look at all of it; a delivery is left when it has stood in line for `since_ms`."""
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
