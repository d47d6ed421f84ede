"""Cuts: where a model's view of a transcript begins, and the shape of its requests."""

from __future__ import annotations

from msgspec.structs import replace

from backchannel.core.cut import Cut, write_cut
from backchannel.core.runs import Fence
from backchannel.storage.tx import Tx
from backchannel.storage.units import runs


def move(tx: Tx, fence: Fence, session_id: str, expected: str | None, cut: Cut) -> str | None:
    """Move the cut for the holder of a run; returns the cut that is stored then.

    If the cut is not the expected one any more, somebody else has moved it, and it stays.
    """
    runs.unstopped(tx, fence)
    return store(tx, session_id, expected, cut)


def store(tx: Tx, session_id: str, expected: str | None, cut: Cut) -> str | None:
    """Store a cut in the place of the expected one; returns the cut that is stored then."""
    stored = write_cut(replace(cut, moved_at=tx.now))
    tx.run(
        "UPDATE session_ids SET cut = ? WHERE session_id = ? AND coalesce(cut, '') = ?",
        stored,
        session_id,
        expected or "",
    )
    row = tx.one("SELECT cut FROM session_ids WHERE session_id = ?", session_id)
    return None if row is None else row[0]


def keep_shape(tx: Tx, fence: Fence, session_id: str, shape: str) -> None:
    """Store the shape of a request before it is sent. Most are stored with their reply."""
    runs.unstopped(tx, fence)
    tx.run("UPDATE session_ids SET shape = ? WHERE session_id = ?", shape, session_id)
