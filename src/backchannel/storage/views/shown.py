"""Sessions as operators see them: transcript pages and live runs."""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.messages import (
    FIRST_PENDING,
    Message,
    PendingMessages,
    PendingPlace,
    Role,
    decode_message,
    decode_messages,
)
from backchannel.core.sessions import EndedTranscript, OpenedSession, Session
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
    tx: Tx,
    session: Session,
    *,
    limit: int,
    before: str | None,
    after: str | None,
    most_pending: int,
    pending_after: PendingPlace = FIRST_PENDING,
) -> OpenedSession:
    """Read a page of a transcript, a page of the pending messages and the session's row, in one snapshot.

    A transcript that was replaced has no row any more.
    """
    seen = session_seen(tx, session.key)
    length, follows = transcript_start(tx, session.session_id)
    waiting = None if session.archived_at else inbox.pending(tx, session.key, most_pending, pending_after)
    return OpenedSession(
        page=messages.lines(tx, session.session_id, limit=limit, before=before, after=after),
        pending=waiting or PendingMessages([], 0),
        length=length,
        seen=seen if seen is not None and seen[0].session_id == session.session_id else None,
        follows=follows,
    )


def transcript_start(tx: Tx, session_id: str) -> tuple[int, EndedTranscript | None]:
    """Count the messages of a transcript, and find the transcript before it."""
    row = tx.one(
        "SELECT i.next_seq, p.session_id, p.ended_at, p.end_reason FROM session_ids i "
        "LEFT JOIN session_ids p ON p.session_id = i.follows AND p.ended_at IS NOT NULL WHERE i.session_id = ?",
        session_id,
    )
    if row is None:
        return 0, None
    return int(row[0]), None if row[1] is None else EndedTranscript(*row[1:])


def cached_share(tx: Tx, session_id: str) -> float | None:
    """Read how much of the last request of a transcript came from the provider's cache."""
    row = tx.one(
        "SELECT body FROM messages WHERE session_id = ? AND role = 'assistant' ORDER BY seq DESC LIMIT 1", session_id
    )
    usage = None if row is None else decode_message(row[0]).usage
    return None if usage is None else usage.cached_share


def last_messages(
    tx: Tx, session_ids: Sequence[str], per_session: int, *, with_tools: bool
) -> dict[str, list[Message]]:
    """Read the last messages of many sessions in one query."""
    found = messages.last_of_each(tx, session_ids, per_session, with_tools=with_tools)
    return {session_id: decode_messages(lines) for session_id, lines in found.items()}


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
