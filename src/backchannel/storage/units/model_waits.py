"""Runs that wait for a model, in their lanes.

`core/models/model_wait.py` decides. A waiting run is counted in `sessions.queued`, and is the first of its lane, which
starts nothing meanwhile. It has no open tool call. So recovery, takeover and abort treat it as any queued run.
"""

from __future__ import annotations

from msgspec.structs import replace

from backchannel.core.facts import SessionChanged
from backchannel.core.models.model_wait import (
    RELEASED_AT_ONCE,
    WaitAsked,
    next_wait,
    read_wait,
    required_wait,
    write_wait,
)
from backchannel.core.runs import NOBODY, Fence, Run, RunState
from backchannel.storage.events import LaneMoved, RunWaits
from backchannel.storage.tables import RUNS
from backchannel.storage.tx import LIVE, Tx
from backchannel.storage.units import inbox, run_events, runs, sessions, timers
from backchannel.storage.units.money import reserving
from backchannel.storage.units.runs import Assignments
from backchannel.wire.timeline import RunEventKind

_WAITING = f"{RUNS.select} WHERE {LIVE} AND waits_on IS NOT NULL"


def wait(tx: Tx, fence: Fence, asked: WaitAsked, ran_ms: int) -> Run | None:
    """Set a run aside until a model may answer; None if it has waited long enough.

    Raises: FenceLost, StopRequested: as `runs.unstopped`.
    """
    run = runs.unstopped(tx, fence)
    decided = next_wait(asked, read_wait(run), tx.now)
    if decided is None:
        return None
    waiting, until = decided
    run_events.add(tx, run, RunEventKind.WAITS, until_at=until, why=f"{waiting.model}: {waiting.error}")
    aside = runs.update(
        tx,
        run.id,
        state=RunState.QUEUED.value,
        fence=NOBODY,
        resume_at=until,
        waits_for=write_wait(waiting),
        waits_on=asked.provider,
        ran_ms=ran_ms,
        ran_at=tx.now,
        crashes=0,
        reserved=reserving.end(tx, run, is_billed=asked.is_billed),
    )
    if runs.free_lane(tx, aside, Assignments("queued = queued + 1, ", ())).has_notes:
        inbox.flush(tx, sessions.required_session(tx, run.session_key))
    timers.set_timer(tx, timers.RESUME_TIMER, run.id, until)
    tx.happened(RunWaits(aside))
    tx.tell(SessionChanged(run.session_key, "run"))
    return aside


def move_on(tx: Tx, run: Run, *, insists: bool = False) -> Run:
    """Let a waiting run be tried again now. With `insists` it is a person who wants that."""
    waiting = replace(required_wait(run), insists=insists)
    timers.clear_timer(tx, timers.RESUME_TIMER, run.id)
    tx.tell(SessionChanged(run.session_key, "run"))
    return runs.update(tx, run.id, resume_at=None, waits_on=None, waits_for=write_wait(waiting))


def lane_moved(tx: Tx, event: LaneMoved) -> None:
    """Let the waiting run of a session go on: it has another model, or another transcript."""
    while (run := first_of(tx, event.key)) is not None:
        move_on(tx, run, insists=True)


def first_of(tx: Tx, key: str) -> Run | None:
    """Find the run of a session that waits for a model."""
    row = tx.one(f"{_WAITING} AND session_key = ? ORDER BY position LIMIT 1", key)
    return None if row is None else RUNS.read(row)


def release(tx: Tx, provider: str) -> bool:
    """Let the oldest runs go on that wait for a provider, which has answered; returns whether others still wait."""
    rows = tx.all(f"{_WAITING} AND waits_on = ? ORDER BY position LIMIT ?", provider, RELEASED_AT_ONCE + 1)
    for row in rows[:RELEASED_AT_ONCE]:
        move_on(tx, RUNS.read(row))
    return len(rows) > RELEASED_AT_ONCE


def awaited_providers(tx: Tx) -> list[str]:
    """Name the providers that runs wait for."""
    return [name for (name,) in tx.all("SELECT DISTINCT waits_on FROM runs WHERE waits_on IS NOT NULL")]
