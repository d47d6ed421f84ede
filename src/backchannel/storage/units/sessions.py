"""Sessions: created, changed, reset, archived, listed and found."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from backchannel.core.facts import SessionChanged, TranscriptClosed
from backchannel.core.headers import new_mark
from backchannel.core.keys import Kind, SessionKey
from backchannel.core.policy.visibility import VisibleScope
from backchannel.core.sessions import (
    NewSession,
    Page,
    Session,
    SessionFilter,
    SessionIdEntry,
    SessionPatch,
    SessionStatus,
)
from backchannel.core.text import quoted
from backchannel.errors import LabelInUse, MainSessionKept, SessionIdReplaced, SessionNotFound, Unavailable
from backchannel.storage.events import LaneMoved
from backchannel.storage.ids import new_session_id
from backchannel.storage.tables import SESSION_IDS, SESSIONS
from backchannel.storage.tx import Tx, assignments, filters, marks, required
from backchannel.storage.units import idempotency

FIRST_RUN = "(SELECT min(position) FROM runs WHERE session_key = sessions.key)"
"""Orders sessions of the same millisecond: runs are numbered as they are accepted."""


def find(tx: Tx, key: str) -> Session | None:
    row = tx.one(f"{SESSIONS.select} WHERE key = ?", key)
    return None if row is None else SESSIONS.read(row)


def need(tx: Tx, key: str, expected_session_id: str | None = None) -> Session:
    """Load a session that must exist and not be archived.

    Raises:
        SessionIdReplaced: it has another transcript than the one expected, or none.
        SessionNotFound: it is not there.
    """
    session = find(tx, key)
    check_current(tx, key, session, expected_session_id)
    if session is None or session.archived_at is not None:
        shown = tx.scheme.shown(key)
        raise SessionNotFound.named(repr(shown), sessionKey=shown)
    return session


def ensure(tx: Tx, key: SessionKey, expected_session_id: str | None = None) -> Session:
    """Load a session to write to. A missing one is created, an archived one starts again.

    Raises:
        SessionIdReplaced: it has another transcript than the one expected, or none.
    """
    session = find(tx, str(key))
    check_current(tx, str(key), session, expected_session_id)
    return ensure_found(tx, key, session)


def ensure_found(tx: Tx, key: SessionKey, session: Session | None) -> Session:
    """Do the same as `ensure`, for a session that is loaded already."""
    if session is None:
        return _create(tx, key, tx.scheme.kind(key))
    check_kept(session)
    return session if session.archived_at is None else _revive(tx, session)


def check_kept(session: Session) -> None:
    """Refuse to write to a session that is being deleted."""
    if session.deleting:
        raise Unavailable(f"session {session.key!r} is being deleted: try again in a moment", sessionKey=session.key)


def of_flow(tx: Tx, key: SessionKey) -> Session:
    """Load a session of a flow, archived or not.

    If it does not exist, it is the main session of its agent, which may send before its first message. It is created
    here.
    """
    return find(tx, str(key)) or _create(tx, key, Kind.MAIN)


def _create(tx: Tx, key: SessionKey, kind: Kind) -> Session:
    written = str(key)
    created = {
        "key": written,
        "agent_id": key.agent,
        "kind": kind.value,
        "session_id": _new_transcript(tx, written),
        "created_at": tx.now,
        "updated_at": tx.now,
        "channel": key.channel if key.chat_type is not None else None,
    }
    tx.insert(SESSIONS, **created)
    tx.tell(SessionChanged(written, "created"))
    return SESSIONS.fresh(**created)


def _revive(tx: Tx, session: Session) -> Session:
    session_id = _new_transcript(tx, session.key)
    tx.run(
        "UPDATE sessions SET session_id = ?, archived_at = NULL, label = NULL, system_sent = 0, aborted_last_run = 0, "
        "last_state = NULL, total_tokens = NULL, lives_ms = NULL, updated_at = ?, used_at = ? WHERE key = ?",
        session_id,
        tx.now,
        tx.now,
        session.key,
    )
    tx.tell(SessionChanged(session.key, "created"))
    return need(tx, session.key)


def _new_transcript(tx: Tx, key: str, follows: str | None = None, *, carries: bool = False) -> str:
    session_id = new_session_id()
    tx.insert(
        SESSION_IDS,
        session_id=session_id,
        key=key,
        mark=new_mark(os.urandom(10)),
        created_at=tx.now,
        follows=follows,
        carries=int(carries),
    )
    return session_id


def _end_transcript(tx: Tx, session_id: str, reason: str, at: int) -> None:
    tx.run("UPDATE session_ids SET ended_at = ?, end_reason = ? WHERE session_id = ?", at, reason, session_id)


def check_current(tx: Tx, key: str, session: Session | None, expected: str | None) -> None:
    """Refuse a caller whose session id is not the session's id any more.

    Every unit for such a caller checks this on the session that the unit itself has loaded. Between an earlier look-up
    and the unit, the session can be deleted and created again.
    """
    if expected is None:
        return
    shown = tx.scheme.shown(key)
    if session is None or session.archived_at is not None:
        message = f"there is no session {shown!r} now, so it has not the id {quoted(expected)}"
        raise SessionIdReplaced(message, sessionKey=shown)
    if expected != session.session_id:
        raise SessionIdReplaced(
            f"session {shown!r} now has the id {session.session_id!r}, not {expected!r}: "
            "read it again, then repeat the call",
            sessionKey=shown,
            sessionId=session.session_id,
        )


def make(
    tx: Tx,
    key: SessionKey,
    making: NewSession,
    *,
    expected_session_id: str | None = None,
    idempotency_key: str | None = None,
    digest: str | None = None,
) -> None:
    """Create a session, once for each idempotency key. A repetition changes nothing.

    Raises:
        IdempotencyConflict, LabelInUse, ScopeMissing, SessionIdReplaced
    """

    def do() -> str:
        return make_now(tx, key, making, expected_session_id).session_id

    idempotency.once(tx, idempotency_key, digest, do)


def make_now(tx: Tx, key: SessionKey, making: NewSession, expected_session_id: str | None = None) -> Session:
    """Create a session, or change an existing one as far as its maker may.

    Raises:
        LabelInUse, ScopeMissing, SessionIdReplaced
    """
    there = find(tx, str(key))
    if there is not None and there.archived_at is None:
        making.check_change(there)
    return patch(tx, key, making.settings, expected_session_id=expected_session_id)


def patch(tx: Tx, key: SessionKey, change: SessionPatch, *, expected_session_id: str | None = None) -> Session:
    """Change a session's settings, creating it if it is new.

    Raises:
        LabelInUse, SessionIdReplaced
    """
    session = ensure(tx, key, expected_session_id)
    if isinstance(change.label, str):
        _check_label_is_free(tx, session, change.label)
    given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
    if not given:
        return session
    tx.tell(SessionChanged(session.key, "patch"))
    if "model" in given:
        tx.happened(LaneMoved(session.key))
    return update(tx, session.key, f"{assignments(given)}, updated_at = ?", *given.values(), tx.now)


def _check_label_is_free(tx: Tx, session: Session, label: str) -> None:
    holder = tx.one(
        "SELECT key FROM sessions WHERE agent_id = ? AND label = ? AND archived_at IS NULL AND key <> ?",
        session.agent_id,
        label,
        session.key,
    )
    if holder is not None:
        shown = tx.scheme.shown(holder[0])
        raise LabelInUse(
            f"the label {label!r} belongs to {shown!r}: choose another, or clear that one first "
            f"(`backchannel sessions label {shown} --clear`)",
            sessionKey=shown,
        )


def reset(tx: Tx, key: str, *, reason: str = "reset", carries: bool = False) -> Session:
    """Start a new transcript under the same key. The active run is asked to stop, and ends in the old one.

    `reason` is why the old transcript ended. With `carries`, the new one is to begin with a summary of it.
    """
    session = need(tx, key)
    check_kept(session)
    _end_transcript(tx, session.session_id, reason, tx.now)
    _take_back_grants(tx, key)
    tx.run(
        "UPDATE sessions SET session_id = ?, system_sent = 0, aborted_last_run = 0, last_state = NULL, "
        "total_tokens = NULL, updated_at = ?, used_at = ? WHERE key = ?",
        _new_transcript(tx, key, session.session_id, carries=carries),
        tx.now,
        tx.now,
        key,
    )
    tx.happened(LaneMoved(key))
    tx.tell(SessionChanged(key, "reset"))
    return need(tx, key)


def check_deletable(tx: Tx, key: SessionKey, expected_session_id: str | None = None) -> None:
    """Refuse to delete a main session, a missing one, or another than the one expected."""
    need(tx, str(key), expected_session_id)
    if tx.scheme.is_main(key):
        shown = tx.scheme.shown(str(key))
        raise MainSessionKept(
            f"{shown!r} is the main session of {key.agent!r} and cannot be deleted: use sessions.reset",
            sessionKey=shown,
        )


def archive_when_idle(tx: Tx, session: Session) -> None:
    """Archive a session that is being deleted, once it has no run left. Each run that ends calls this again."""
    if session.deleting and session.status is SessionStatus.IDLE and not session.flushing:
        archive(tx, session)


def archive(tx: Tx, session: Session, *, as_of: int | None = None) -> None:
    """Archive a session, and close its transcript for good; `as_of` is the time in the file's name."""
    at = tx.now if as_of is None else as_of
    _end_transcript(tx, session.session_id, "deleted", at)
    _take_back_grants(tx, session.key)
    tx.run("UPDATE sessions SET archived_at = ?, deleting = 0, updated_at = ? WHERE key = ?", at, tx.now, session.key)
    is_named = session.spawned_by is not None and at == tx.now
    tx.tell(TranscriptClosed(session.key, session.session_id, at, is_named))
    tx.tell(SessionChanged(session.key, "delete"))


