"""Run events: interruptions, resumptions, retries and set-asides.

Each row is written in the unit that causes the event. The steps of a run are not recorded here: its messages are that
record.
"""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.runs import Run
from backchannel.storage.tables import RUN_EVENTS
from backchannel.storage.tx import RUNNING, Tx, marks
from backchannel.wire.timeline import RunEvent, RunEventKind


def add(
    tx: Tx,
    run: Run,
    kind: RunEventKind,
    *,
    process: int | None = None,
    until_at: int | None = None,
    why: str | None = None,
) -> None:
    """Record an event of a run, in this unit's commit."""
    tx.insert(
        RUN_EVENTS,
        run_id=run.id,
        at=tx.now,
        kind=kind.value,
        step=run.step,
        process=process,
        until_at=until_at,
        body=why,
    )


def add_interruptions(tx: Tx, dead: Sequence[int]) -> None:
    """Record an interruption for each run that an ended process still held; `dead` are the processes that died.

    A stopped process has written when. For a dead one it is its last sign of life or the run's last commit, whichever
    is later. A second call adds nothing: a run may wait for its function through several starts, but was interrupted
    once.
    """
    last = "coalesce(r.ran_at, r.started_at)"
    ended = f"CASE WHEN p.ended_at IS NOT NULL THEN p.ended_at WHEN p.alive_at > {last} THEN p.alive_at ELSE {last} END"
    values = {
        "run_id": "r.id",
        "at": ended,
        "kind": "'interrupted'",
        "step": "r.step",
        "process": "p.number",
        "body": "CASE WHEN p.ended_at IS NULL THEN 'the process died' ELSE 'the gateway was stopped' END",
    }
    tx.run(
        f"INSERT INTO run_events ({', '.join(values)}) SELECT {', '.join(values.values())} "
        f"FROM runs r JOIN processes p ON p.number = r.fence WHERE r.{RUNNING} "
        f"AND (p.ended_at IS NOT NULL OR p.number IN ({marks(dead)})) AND NOT EXISTS "
        "(SELECT 1 FROM run_events e WHERE e.run_id = r.id AND e.kind = 'interrupted' AND e.process = p.number)",
        *dead,
    )


def of_run(tx: Tx, run_id: str, limit: int) -> list[RunEvent]:
    """List a run's newest `limit` events, oldest first."""
    rows = tx.all(f"{RUN_EVENTS.select} WHERE run_id = ? ORDER BY number DESC LIMIT ?", run_id, limit)
    return [RUN_EVENTS.read(row) for row in reversed(rows)]
