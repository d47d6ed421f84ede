"""Who asked for a run: the session that it is on, or the one whose send or spawn started it."""

from __future__ import annotations

from backchannel.storage.tx import Tx


def is_own(tx: Tx, run_id: str, key: str) -> bool:
    """Whether a run is a session's own; one that is not there is nobody's.

    Of a flow that the session started only the first run is: turns and announces on the other side are not its affair.
    """
    row = tx.one(
        "SELECT 1 FROM runs r WHERE r.id = ? AND (r.session_key = ? "
        "OR (r.kind = 'primary' AND EXISTS (SELECT 1 FROM exchanges e WHERE e.id = r.exchange_id "
        "AND e.requester_key = ?)) "
        "OR (r.kind = 'child' AND EXISTS (SELECT 1 FROM spawns s WHERE s.id = r.spawn_id AND s.requester_key = ?)))",
        run_id,
        key,
        key,
        key,
    )
    return row is not None
