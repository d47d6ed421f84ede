"""Problems that rows show, counted for `status` and the metrics."""

from __future__ import annotations

from backchannel.core.records import Troubles, UnfinishedWork
from backchannel.storage.tx import LIVE, Tx, required
from backchannel.storage.units.jobs import checks
from backchannel.storage.units.lines import IN_LINE

_UNSETTLED = "state IN ('pending', 'sending', 'failed', 'uncertain')"
_FAILED = "state IN ('error', 'timeout')"  # in the words of their index


def look(tx: Tx, since: int) -> Troubles:
    """Count the problems of now, and the runs that failed since a time."""
    (runs_failed,) = required(tx.one(f"SELECT count(*) FROM runs WHERE {_FAILED} AND ended_at >= ?", since))
    aside = tx.one(
        f"SELECT count(*), min(resume_at) FROM runs WHERE {LIVE} AND resume_at IS NOT NULL AND waits_on IS NULL"
    )
    runs_set_aside, next_resume_at = required(aside)
    return Troubles(
        deliveries=dict(tx.all(f"SELECT state, count(*) FROM deliveries WHERE {_UNSETTLED} GROUP BY state")),
        waiting=dict(tx.all(f"SELECT channel, count(*) FROM deliveries WHERE {IN_LINE} GROUP BY channel")),
        runs_failed=runs_failed,
        runs_set_aside=runs_set_aside,
        next_resume_at=next_resume_at,
        runs_waiting=required(tx.one("SELECT count(*) FROM runs WHERE waits_on IS NOT NULL"))[0],
        jobs=required(tx.one("SELECT count(*) FROM cron_jobs"))[0],
        jobs_stopped=[id_ for (id_,) in tx.all("SELECT id FROM cron_jobs WHERE error IS NOT NULL ORDER BY id")],
        jobs_failing=checks.faults(tx),
    )


def delivery_counts(tx: Tx) -> dict[str, dict[str, int]]:
    """Count the open and failed deliveries of each channel, by state."""
    counts: dict[str, dict[str, int]] = {}
    for channel, state, count in tx.all(
        f"SELECT channel, state, count(*) FROM deliveries WHERE {_UNSETTLED} AND channel IS NOT NULL GROUP BY 1, 2"
    ):
        counts.setdefault(channel, {})[state] = count
    return counts


def unfinished(tx: Tx) -> UnfinishedWork:
    """Count the unfinished runs."""
    rows = tx.all(
        "SELECT (SELECT f.id FROM sessions s JOIN function_agents f ON f.id = s.agent_id WHERE s.key = r.session_key), "
        "CASE WHEN resume_at IS NOT NULL AND waits_on IS NULL THEN 'set_aside' "
        "WHEN state = 'running' THEN 'interrupted' ELSE 'queued' END, "
        f"count(*), min(CASE WHEN waits_on IS NULL THEN resume_at END) FROM runs r WHERE {LIVE} GROUP BY 1, 2"
    )
    of_functions: dict[str, int] = {}
    for function, _, count, _ in rows:
        if function is not None:
            of_functions[function] = of_functions.get(function, 0) + count
    others = [row for row in rows if row[0] is None]
    return UnfinishedWork(
        **{kind: count for _, kind, count, _ in others},
        resume_at=min((at for *_, at in others if at is not None), default=None),
        of_functions=of_functions,
    )