def _take_back_grants(tx: Tx, key: str) -> None:
    """Forget the tools that an owner has always allowed: the grant was for the conversation that ends."""
    tx.run("DELETE FROM approval_grants WHERE session_key = ?", key)


def required_session(tx: Tx, key: str) -> Session:
    """Load a session that rows name, archived or not."""
    return SESSIONS.read(required(tx.one(f"{SESSIONS.select} WHERE key = ?", key)))


def counts(tx: Tx) -> dict[str, int]:
    """Count the sessions of each agent that are not archived."""
    return dict(tx.all("SELECT agent_id, count(*) FROM sessions WHERE archived_at IS NULL GROUP BY agent_id"))


def update(tx: Tx, key: str, sets: str, *values: Any) -> Session:
    """Change columns of a session, and return it as it is then."""
    return SESSIONS.read(
        required(tx.one(f"UPDATE sessions SET {sets} WHERE key = ? {SESSIONS.returning}", *values, key))
    )


_ENTRY = "SELECT session_id, key, mark, ended_at, end_reason, follows, carries FROM session_ids"


def by_id(tx: Tx, session_id: str) -> SessionIdEntry | None:
    row = tx.one(f"{_ENTRY} WHERE session_id = ?", session_id)
    return None if row is None else msgspec.convert(row, SessionIdEntry, strict=False)


