"""Growing replies: the text that a run streams, for readers on other gateways.

A gateway with readers writes until when they want a text. The gateway that works on the run writes the text. The table
is not logged: a lost row is asked for, and written, again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backchannel.core.facts import GrowthWanted, GrowthWritten
from backchannel.core.runs import Run
from backchannel.storage.tables import RUNS
from backchannel.storage.tx import ALIVE, RUNNING, Tx, marks


def want(tx: Tx, run_ids: Sequence[str], wanted_ms: int) -> list[GrowthWritten]:
    """Ask for the texts of runs, for a while; returns those that are there."""
    asked = tx.all(
        "INSERT INTO growing (run_id, wanted_until) "
        f"SELECT id, ? FROM runs WHERE id IN ({marks(run_ids)}) AND {RUNNING} "
        "ON CONFLICT (run_id) DO UPDATE SET wanted_until = excluded.wanted_until RETURNING run_id",
        tx.shared_now + wanted_ms,
        *run_ids,
    )
    for (run_id,) in asked:
        tx.tell(GrowthWanted(run_id))
    return list(find(tx, run_ids).values())


def find(tx: Tx, run_ids: Sequence[str]) -> Mapping[str, GrowthWritten]:
    """Read the streamed texts of runs, except those of a process that lost the run."""
    rows = tx.all(
        "SELECT g.run_id, r.step, g.body FROM growing g JOIN runs r ON r.id = g.run_id "
        f"WHERE g.run_id IN ({marks(run_ids)}) AND g.body IS NOT NULL AND g.fence = r.fence AND r.{RUNNING}",
        *run_ids,
    )
    return {row[0]: GrowthWritten(*row) for row in rows}


def write(tx: Tx, grown: Mapping[str, str]) -> list[str]:
    """Write the streamed texts of runs; returns the runs that nobody reads any more."""
    unwanted: list[str] = []
    for run_id, body in grown.items():
        changed = tx.one(
            "UPDATE growing SET fence = ?, body = ? WHERE run_id = ? AND wanted_until > ? RETURNING run_id",
            tx.number,
            body,
            run_id,
            tx.shared_now,
        )
        if changed:
            tx.tell(GrowthWritten(run_id, 0, body))
        else:
            unwanted.append(run_id)
    return unwanted


def forget(tx: Tx, run_ids: Sequence[str]) -> None:
    """Remove the rows of runs that have ended, or that nobody reads."""
    tx.run(f"DELETE FROM growing WHERE run_id IN ({marks(run_ids)})", *run_ids)


READ = "SELECT 1 FROM growing"


def wanted(tx: Tx, run_ids: Sequence[str]) -> list[str]:
    """List the runs that somebody on another gateway reads."""
    rows = tx.all(f"SELECT run_id FROM growing WHERE run_id IN ({marks(run_ids)})", *run_ids)
    return [run_id for (run_id,) in rows]


def forget_unwanted(tx: Tx) -> None:
    """Remove the rows of dead processes."""
    tx.run("DELETE FROM growing WHERE wanted_until < ?", tx.shared_now)


def running_elsewhere(tx: Tx, limit: int) -> list[Run]:
    """List runs that other processes work on."""
    rows = tx.all(f"{RUNS.select} WHERE {RUNNING} AND fence IN ({ALIVE}) AND fence <> ? LIMIT ?", tx.number, limit)
    return [RUNS.read(row) for row in rows]
