"""Events of runs: interruptions, resumptions, retries and set-asides, one row each.

Each row is written in the unit that causes the event, so that an event is recorded exactly when it happened. The steps
of a run are not recorded here: its messages in the transcript are that record already.
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
    """Record that something happens to a run now; it goes into the commit of this unit."""
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
    """Record an interruption for each run that a process still held when it ended; `dead` are those that died.

    A process that was stopped has written when; of one that died, the later of its last sign of life and the run's last
    commit is taken. Calling it again adds nothing: a run may wait for its function through several starts of the
    gateway, and was interrupted once.
    """
    last = "coalesce(r.ran_at, r.started_at)"
    tx.run(
        f"INSERT INTO run_events ({RUN_EVENTS.fields}) "
        f"SELECT r.id, CASE WHEN p.ended_at IS NOT NULL THEN p.ended_at WHEN p.alive_at > {last} THEN p.alive_at "
        f"ELSE {last} END, 'interrupted', r.step, p.number, NULL, "
        "CASE WHEN p.ended_at IS NULL THEN 'the process died' ELSE 'the gateway was stopped' END "
        f"FROM runs r JOIN processes p ON p.number = r.fence WHERE r.{RUNNING} "
        f"AND (p.ended_at IS NOT NULL OR p.number IN ({marks(dead)})) AND NOT EXISTS "
        "(SELECT 1 FROM run_events e WHERE e.run_id = r.id AND e.kind = 'interrupted' AND e.process = p.number)",
        *dead,
    )


def of_run(tx: Tx, run_id: str, limit: int) -> list[RunEvent]:
    """List a run's events, oldest first; if there are more than `limit`, the newest of them."""
    rows = tx.all(f"{RUN_EVENTS.select} WHERE run_id = ? ORDER BY number DESC LIMIT ?", run_id, limit)
    return [RUN_EVENTS.read(row) for row in reversed(rows)]
