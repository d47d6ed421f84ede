"""Imports: sessions from elsewhere, in batches of messages.

The last batch writes the session itself. Until then the transcript has no session row, so half a session is never
listed. A repeated import, after a crash or on purpose, offers all messages again in order. Stored ones are found by id
and place, and only what follows is written. One side must be the beginning of the other. If the two differ, both have
gone on, and nothing is written.

If another session here has its key, a session is imported under a key made of its session id.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from backchannel.core.facts import SessionChanged
from backchannel.core.headers import new_mark
from backchannel.core.keys import Kind
from backchannel.core.messages import Message, encode_message
from backchannel.core.sessions import Session
from backchannel.openclaw.entries import imported_key
from backchannel.storage.tables import SESSION_IDS, SESSIONS
from backchannel.storage.tx import Tx, required
from backchannel.storage.units import compactions, messages, sessions

IMPORTING = "importing"
"""The end reason of a transcript whose session is not complete."""


class ImportState(StrEnum):
    """How much of an offered session is here."""

    NEW = "new"
    HALF = "half"
    HERE = "here"


class MessageOffered(msgspec.Struct, frozen=True):
    """An offered message, and the ids it may get: the first that no other message has."""

    line: int
    ids: tuple[str, ...]
    message: Message


class Batch(msgspec.Struct, frozen=True):
    """Some messages of a transcript in order; `place` is the number of the first."""

    place: int
    offered: Sequence[MessageOffered]
    is_last: bool


class TakenBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a batch."""

    state: ImportState
    key: str
    """The key of the imported session."""
    place: int = 0
    """The number of the message that comes next."""
    written: int = 0
    without_id: tuple[int, ...] = ()
    """Lines whose messages could not be distinguished from others."""
    refusal: str | None = None
    """Why nothing of the session was taken."""
    starts_over: bool = False
    """Half of another version was here. It is removed now: offer all messages again."""
    label_holder: str | None = None
    """The session that has the label already."""


def take(tx: Tx, session: Session, batch: Batch) -> TakenBatch:
    """Write the missing messages of a batch, and with the last batch the session."""
    session = _with_free_key(tx, session)
    here = _look(tx, session)
    if here.state is ImportState.NEW and here.refusal is None:
        _begin(tx, session)
    taken = _place(tx, session, batch, here, writes=True)
    if taken.starts_over:
        _clear(tx, session)
    if taken.refusal is not None or taken.starts_over or not batch.is_last:
        return taken
    if here.state is ImportState.HERE:
        _touch(tx, session, taken.written)
        return taken
    return msgspec.structs.replace(taken, label_holder=_finish(tx, session))


def rehearse(tx: Tx, session: Session, batch: Batch) -> TakenBatch:
    """Return what `take` would do, as a dry run."""
    session = _with_free_key(tx, session)
    here = _look(tx, session)
    taken = _place(tx, session, batch, here, writes=False)
    if taken.starts_over:
        taken = _place(tx, session, batch, _Here(here.state), writes=False)
    if taken.refusal is None and batch.is_last and here.state is not ImportState.HERE:
        return msgspec.structs.replace(taken, label_holder=_label_holder(tx, session))
    return taken


def _with_free_key(tx: Tx, session: Session) -> Session:
    """Give a session a key of its own if another has its key, or if it was given one before."""
    own = str(imported_key(session.agent_id, session.session_id))
    holder = sessions.find(tx, session.key)
    is_free = holder is None or holder.session_id == session.session_id
    if is_free and sessions.find(tx, own) is None:
        return session
    return msgspec.structs.replace(session, key=own, kind=Kind.OTHER.value, channel=None)


class _Here(msgspec.Struct, frozen=True):
    state: ImportState
    next_seq: int = 0
    refusal: str | None = None
    is_closed: bool = False
    """Whether nothing is ever written to it again."""


def _look(tx: Tx, session: Session) -> _Here:
    holder = sessions.find(tx, session.key)
    if holder is not None and holder.session_id != session.session_id:
        return _Here(ImportState.NEW, refusal=f"the key exists here with session id {holder.session_id}")
    row = tx.one("SELECT key, next_seq, end_reason FROM session_ids WHERE session_id = ?", session.session_id)
    if row is None:
        return _Here(ImportState.NEW)
    key, next_seq, reason = row
    if reason == IMPORTING:
        return _Here(ImportState.HALF, next_seq)
    if holder is None:
        return _Here(ImportState.NEW, refusal=f"its session id belongs to {key} here")
    return _Here(ImportState.HERE, next_seq, is_closed=holder.archived_at is not None or holder.deleting)


