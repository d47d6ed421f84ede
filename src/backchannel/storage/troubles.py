"""What is wrong, as far as rows tell: counted for `status` and the metrics."""

from __future__ import annotations

import msgspec

from backchannel.storage.sending import IN_LINE
from backchannel.storage.tx import LIVE, Tx, required

PROBE_BYTES = 65_536
"""As much as accepting a short message takes: some 16 pages in the log of the database."""
_UNSETTLED = "state IN ('pending', 'sending', 'failed', 'uncertain')"
_FAILED = "state IN ('error', 'timeout')"  # in the words of their index


class Troubles(msgspec.Struct, frozen=True, kw_only=True):
    """What needs somebody's attention."""

    deliveries: dict[str, int]
    """How many are pending, sending, failed and uncertain."""
    waiting: dict[str, int]
    """How many wait to be sent over each channel, or are on their way."""
    runs_failed: int
    """How many ended as error or timeout since the time asked for."""
    runs_set_aside: int
    next_resume_at: int | None
    """When the first of them is tried again."""
    jobs: int
    """How many cron jobs there are."""
    jobs_stopped: list[str]
    """Cron jobs that have no next time where there should be one."""


def look(tx: Tx, since: int) -> Troubles:
    """Count what is wrong now, and the runs that failed since a time."""
    (runs_failed,) = required(tx.one(f"SELECT count(*) FROM runs WHERE {_FAILED} AND ended_at >= ?", since))
    aside = tx.one(f"SELECT count(*), min(resume_at) FROM runs WHERE {LIVE} AND resume_at IS NOT NULL")
    runs_set_aside, next_resume_at = required(aside)
    return Troubles(
        deliveries=dict(tx.all(f"SELECT state, count(*) FROM deliveries WHERE {_UNSETTLED} GROUP BY state")),
        waiting=dict(tx.all(f"SELECT channel, count(*) FROM deliveries WHERE {IN_LINE} GROUP BY channel")),
        runs_failed=runs_failed,
        runs_set_aside=runs_set_aside,
        next_resume_at=next_resume_at,
        jobs=required(tx.one("SELECT count(*) FROM cron_jobs"))[0],
        jobs_stopped=[id_ for (id_,) in tx.all("SELECT id FROM cron_jobs WHERE error IS NOT NULL ORDER BY id")],
    )


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier processes have accepted and not ended."""

    interrupted: int = 0
    queued: int = 0
    set_aside: int = 0

    @property
    def runs(self) -> int:
        return self.interrupted + self.queued + self.set_aside


def unfinished(tx: Tx) -> Unfinished:
    """Count the runs that go on."""
    kind = "CASE WHEN state = 'running' THEN 'interrupted' WHEN resume_at IS NULL THEN 'queued' ELSE 'set_aside' END"
    return Unfinished(**dict(tx.all(f"SELECT {kind}, count(*) FROM runs WHERE {LIVE} GROUP BY 1")))


def probe(tx: Tx, body: str) -> None:
    """Write as much as accepting a message takes; `body` must be another one each time, or nothing is written."""
    tx.run("INSERT INTO probe (id, body) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body", body)


def remember_default_model(tx: Tx, model: str, demo: str) -> str | None:
    """Note which model agents without one have at this start; returns the last that was not the demo, at an earlier."""
    tx.run("UPDATE processes SET default_model = ? WHERE number = ?", model, tx.number)
    row = tx.one(
        "SELECT default_model FROM processes WHERE default_model <> ? AND number < ? ORDER BY number DESC LIMIT 1",
        demo,
        tx.number,
    )
    return None if row is None else row[0]
