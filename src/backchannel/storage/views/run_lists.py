"""Lists and counts of runs."""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.runs import Run, RunKind, RunState
from backchannel.storage.tables import RUNS
from backchannel.storage.tx import LIVE, QUEUED, READY, Tx, filters, marks, required


def page(
    tx: Tx,
    *,
    session_key: str | None = None,
    states: Sequence[RunState] = (),
    kind: RunKind | None = None,
    limit: int,
    before: int | None = None,
) -> list[Run]:
    """List runs, newest first; `before` is the position of the last one seen."""
    where, values = filters(("session_key = ?", session_key), ("kind = ?", kind), ("position < ?", before))
    if states:
        where += f" AND state IN ({marks(states)})"
        values += [state.value for state in states]
    rows = tx.all(f"{RUNS.select} WHERE {where} ORDER BY position DESC LIMIT ?", *values, limit)
    return [RUNS.read(row) for row in rows]


def sessions_with_queue(tx: Tx) -> list[str]:
    """List the sessions with a queued run, in the order of their first one."""
    rows = tx.all(f"SELECT session_key, min(position) FROM runs WHERE {READY} GROUP BY 1 ORDER BY 2")
    return [key for key, _ in rows]


def next_tried(tx: Tx, key: str) -> Run | None:
    """Return the run of a session that is tried again next: it is set aside, or waits for a model."""
    row = tx.one(
        f"{RUNS.select} WHERE session_key = ? AND {QUEUED} AND resume_at IS NOT NULL ORDER BY resume_at LIMIT 1", key
    )
    return None if row is None else RUNS.read(row)


def count_of(tx: Tx, keys: Sequence[str], states: Sequence[RunState], kind: RunKind) -> int:
    """Count the runs of some sessions by kind and states."""
    counted = f"SELECT count(*) FROM runs WHERE session_key = ? AND kind = ? AND state IN ({marks(states)})"
    found = (required(tx.one(counted, key, kind.value, *[state.value for state in states])) for key in keys)
    return sum(count for (count,) in found)


def counts(tx: Tx) -> dict[str, int]:
    """Count the live runs by state."""
    rows = tx.all(f"SELECT state, count(*) FROM runs WHERE {LIVE} GROUP BY 1")
    return dict(rows)
