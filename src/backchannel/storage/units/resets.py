"""Automatic resets, in the unit that accepts a message of a person or an operator.

`core/policy/resets.py` decides. The reset and the message are one commit: a message that is refused resets nothing, and
a message that comes again finds the first one. Only a session at rest is reset, so no flow has to be interrupted.
"""

from __future__ import annotations

from backchannel.core.facts import SessionBegunAnew
from backchannel.core.sessions import Session
from backchannel.storage.tx import Tx, required
from backchannel.storage.units import sessions


def reset_if_due(tx: Tx, session: Session) -> Session:
    """Begin a new transcript if the session was not used since its mark; returns the session as it is then."""
    rule = tx.rules.resets.rule_for(session.key, session.kind)
    if rule is None or session.flushing or session.held_posts or not session.is_idle:
        return session
    used_at, length = required(
        tx.one(
            "SELECT coalesce(s.used_at, s.updated_at), i.next_seq FROM sessions s "
            "JOIN session_ids i ON i.session_id = s.session_id WHERE s.key = ?",
            session.key,
        )
    )
    due = tx.rules.resets.due(rule, used_at, tx.now)
    if due is None or length == 0 or _has_open_flow(tx, session.key):
        return session
    anew = sessions.reset(tx, session.key, reason=due.reason.value, carries=due.carry)
    tx.tell(SessionBegunAnew(session.key, due.reason.value, session.session_id, anew.session_id))
    return anew


def _has_open_flow(tx: Tx, key: str) -> bool:
    """Whether a note, an exchange, a sub-agent or a wake of a session is open."""
    row = tx.one(
        "SELECT 1 FROM inbox WHERE session_key = ? "
        "UNION ALL SELECT 1 FROM exchanges WHERE requester_key = ? AND state <> 'done' "
        "UNION ALL SELECT 1 FROM exchanges WHERE target_key = ? AND state <> 'done' "
        "UNION ALL SELECT 1 FROM spawns WHERE requester_key = ? AND state <> 'done' "
        "UNION ALL SELECT 1 FROM barriers WHERE session_key = ? AND state = 'open' LIMIT 1",
        *[key] * 5,
    )
    return row is not None
