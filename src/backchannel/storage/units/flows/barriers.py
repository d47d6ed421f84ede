"""Barriers: the children of one run wake their requester together."""

from __future__ import annotations

from msgspec.structs import replace

from backchannel.core.flows import barrier as rule
from backchannel.core.flows.barrier import Barrier, HeldPost, read_barrier, write_barrier
from backchannel.core.flows.spawn import from_child
from backchannel.core.flows.spawn_values import Spawn
from backchannel.core.keys import SessionKey
from backchannel.core.policy.limits import Lineage, may_go_on
from backchannel.storage.events import RunClosed, RunEntered
from backchannel.storage.tables import BARRIERS
from backchannel.storage.tx import Tx, required
from backchannel.storage.units import flows, messages, runs, sessions, timers
from backchannel.storage.units.flows import chains

BARRIER_TIMER = "barrier"


def add_child(tx: Tx, spawn: Spawn) -> None:
    """Add a child to a run's barrier, creating the barrier for the first."""
    known = _find(tx, spawn.barrier_id)
    if known is None:
        known = rule.barrier_for(spawn)
        key, body = str(known.requester), write_barrier(known)
        tx.insert(BARRIERS, id=known.id, session_key=key, state="open", body=body, created_at=tx.now)
    _write(tx, rule.add_child(known, spawn))


def child_settled(tx: Tx, spawn: Spawn, text: str | None) -> None:
    """Hold a child's post until it is time to wake the requester."""
    if spawn.rules.wakes and (barrier := _find(tx, spawn.barrier_id)) is not None:
        _change(tx, barrier, rule.child_settled(barrier, spawn, text))


def run_ended(tx: Tx, event: RunClosed) -> None:
    """Handle the end of a run that may have spawned."""
    if not event.has_barrier:
        return
    run_id = event.run.id
    barrier = _find(tx, run_id)
    if barrier is None or barrier.has_run_ended:
        return
    _change(tx, barrier, rule.run_ended(barrier))
    if barrier.rules.wake_after_ms is not None:
        timers.set_timer(tx, BARRIER_TIMER, run_id, tx.now + barrier.rules.wake_after_ms)


def deadline(tx: Tx, barrier_id: str) -> None:
    """Handle the end of the longest wait for a child."""
    barrier = _find(tx, barrier_id)
    if barrier is not None:
        _change(tx, barrier, rule.deadline_passed(barrier))


def stop(tx: Tx, key: str) -> None:
    """End the barriers of a stopped session: nothing wakes it, and held posts become notes."""
    for barrier in _of_session(tx, key):
        stopped = rule.stopped(barrier)
        for held in stopped.untold:
            _note(tx, stopped.requester, held)
        _change(tx, barrier, rule.told(stopped))


def tell_held(tx: Tx, event: RunEntered) -> None:
    """Append held posts to the transcript, ahead of the message of a starting run."""
    session = event.session
    for barrier in _of_session(tx, session.key):
        for held in barrier.untold:
            messages.append(tx, session.key, session.session_id, flows.make_note(tx, held.text, from_child(held.child)))
        _change(tx, barrier, rule.told(barrier))


def forget(tx: Tx, key: str) -> None:
    """Hold posts again after a reset: only the old transcript has them."""
    for barrier in _of_session(tx, key):
        _change(tx, barrier, rule.forgotten(barrier))


def _find(tx: Tx, barrier_id: str) -> Barrier | None:
    row = tx.one("SELECT body FROM barriers WHERE id = ?", barrier_id)
    return None if row is None else read_barrier(row[0])


def _of_session(tx: Tx, key: str) -> list[Barrier]:
    rows = tx.all("SELECT body FROM barriers WHERE session_key = ? AND state = 'open' ORDER BY created_at, id", key)
    return [read_barrier(body) for (body,) in rows]


def _change(tx: Tx, before: Barrier, barrier: Barrier) -> None:
    if barrier.opens:
        barrier = _open(tx, barrier)
    _write(tx, barrier)
    gained = len(barrier.untold) - len(before.untold)
    if gained:
        tx.run("UPDATE sessions SET held_posts = held_posts + ? WHERE key = ?", gained, str(barrier.requester))


def _write(tx: Tx, barrier: Barrier) -> None:
    state = "done" if barrier.is_over else "open"
    (stored,) = required(tx.one("SELECT body FROM barriers WHERE id = ?", barrier.id))
    tx.run("UPDATE barriers SET state = ?, body = ? WHERE id = ?", state, write_barrier(barrier, stored), barrier.id)


def _open(tx: Tx, barrier: Barrier) -> Barrier:
    """Wake the requester. If its chain is too long, the posts become notes."""
    if not _may_wake(tx, barrier):
        for held in barrier.untold:
            _note(tx, barrier.requester, held)
        return rule.give_up(barrier)
    barrier, run = rule.wake(barrier)
    wanted = replace(flows.request_of(run), id=runs.free_id(tx, run.id), deliver=run.reply_to is not None)
    runs.queue_step(tx, wanted)
    return barrier


def _may_wake(tx: Tx, barrier: Barrier) -> bool:
    requester = sessions.find(tx, str(barrier.requester))
    if requester is None or requester.archived_at is not None:
        return False
    lineage = Lineage(chain=barrier.chain, path=barrier.path, runs=chains.count_runs(tx, barrier.chain.id))
    return may_go_on(lineage, str(barrier.requester), barrier.rules).allowed


def _note(tx: Tx, key: SessionKey, held: HeldPost) -> None:
    flows.add_note(tx, key, held.text, from_child(held.child))