def _begin(tx: Tx, session: Session) -> None:
    tx.insert(
        SESSION_IDS,
        session_id=session.session_id,
        key=session.key,
        mark=new_mark(os.urandom(10)),
        created_at=session.created_at,
        ended_at=tx.now,
        end_reason=IMPORTING,
    )


def _place(tx: Tx, session: Session, batch: Batch, here: _Here, *, writes: bool) -> TakenBatch:
    """Find each message of a batch at its place, and write those after the stored ones."""
    if here.refusal is not None:
        return TakenBatch(state=here.state, key=session.key, refusal=here.refusal)
    place, written = batch.place, 0
    without_id: list[int] = []
    for offered in batch.offered:
        id, is_here = _choose_id(tx, session.session_id, place, offered.ids)
        if id is None:
            without_id.append(offered.line)
            continue
        if not is_here and place < here.next_seq:
            return _differs(session, here, place)
        if not is_here and here.is_closed:
            reason = "it was deleted here, and nothing is added to it any more"
            return TakenBatch(state=here.state, key=session.key, refusal=reason)
        if not is_here and writes:
            message = msgspec.structs.replace(offered.message, id=id)
            messages.write(tx, session.key, session.session_id, place, message, encode_message(message).decode())
        place, written = place + 1, written + (not is_here)
    if writes and written:
        # No fact for each message: the file is rewritten when all of them are here.
        tx.run("UPDATE session_ids SET next_seq = ? WHERE session_id = ?", place, session.session_id)
    return TakenBatch(state=here.state, key=session.key, place=place, written=written, without_id=tuple(without_id))


def _differs(session: Session, here: _Here, place: int) -> TakenBatch:
    if here.state is ImportState.HALF:  # nobody has seen that half
        return TakenBatch(state=here.state, key=session.key, starts_over=True)
    reason = f"it has gone on here since it was taken: the two differ from message {place + 1} on"
    return TakenBatch(state=here.state, key=session.key, refusal=reason)


def _choose_id(tx: Tx, session_id: str, place: int, ids: Sequence[str]) -> tuple[str | None, bool]:
    """Choose the first id that is free, or that this message has already; also returns which of the two."""
    for id in ids:
        row = tx.one("SELECT session_id, seq FROM messages WHERE id = ?", id)
        if row is None or row == (session_id, place):
            return id, row is not None
    return None, False


def _clear(tx: Tx, session: Session) -> None:
    messages.remove_all(tx, session.key, session.session_id)
    tx.run("UPDATE session_ids SET next_seq = 0 WHERE session_id = ?", session.session_id)


def _finish(tx: Tx, session: Session) -> str | None:
    """Write the session after its transcript; returns another session that has its label, if there is one."""
    holder = _label_holder(tx, session)
    row = session if holder is None else msgspec.structs.replace(session, label=None)
    values = msgspec.structs.asdict(row).items()
    tx.insert(SESSIONS, **{name: int(value) if isinstance(value, bool) else value for name, value in values})
    tx.run(
        "UPDATE session_ids SET key = ?, ended_at = ?, end_reason = ? WHERE session_id = ?",
        session.key,
        session.archived_at,
        None if session.archived_at is None else "deleted",
        session.session_id,
    )
    compactions.begin_at_last(tx, session.session_id)
    tx.tell(SessionChanged(session.key, "created"))
    return holder


def _label_holder(tx: Tx, session: Session) -> str | None:
    if session.label is None or session.archived_at is not None:
        return None
    row = tx.one(
        "SELECT key FROM sessions WHERE label = ? AND agent_id = ? AND archived_at IS NULL",
        session.label,
        session.agent_id,
    )
    return None if row is None else str(row[0])


def _touch(tx: Tx, session: Session, written: int) -> None:
    if written:
        here = required(tx.one("SELECT updated_at FROM sessions WHERE key = ?", session.key))
        tx.run("UPDATE sessions SET updated_at = ? WHERE key = ?", max(here[0], session.updated_at), session.key)
        tx.tell(SessionChanged(session.key, "note"))
