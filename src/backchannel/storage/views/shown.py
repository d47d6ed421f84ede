"""Sessions as operators see them: transcript pages and live runs."""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.messages import Message, PendingMessages, Role, decode_message
from backchannel.core.sessions import OpenedSession, Session
from backchannel.storage.tx import LIVE, Tx
from backchannel.storage.units import inbox, messages, sessions

MOST_LIVE = 50
"""The most live runs that are listed of a session. Thousands may wait."""
FIRST_AMONG = 16
"""How many messages are searched for a person's first one."""


def live_runs(tx: Tx, keys: Sequence[str]) -> dict[str, list[str]]:
    """List the live runs of sessions, in order."""
    return {key: _live_of(tx, key) for key in keys}


def _live_of(tx: Tx, key: str) -> list[str]:
    rows = tx.all(f"SELECT id FROM runs WHERE session_key = ? AND {LIVE} ORDER BY position LIMIT ?", key, MOST_LIVE)
    return [run_id for (run_id,) in rows]


def session_seen(tx: Tx, key: str) -> tuple[Session, list[str]] | None:
    """Load a session with its live runs."""
    session = sessions.find(tx, key)
    return None if session is None else (session, [] if session.is_idle else _live_of(tx, key))


def opened(
    tx: Tx, session: Session, *, limit: int, before: str | None, after: str | None, most_pending: int
) -> OpenedSession:
    """Read a page of a transcript, the pending messages and the session's row, in one snapshot.

    A transcript that was replaced has no row any more.
    """
    seen = session_seen(tx, session.key)
    return OpenedSession(
        page=messages.lines(tx, session.session_id, limit=limit, before=before, after=after),
        pending=PendingMessages([], 0) if session.archived_at else inbox.pending(tx, session.key, most_pending),
        length=_transcript_length(tx, session.session_id),
        seen=seen if seen is not None and seen[0].session_id == session.session_id else None,
    )


def _transcript_length(tx: Tx, session_id: str) -> int:
    """Count the messages of a transcript."""
    row = tx.one("SELECT next_seq FROM session_ids WHERE session_id = ?", session_id)
    return 0 if row is None else int(row[0])


def first_said(tx: Tx, session_ids: Sequence[str]) -> dict[str, Message]:
    """Read the first message with the role of a person in each transcript, in one query."""
    if not session_ids:
        return {}
    wanted = dict.fromkeys(session_ids)
    marks = ", ".join("(?)" for _ in wanted)
    rows = tx.all(
        f"WITH wanted(sid) AS (VALUES {marks}) "
        "SELECT session_id, body FROM wanted JOIN messages ON session_id = sid AND seq = "
        "(SELECT seq FROM messages WHERE session_id = sid AND seq < ? AND role = ? ORDER BY seq LIMIT 1)",
        *wanted,
        FIRST_AMONG,
        Role.USER.value,
    )
    return {session_id: decode_message(body) for session_id, body in rows}