def transcripts_after(tx: Tx, after: str, limit: int) -> list[SessionIdEntry]:
    """List all transcripts with messages by id, also those of ended sessions."""
    rows = tx.all(
        f"{_ENTRY} WHERE session_id > ? AND next_seq > 0 "
        "AND coalesce(end_reason, '') <> 'importing' ORDER BY session_id LIMIT ?",
        after,
        limit,
    )
    return [msgspec.convert(row, SessionIdEntry, strict=False) for row in rows]


def labelled(tx: Tx, label: str, agent_id: str | None) -> list[Session]:
    where, values = "label = ? AND archived_at IS NULL", [label]
    if agent_id is not None:
        where += " AND agent_id = ?"
        values.append(agent_id)
    return [SESSIONS.read(row) for row in tx.all(f"{SESSIONS.select} WHERE {where} ORDER BY key", *values)]


def page(tx: Tx, wanted: SessionFilter, *, after: Page | None, limit: int, offset: int = 0) -> list[Session]:
    """List sessions, newest first."""
    where, values = _conditions(wanted)
    if after is not None:
        # In this form the index is entered at this row. A plain OR would scan it from the newest.
        where += " AND updated_at <= ? AND (updated_at < ? OR key > ?)"
        values += [after.updated_at, after.updated_at, after.key]
    if wanted.visible is not None and not wanted.visible.everything:
        where, values = _among(_visible(wanted.visible), where, values, limit + offset)
    elif wanted.archived is None:
        where, values = _among(_EITHER, where, values, limit + offset)
    rows = tx.all(
        f"{SESSIONS.select} WHERE {where} ORDER BY updated_at DESC, key LIMIT ? OFFSET ?", *values, limit, offset
    )
    return msgspec.convert(rows, list[Session], strict=False)  # at once: lists are long


