"""Open work of a session as lines, for the entry of a summary.

It reads the rows of one session only. Each read has a limit, so that a busy session costs no more than a quiet one.
"""

from __future__ import annotations

from collections.abc import Iterator

from backchannel.core.compaction.entry import ChildResult, OpenWork
from backchannel.core.compaction.telling import person_of
from backchannel.core.flows.exchange_values import read_exchange
from backchannel.core.flows.spawn_values import read_spawn
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, decode_message
from backchannel.core.sessions import Session
from backchannel.core.text import one_line
from backchannel.storage.tables import APPROVALS, CRON_JOBS, RUNS
from backchannel.storage.tx import QUEUED, Tx
from backchannel.storage.units import sessions
from backchannel.storage.units.jobs import cron

_MOST_LISTED = 20
"""How many things of each kind are listed, the newest first."""
_MOST_JOBS = 200
_PEOPLE_READ = 200
"""How many messages are searched for people's last words."""
_WORDS = 120


def open_work(tx: Tx, key: str, session_id: str, before: int = 0) -> OpenWork:
    """Read what is open in a session, and the results of its sub-agents since its transcript began.

    With it come people's newest messages `before` a place of the transcript.
    """
    session = sessions.find(tx, key)
    if session is None:
        return OpenWork()
    lines = [
        *_approvals(tx, key),
        *_sends(tx, key),
        *_asked(tx, key),
        *_children(tx, key),
        *_owed(tx, key),
        *_jobs(tx, session),
    ]
    people = _people(tx, session_id, before)
    return OpenWork(lines=tuple(lines), results=tuple(_results(tx, key, session_id)), people=tuple(people))


def _people(tx: Tx, session_id: str, before: int) -> Iterator[Message]:
    rows = tx.all(
        "SELECT body FROM messages WHERE session_id = ? AND seq < ? AND role = 'user' ORDER BY seq DESC LIMIT ?",
        session_id,
        before,
        _PEOPLE_READ,
    )
    return (decode_message(body) for (body,) in rows)


def _approvals(tx: Tx, key: str) -> Iterator[str]:
    rows = tx.all(
        f"{APPROVALS.select} WHERE session_key = ? AND state = 'pending' ORDER BY number DESC LIMIT ?",
        key,
        _MOST_LISTED,
    )
    for approval in map(APPROVALS.read, rows):
        words = one_line(approval.arguments, _WORDS)
        yield f"Approval {approval.id}: the call of {approval.tool} {words} waits for a person's answer."


def _sends(tx: Tx, key: str) -> Iterator[str]:
    rows = tx.all(
        "SELECT body, delivery_id FROM exchanges WHERE requester_key = ? AND state <> 'done' "
        "ORDER BY created_at DESC LIMIT ?",
        key,
        _MOST_LISTED,
    )
    for body, delivery_id in rows:
        exchange = read_exchange(body)
        words = one_line(exchange.request, _WORDS)
        yield f"Sent to {exchange.target.name}: {words!r} ({exchange.state}; {_receipt(exchange.id, delivery_id)})."


def _asked(tx: Tx, key: str) -> Iterator[str]:
    rows = tx.all(
        "SELECT body FROM exchanges WHERE target_key = ? AND state <> 'done' ORDER BY created_at DESC LIMIT ?",
        key,
        _MOST_LISTED,
    )
    for (body,) in rows:
        exchange = read_exchange(body)
        who = "a program" if exchange.requester is None else exchange.requester.name
        yield f"Asked by {who}: {one_line(exchange.request, _WORDS)!r} ({exchange.state}; exchange {exchange.id})."


def _receipt(exchange_id: str, delivery_id: str | None) -> str:
    return f"exchange {exchange_id}" if delivery_id is None else f"exchange {exchange_id}, receipt {delivery_id}"


def _children(tx: Tx, key: str) -> Iterator[str]:
    rows = tx.all(
        "SELECT body, delivery_id FROM spawns WHERE requester_key = ? AND state <> 'done' "
        "ORDER BY created_at DESC LIMIT ?",
        key,
        _MOST_LISTED,
    )
    for body, delivery_id in rows:
        spawn = read_spawn(body)
        label = f" ({one_line(spawn.label)})" if spawn.label else ""
        what = "works on" if spawn.status is None else "reports on"
        words = one_line(spawn.task, _WORDS)
        yield f"Sub-agent {tx.scheme.shown(str(spawn.child))}{label} {what} {words!r} (receipt {delivery_id})."


def _owed(tx: Tx, key: str) -> Iterator[str]:
    rows = tx.all(f"{RUNS.select} WHERE session_key = ? AND {QUEUED} ORDER BY position LIMIT ?", key, _MOST_LISTED)
    for run in map(RUNS.read, rows):
        body = run.message
        if body is None:
            row = tx.one("SELECT body FROM messages WHERE id = ?", run.message_id)
            body = None if row is None else row[0]
        if body is not None:
            message = decode_message(body)
            how = "set aside, and tried again later" if run.is_set_aside else "in the queue"
            words = one_line(message.text, _WORDS)
            yield f"{person_of(message)} waits for an answer to {words!r} (run {run.id}, {how})."


def _jobs(tx: Tx, session: Session) -> Iterator[str]:
    """List the jobs of the session's agent that run in it, or that post where it does."""
    address = session.address
    rows = tx.all(f"{CRON_JOBS.select} WHERE next_at IS NOT NULL ORDER BY next_at LIMIT ?", _MOST_JOBS)
    count = 0
    for stored in map(CRON_JOBS.read, rows):
        job, to = stored.job, stored.job.deliver
        posts_here = to is not None and address is not None and (to.channel, to.to) == (address.channel, address.to)
        agent = job.agent_id or tx.scheme.default_agent
        is_here = cron.key_of(job, tx.scheme) == SessionKey.stored(session.key)
        if agent == session.agent_id and (posts_here or is_here) and count < _MOST_LISTED:
            count += 1
            yield f"Job {stored.id} ({job.schedule}): {one_line(job.message, _WORDS)!r}."


def _results(tx: Tx, key: str, session_id: str) -> Iterator[ChildResult]:
    rows = tx.all(
        "SELECT s.body, d.text FROM sessions c JOIN spawns s ON s.child_key = c.key "
        "JOIN deliveries d ON d.id = s.delivery_id WHERE c.spawned_by = ? AND s.state = 'done' AND d.text IS NOT NULL "
        "AND s.created_at >= (SELECT created_at FROM session_ids WHERE session_id = ?) "
        "ORDER BY s.updated_at DESC LIMIT ?",
        key,
        session_id,
        _MOST_LISTED,
    )
    for body, text in rows:
        spawn = read_spawn(body)
        yield ChildResult(tx.scheme.shown(str(spawn.child)), spawn.label, text)
