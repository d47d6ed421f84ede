"""Recovery after a crash: runs are resumed, set aside or retried.

A run that keeps killing its process is set aside in three commits. The start that counts the crash writes until when.
The takeover of the run moves it out of its lane. A timer queues it again. From then on it is a queued run like any
other, but it runs alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from backchannel.core.facts import SessionChanged
from backchannel.core.runs import (
    CRASHES_UNTIL_GIVEN_UP,
    CRASHES_UNTIL_SUSPECT,
    Fence,
    Outcome,
    Run,
    RunInterrupted,
    RunStarted,
    RunState,
    set_aside_ms,
)
from backchannel.errors import InvalidRequest
from backchannel.storage.events import RunRetried
from backchannel.storage.tables import FUNCTION_AGENTS, PROCESSES
from backchannel.storage.tx import ALIVE, LIVE, RUNNING, Tx, marks, required
from backchannel.storage.units import inbox, model_waits, run_events, runs, sessions, steps, timers
from backchannel.storage.units.flows import exchanges
from backchannel.storage.units.jobs import checks
from backchannel.storage.units.money import calls, reserving
from backchannel.storage.units.runs import Assignments
from backchannel.wire.timeline import RunEventKind

# A run that only waited for other sessions, or for a person, when its process died. A function agent runs from its
# beginning: a wait before an earlier crash proves nothing, because it may have died on the way back to the wait.
_OPEN_CALLS = (
    "SELECT 1 FROM tool_calls c LEFT JOIN waits w ON w.call_id = c.id AND (c.step >= 0 OR w.fence = runs.fence) "
    "LEFT JOIN approvals a ON a.call_id = c.id AND a.state = 'pending' AND (c.step >= 0 OR a.fence = runs.fence) "
    "WHERE c.run_id = runs.id AND c.state <> 'done' AND coalesce(w.call_id, a.call_id)"
)
_ONLY_WAITS = f"EXISTS ({_OPEN_CALLS} IS NOT NULL) AND NOT EXISTS ({_OPEN_CALLS} IS NULL)"

_ASKS_OWNERS = "coalesce(reserved, '') LIKE '%\"asks\":%'"
"""A run that waits for more money."""


def enter(tx: Tx) -> int:
    """Register this process, and count a crash for every run of a dead one; returns our number."""
    (number,) = required(tx.insert_one(PROCESSES, "RETURNING number", started_at=tx.now))
    end_dead(tx, [other for (other,) in tx.all(f"{ALIVE} AND number < ?", number)])
    return int(number)


def end_dead(tx: Tx, dead: Sequence[int]) -> None:
    """Record that processes have died, and count a crash for every run that they held.

    A run whose row another program has locked is skipped, so that the others can continue. It continues when the lock
    is gone, without a counted crash.
    """
    run_events.add_interruptions(tx, dead)
    calls.lose_holds(tx, dead)
    held = f"SELECT id FROM runs WHERE {RUNNING} AND fence IN ({marks(dead)}){tx.free_rows}"
    _count_lost_time(tx, held, dead)
    # Only runs that the dead process had taken up count: a waiting run was not the cause.
    counted = tx.all(
        f"UPDATE runs SET crashes = crashes + 1 WHERE id IN ({held}) AND NOT ({_ONLY_WAITS}) AND NOT ({_ASKS_OWNERS}) "
        "RETURNING id, crashes",
        *dead,
    )
    for run_id, crashes in counted:
        # Written with the count: nothing else sets it aside before another crash.
        if (wait_ms := set_aside_ms(crashes)) is not None:
            tx.run("UPDATE runs SET resume_at = ? WHERE id = ?", tx.now + wait_ms, run_id)
    checks.end_dead(tx, dead)
    tx.run(f"UPDATE processes SET ended_at = ? WHERE number IN ({marks(dead)})", tx.now, *dead)


def _count_lost_time(tx: Tx, held: str, dead: Sequence[int]) -> None:
    """Add to each run the time between its last commit and the last sign of life of its process.

    That time was lost, so it does not count for the run's limit.
    """
    since = "p.alive_at - coalesce(runs.ran_at, runs.started_at)"
    lost = f"SELECT CASE WHEN {since} > 0 THEN {since} ELSE 0 END FROM processes p WHERE p.number = runs.fence"
    tx.run(
        f"UPDATE runs SET ran_ms = ran_ms + ({lost}), excused_ms = excused_ms + ({lost}) WHERE id IN ({held})", *dead
    )


def leave(tx: Tx) -> None:
    """Record a clean shutdown: no crash is counted for the runs that it interrupts."""
    tx.run("UPDATE processes SET ended_at = ? WHERE number = ?", tx.now, tx.number)
    tx.run("DELETE FROM duties WHERE process = ?", tx.number)


def sign_of_life(tx: Tx) -> None:
    """Record that this process is alive."""
    tx.run("UPDATE processes SET alive_at = ? WHERE number = ?", tx.now, tx.number)


INTERRUPTED_RUNS = f"SELECT 1 FROM runs WHERE {RUNNING} AND fence NOT IN ({ALIVE})"
FUNCTIONS = "SELECT id FROM function_agents ORDER BY id"


def interrupted(tx: Tx) -> list[RunInterrupted]:
    """List the runs to resume, those without a crash first, without those of living processes."""
    rows = tx.all(
        "SELECT id, session_key, crashes, "
        "crashes >= ? AND crashes < ? AND resume_at IS NULL AND abort_requested = 0 "
        f"FROM runs WHERE {RUNNING} AND fence NOT IN ({ALIVE}) ORDER BY crashes, position",
        CRASHES_UNTIL_SUSPECT,
        CRASHES_UNTIL_GIVEN_UP,
    )
    return [RunInterrupted(id_, key, crashes, bool(is_suspect)) for id_, key, crashes, is_suspect in rows]


def resume(tx: Tx, run_id: str) -> RunStarted | None:
    """Take over an interrupted run. It ends if it was asked to stop, and is set aside if it keeps crashing."""
    run = runs.need(tx, run_id)
    if run.state is not RunState.RUNNING or _is_held_by_another(tx, run):
        return None
    if run.reserved is not None:
        run = _without_call(tx, run)
    if run.resume_at is not None and not run.abort_requested:
        longest_ms = set_aside_ms(run.crashes) or 0  # the clock may have been set back since the time was written
        _set_aside(tx, run, min(run.resume_at, tx.now + longest_ms))
        return None
    held = runs.update(tx, run_id, fence=tx.number, ran_at=tx.now)
    fence = Fence.of(run, tx.number)
    outcome = _final(run)
    if outcome is None:
        run_events.add(tx, run, RunEventKind.RESUMED, process=tx.number)
        return RunStarted(held, fence, sessions.required_session(tx, run.session_key))
    steps.finish(tx, fence, outcome, reply=None, at_step=run.step, ran_ms=run.ran_ms)
    return None


def _without_call(tx: Tx, run: Run) -> Run:
    """Count the call whole that was under way when the process ended."""
    reserved = reserving.end(tx, run, is_billed=True)
    return run if reserved == run.reserved else runs.update(tx, run.id, reserved=reserved)


def _is_held_by_another(tx: Tx, run: Run) -> bool:
    return run.fence != tx.number and tx.one(f"{ALIVE} AND number = ?", run.fence) is not None


def _final(run: Run) -> Outcome | None:
    if run.abort_requested:
        return runs.ABORTED
    return _given_up(run) if run.crashes >= CRASHES_UNTIL_GIVEN_UP else None


def _given_up(run: Run) -> Outcome:
    return Outcome(
        state=RunState.ERROR,
        error_code="crash_loop",
        error=f"the process died {run.crashes} times in step {run.step + 1} of this run, the last time an hour "
        f"after the one before; `backchannel runs retry {run.id}` starts it again",
    )


def _set_aside(tx: Tx, run: Run, until: int) -> None:
    """Take a run out of its lane for a while, without ending it: the queue behind it continues."""
    steps.close_open(tx, run, None)
    why = f"the process died {run.crashes} times in step {run.step + 1}"
    run_events.add(tx, run, RunEventKind.SET_ASIDE, until_at=until, why=why)
    aside = runs.update(tx, run.id, state=RunState.QUEUED.value, resume_at=until, waits_for=None)
    if runs.free_lane(tx, aside, Assignments("set_aside = set_aside + 1, ", ())).has_notes:
        inbox.flush(tx, sessions.required_session(tx, run.session_key))
    timers.set_timer(tx, timers.RESUME_TIMER, run.id, until)
    tx.tell(SessionChanged(run.session_key, "run"))


def move(tx: Tx, run_id: str, until: int) -> None:
    """Change when a set-aside run comes back."""
    timers.set_timer(tx, timers.RESUME_TIMER, run_id, until)
    run = runs.find(tx, run_id)
    if run is not None and (run.is_set_aside or run.waits_for_model):
        runs.update(tx, run_id, resume_at=until)
        tx.tell(SessionChanged(run.session_key, "run"))


def due(tx: Tx, run_id: str) -> None:
    """Queue a set-aside run whose time has come. One that waits for a model goes on in its lane."""
    run = runs.find(tx, run_id)
    if run is not None and run.waits_for_model:
        model_waits.move_on(tx, run)
    elif run is not None and run.is_set_aside:
        _put_back(tx, run)


def _put_back(tx: Tx, run: Run, **changed: Any) -> Run:
    tx.run(
        "UPDATE sessions SET set_aside = set_aside - 1, queued = queued + 1, updated_at = ? WHERE key = ?",
        tx.now,
        run.session_key,
    )
    tx.tell(SessionChanged(run.session_key, "run"))
    return runs.update(tx, run.id, resume_at=None, **changed)


def retry(tx: Tx, run_id: str) -> Run:
    """Queue a run again that failed, was stopped or is set aside. It continues after its last committed step."""
    run = runs.need(tx, run_id)
    if run.waits_for_model:
        run_events.add(tx, run, RunEventKind.RETRIED)
        return model_waits.move_on(tx, run, insists=True)
    if run.is_set_aside:
        timers.clear_timer(tx, timers.RESUME_TIMER, run_id)
        run_events.add(tx, run, RunEventKind.RETRIED)
        return _put_back(tx, run, crashes=0, excused_ms=run.ran_ms)
    if run.state in (RunState.OK, RunState.QUEUED, RunState.RUNNING):
        raise InvalidRequest(
            f"run {run_id!r} is {run.state}: only one that ended as error, timeout or aborted can be retried",
            runId=run_id,
        )
    sessions.check_kept(sessions.need(tx, run.session_key))
    exchanges.check_retry(tx, run)
    run_events.add(tx, run, RunEventKind.RETRIED, why=run.error)
    tx.run("UPDATE sessions SET queued = queued + 1, updated_at = ? WHERE key = ?", tx.now, run.session_key)
    tx.tell(SessionChanged(run.session_key, "run"))
    queued = runs.update(
        tx,
        run_id,
        state=RunState.QUEUED.value,
        ended_at=None,
        abort_requested=0,
        crashes=0,
        excused_ms=run.ran_ms,
        error=None,
        error_code=None,
        resume_at=None,
        waits_for=None,
        reply=None,
    )
    tx.happened(RunRetried(queued))
    return queued


def remember_default_model(tx: Tx, model: str, demo: str) -> str | None:
    """Record the default model of this start; returns that of the last start whose model was not the demo."""
    tx.run("UPDATE processes SET default_model = ? WHERE number = ?", model, tx.number)
    earlier = "default_model <> ? AND number < ? ORDER BY number DESC LIMIT 1"
    row = tx.one(f"SELECT default_model FROM processes WHERE {earlier}", demo, tx.number)
    return None if row is None else row[0]


# Function agents: the registered ones, and the runs that wait for them.


def remember_function(tx: Tx, agent_id: str) -> None:
    """Record that a program has registered this agent as a function."""
    tx.insert(FUNCTION_AGENTS, FUNCTION_AGENTS.or_skip, id=agent_id, since=tx.now)


def forget_function(tx: Tx, agent_id: str) -> bool:
    """Remove an agent from the registered functions; returns whether it was one."""
    return tx.one("DELETE FROM function_agents WHERE id = ? RETURNING id", agent_id) is not None


def function_agents(tx: Tx) -> list[str]:
    """List the agents that programs have registered as functions."""
    return [agent_id for (agent_id,) in tx.all(FUNCTIONS)]


def runs_without_agent(tx: Tx, known: Collection[str]) -> dict[str, int]:
    """Count the live runs of unknown agents, by agent."""
    rows = tx.all(
        "SELECT s.agent_id, count(*) FROM runs r JOIN sessions s ON s.key = r.session_key "
        f"WHERE r.{LIVE} GROUP BY 1 ORDER BY 1"
    )
    return {agent_id: count for agent_id, count in rows if agent_id not in known}


def runs_waiting_for_functions(tx: Tx, here: Collection[str]) -> dict[str, int]:
    """Count the runs that wait for a function, by agent, except functions that are `here`."""
    rows = tx.all(
        "SELECT s.agent_id, count(*) FROM runs r JOIN sessions s ON s.key = r.session_key "
        f"WHERE r.{LIVE} AND s.agent_id IN (SELECT id FROM function_agents) GROUP BY 1 ORDER BY 1"
    )
    return {agent_id: count for agent_id, count in rows if agent_id not in here}
