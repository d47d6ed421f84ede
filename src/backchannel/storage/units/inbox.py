"""Notes: messages that start no run and wait for the session's next boundary."""

from __future__ import annotations

import heapq
from itertools import islice

from msgspec.structs import replace

from backchannel.core.facts import SessionChanged
from backchannel.core.keys import SessionKey
from backchannel.core.messages import (
    FIRST_PENDING,
    Message,
    PendingMessages,
    PendingPlace,
    decode_message,
    encode_message,
)
from backchannel.core.sessions import Session
from backchannel.storage.events import NotesFlushed
from backchannel.storage.tables import INBOX
from backchannel.storage.tx import QUEUED, Tx, required
from backchannel.storage.units import idempotency, messages, sessions, timers

NOTES_TIMER = "notes"
NOTES_PART = 128
"""How many notes enter a transcript in one commit, which takes some 10 ms."""


def add_note(tx: Tx, key: SessionKey, note: Message, expected_session_id: str | None = None) -> None:
    """Accept a note. On an idle session it enters the transcript in the same commit."""
    add_to(tx, sessions.ensure(tx, key, expected_session_id), note)


def add_once(
    tx: Tx,
    key: SessionKey,
    note: Message,
    idempotency_key: str | None = None,
    digest: str | None = None,
    *,
    expected_session_id: str | None = None,
) -> str:
    """Accept a note, once for each idempotency key; returns its id, or that of the first.

    Raises:
        IdempotencyConflict: the key stands for something else.
        SessionIdReplaced: the session has another transcript than the one expected, or none.
    """

    def add() -> str:
        add_note(tx, key, note, expected_session_id)
        return note.id

    return idempotency.once(tx, idempotency_key, digest, add)


def add_to(tx: Tx, session: Session, note: Message) -> None:
    """Accept a note for an existing session."""
    tx.insert(INBOX, id=note.id, session_key=session.key, body=encode_message(note).decode())
    tx.run("UPDATE sessions SET updated_at = ? WHERE key = ?", tx.now, session.key)
    if session.running_run is None and not session.flushing:
        flush(tx, session)
    tx.tell(SessionChanged(session.key, "note"))


def add_if_kept(tx: Tx, key: SessionKey, note: Message) -> bool:
    """Accept a note of a flow, unless its session is archived; returns whether it was accepted."""
    session = sessions.of_flow(tx, key)
    is_kept = session.archived_at is None and not session.deleting
    if is_kept:
        add_to(tx, session, note)
        tx.run("UPDATE sessions SET used_at = ? WHERE key = ?", tx.now, session.key)  # it asked for this itself
    return is_kept


def flush(tx: Tx, session: Session) -> bool:
    """Append waiting notes to the transcript; returns whether none is left.

    Of very many, the first enter in this commit and a timer is set for the rest. The lane waits meanwhile.
    """
    waiting = tx.all(
        "SELECT position, body FROM inbox WHERE session_key = ? ORDER BY position LIMIT ?", session.key, NOTES_PART + 1
    )
    part, is_done = waiting[:NOTES_PART], len(waiting) <= NOTES_PART
    for _, body in part:
        messages.append(tx, session.key, session.session_id, decode_message(body), body)
    if part:
        tx.run("DELETE FROM inbox WHERE session_key = ? AND position <= ?", session.key, part[-1][0])
    if session.flushing is is_done:
        sessions.update(tx, session.key, "flushing = ?", int(not is_done))
    if not is_done:
        timers.set_timer(tx, NOTES_TIMER, session.key, tx.now)
    return is_done


def due(tx: Tx, key: str) -> None:
    """Append the next notes. After the last one the lane is free."""
    session = sessions.find(tx, key)
    if session is None or not session.flushing or not flush(tx, session):
        return
    tx.happened(NotesFlushed(key))
    sessions.archive_when_idle(tx, sessions.required_session(tx, key))


_WAITING_RUNS = f"runs WHERE session_key = ? AND position > ? AND {QUEUED} AND message IS NOT NULL"
_WAITING_NOTES = "inbox WHERE session_key = ? AND position > ?"


def pending(tx: Tx, key: str, limit: int, after: PendingPlace = FIRST_PENDING) -> PendingMessages:
    """Read the accepted messages that are not in the transcript yet, in order, from a place on."""
    queued = tx.all(f"SELECT position, message FROM {_WAITING_RUNS} ORDER BY position LIMIT ?", key, after.run, limit)
    notes = tx.all(f"SELECT position, body FROM {_WAITING_NOTES} ORDER BY position LIMIT ?", key, after.note, limit)
    total = len(queued) + len(notes)
    if max(len(queued), len(notes)) == limit:
        (runs_waiting,) = required(tx.one(f"SELECT count(*) FROM {_WAITING_RUNS}", key, after.run))
        (notes_waiting,) = required(tx.one(f"SELECT count(*) FROM {_WAITING_NOTES}", key, after.note))
        total = int(runs_waiting) + int(notes_waiting)
    # Merged, not sorted: each list keeps its order, even if the clock was set back.
    both = (
        [(decode_message(body), name, position) for position, body in rows]
        for name, rows in (("run", queued), ("note", notes))
    )
    messages, places, place = [], [], after
    for message, name, position in islice(heapq.merge(*both, key=lambda each: each[0].timestamp), limit):
        place = replace(place, **{name: position})
        messages.append(message)
        places.append(place)
    return PendingMessages(messages, total, places)
