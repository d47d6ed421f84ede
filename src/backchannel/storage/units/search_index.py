"""The index of words: which messages wait for it, and how they are taken in.

Messages are taken in a few at a time, newest first, each time in a small transaction. The words are read before, in a
thread. What waits is rows, so there is nothing to recover: whoever starts goes on with what waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.full_text.ranking import search_text
from backchannel.core.messages import decode_message
from backchannel.storage.full_text import IndexEntry, owners_of
from backchannel.storage.tx import Row, Tx, required

_AT_ONCE = 16
_MOST_CHARS = 256 * 1024
"""How much is read for one batch; the last message may have more."""


def count_waiting(tx: Tx, most: int = 1 << 62) -> int:
    """Count the messages that are not indexed yet, up to a number."""
    counted = f"SELECT count(*) FROM (SELECT 1 FROM {tx.full_text.waiting} LIMIT ?) AS counted"
    return int(required(tx.one(counted, most))[0])


def waiting(tx: Tx, limit: int) -> list[IndexEntry]:
    """Read the words of the newest messages that wait."""
    place = tx.full_text.waiting_position
    below: int | None = None
    found: list[IndexEntry] = []
    chars = 0
    while len(found) < limit and chars < _MOST_CHARS:
        rows = tx.all(
            f"SELECT {place}, m.id, m.session_id, i.key, m.body FROM {tx.full_text.waiting} "
            "LEFT JOIN session_ids i ON i.session_id = m.session_id "
            f"{'' if below is None else f'WHERE {place} < ? '}ORDER BY {place} DESC LIMIT ?",
            *([] if below is None else [below]),
            min(_AT_ONCE, limit - len(found)),
        )
        found += map(_entry, rows)
        chars += sum(len(row[4]) for row in rows)
        if len(rows) < _AT_ONCE:
            break
        below = rows[-1][0]
    return found


def take_in(tx: Tx, entries: Sequence[IndexEntry]) -> int:
    """Index messages, and return how many still waited."""
    return tx.full_text.add(tx, entries)


def entries_of(tx: Tx, key: str, session_id: str, after: int) -> list[tuple[int, IndexEntry]]:
    """Read the words of a transcript's messages behind a place, some at a time."""
    rows = tx.all(
        f"SELECT {tx.full_text.position}, m.id, m.session_id, ?, m.body, m.seq FROM messages m "
        "WHERE m.session_id = ? AND m.seq > ? ORDER BY m.seq LIMIT ?",
        key,
        session_id,
        after,
        _AT_ONCE,
    )
    return [(row[5], _entry(row)) for row in rows]


def _entry(row: Row) -> IndexEntry:
    position, id, session_id, key, body = row[:5]
    return IndexEntry(position, id, search_text(decode_message(body)), owners_of(key or "agent::", session_id))