_EITHER: list[tuple[str, tuple[Any, ...]]] = [("archived_at IS NULL", ()), ("archived_at IS NOT NULL", ())]


def _visible(scope: VisibleScope) -> list[tuple[str, tuple[Any, ...]]]:
    """List the conditions under which a caller sees a session."""
    branches: list[tuple[str, tuple[Any, ...]]] = [("key = ?", (scope.key,))]
    if scope.spawned_by is not None:
        branches.append(("spawned_by = ?", (scope.spawned_by,)))
    return branches + [("agent_id = ?", (agent_id,)) for agent_id in scope.agent_ids]


def _among(
    branches: list[tuple[str, tuple[Any, ...]]], where: str, values: list[Any], limit: int
) -> tuple[str, list[Any]]:
    """Narrow a list to the newest of each branch; each branch has its own index."""
    newest = " UNION ".join(
        f"SELECT key FROM (SELECT key FROM sessions WHERE {branch} AND {where} "
        "ORDER BY updated_at DESC, key LIMIT ?) AS newest"
        for branch, _ in branches
    )
    return f"key IN ({newest})", [value for _, given in branches for value in (*given, *values, limit)]


def _conditions(wanted: SessionFilter) -> tuple[str, list[Any]]:
    where, values = filters(
        ("agent_id = ?", wanted.agent_id),
        ("label = ?", wanted.label),
        ("spawned_by = ?", wanted.spawned_by),
        ("updated_at >= ?", wanted.updated_since),
    )
    if wanted.archived is not None:
        where += f" AND archived_at IS {'NOT ' if wanted.archived else ''}NULL"
    if wanted.kinds:
        where += f" AND kind IN ({marks(wanted.kinds)})"
        values += wanted.kinds
    if wanted.search:
        where += f" AND {_SEARCH}"
        values += [f"%{_escape_like(wanted.search)}%"] * 3
    return where, values


_SEARCH = (
    "(" + " OR ".join(rf"lower({name}) LIKE lower(?) ESCAPE '\'" for name in ("key", "label", "display_name")) + ")"
)


def _escape_like(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def child_keys(tx: Tx, key: str) -> list[str]:
    """List the sessions that a session has spawned, oldest first, archived ones too. There may be thousands."""
    rows = tx.all(f"SELECT key FROM sessions WHERE spawned_by = ? ORDER BY created_at, {FIRST_RUN}, key", key)
    return [child for (child,) in rows]


def agents_with_sessions(tx: Tx) -> list[str]:
    """List the agents that have a session: the query jumps from one to the next in the index."""
    rows = tx.all(
        "WITH RECURSIVE found(agent_id) AS ("
        "SELECT min(agent_id) FROM sessions WHERE archived_at IS NULL UNION ALL "
        "SELECT (SELECT min(agent_id) FROM sessions WHERE archived_at IS NULL AND agent_id > found.agent_id) "
        "FROM found WHERE found.agent_id IS NOT NULL) SELECT agent_id FROM found WHERE agent_id IS NOT NULL"
    )
    return [agent_id for (agent_id,) in rows]


def exchanges_of(tx: Tx, key: str) -> list[tuple[str, str, int]]:
    """List the open exchanges of a session: id, state, time of the last step."""
    rows = tx.all(
        "SELECT id, state, updated_at FROM exchanges WHERE requester_key = ? AND state <> 'done' "
        "UNION SELECT id, state, updated_at FROM exchanges WHERE target_key = ? AND state <> 'done' ORDER BY 3",
        key,
        key,
    )
    return [(id_, state, at) for id_, state, at in rows]


def receipts_of(tx: Tx, key: str, since: int) -> list[tuple[str, str, int, str | None]]:
    """List a session's deliveries that are open or were settled since a time: id, state, time, error."""
    rows = tx.all(
        "SELECT id, state, updated_at, error FROM deliveries WHERE session_key = ? "
        "AND (state IN ('pending', 'sending', 'failed', 'uncertain') OR updated_at >= ?) ORDER BY number",
        key,
        since,
    )
    return [(id_, state, at, error) for id_, state, at, error in rows]
