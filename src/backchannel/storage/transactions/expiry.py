"""Sessions that were made for one request: archived when nobody has used them for as long as they live.

The row says how long, so that whatever door uses one in between makes it live on; the timer is only when to look.
"""

from __future__ import annotations

from backchannel.core.sessions import Session
from backchannel.storage.transactions import cleanup, sessions, timers
from backchannel.storage.tx import Tx

TIMER = "expiry"
LOOK_AGAIN_MS = 60_000


def keep_for(tx: Tx, session: Session, lives_ms: int) -> Session:
    """Write down how long a new session lives after its last use."""
    timers.set_timer(tx, TIMER, session.key, tx.now + lives_ms)
    return sessions.update(tx, session.key, "lives_ms = ?", lives_ms)


def due(tx: Tx, key: str) -> None:
    """Archive a session whose time is over, or look again when it may be."""
    session = sessions.find(tx, key)
    if session is None or session.archived_at is not None or session.deleting or session.lives_ms is None:
        return
    over_at = session.updated_at + session.lives_ms
    if over_at <= tx.now and not cleanup.is_used(tx, session) and not _has_children_at_work(tx, key):
        sessions.archive(tx, session)
    else:
        timers.set_timer(tx, TIMER, key, max(over_at, tx.now + LOOK_AGAIN_MS))


def _has_children_at_work(tx: Tx, key: str) -> bool:
    row = tx.one(
        "SELECT 1 FROM spawns WHERE requester_key = ? AND state <> 'done' "
        "UNION ALL SELECT 1 FROM barriers WHERE session_key = ? AND state = 'open' LIMIT 1",
        key,
        key,
    )
    return row is not None
