"""Reading everything there is, a little at a time: sessions by their keys, transcripts by their size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from backchannel.storage.transactions import messages
from backchannel.storage.tx import Tx

PAGE_BYTES = 1024 * 1024
MOST_LINES = 500


class Listed(NamedTuple):
    """A session by name."""

    key: str
    is_archived: bool


def listed_after(tx: Tx, after: str, limit: int) -> list[Listed]:
    """List sessions by their keys, so that those of an agent come together, archived ones included."""
    rows = tx.all("SELECT key, archived_at IS NOT NULL FROM sessions WHERE key > ? ORDER BY key LIMIT ?", after, limit)
    return [Listed(key, bool(is_archived)) for key, is_archived in rows]


def lines(tx: Tx, session_id: str) -> Iterator[str]:
    """Read a transcript from its beginning, about a megabyte at a time, or one message that is larger."""
    place = 0
    while count := _fitting(tx, session_id, place):
        rows = messages.read_from(tx, session_id, place, count)
        yield from (body for _, body in rows)
        place = rows[-1][0] + 1


def _fitting(tx: Tx, session_id: str, place: int) -> int:
    sizes = tx.all(
        "SELECT length(body) FROM messages WHERE session_id = ? AND seq >= ? ORDER BY seq LIMIT ?",
        session_id,
        place,
        MOST_LINES,
    )
    total = 0
    for count, (size,) in enumerate(sizes):
        total += size
        if total > PAGE_BYTES:
            return max(count, 1)
    return len(sizes)


def transcript_bytes(tx: Tx, session_id: str) -> int:
    """Tell how large a transcript's file is when nothing is missing in it."""
    return sum(len(line.encode()) + 1 for line in lines(tx, session_id))
