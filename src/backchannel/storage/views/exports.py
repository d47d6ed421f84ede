"""Exports: all sessions and transcripts, read in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backchannel.core.records import PAGE_SIZE, ExportListed, ExportPlace, Passage
from backchannel.storage.tables import SESSIONS
from backchannel.storage.tx import Tx, marks
from backchannel.storage.units import messages

EXPORT_LINES = 500

_LISTED = (
    f"SELECT next_seq, {SESSIONS.fields_of('sessions')} "
    "FROM sessions JOIN session_ids ON session_ids.session_id = sessions.session_id"
)


def listed_after(
    tx: Tx, after: str, limit: int, *, agent_id: str | None = None, keys: Sequence[str] | None = None
) -> list[ExportListed]:
    """List sessions by key, archived ones too. Those of an agent come together."""
    where, values = "sessions.key > ?", [after]
    if agent_id is not None:
        where += " AND sessions.key > ? AND sessions.key < ?"
        values += [f"agent:{agent_id}:", f"agent:{agent_id};"]  # the character after the colon: all its keys, by index
    if keys is not None:
        where += f" AND sessions.key IN ({marks(keys)})"
        values += keys
    rows = tx.all(f"{_LISTED} WHERE {where} ORDER BY sessions.key LIMIT ?", *values, limit)
    return [ExportListed(length, SESSIONS.read(tuple(row))) for length, *row in rows]


def read(tx: Tx, session_id: str, place: ExportPlace, until: int, size: int) -> Passage:
    """Read up to `size` characters of messages from a place; a longer message comes in parts."""
    if place.seq >= until:
        return Passage()
    count = 0 if place.offset else min(_fitting(tx, session_id, place.seq, size), until - place.seq)
    if count == 0:
        return _read_part(tx, session_id, place, until, size)
    rows = messages.read_from(tx, session_id, place.seq, count)
    return Passage([body for _, body in rows], next=_before(until, rows[-1][0] + 1))


def _read_part(tx: Tx, session_id: str, place: ExportPlace, until: int, size: int) -> Passage:
    row = tx.one(
        "SELECT substr(body, CAST(? AS INTEGER), CAST(? AS INTEGER)), length(body) "
        "FROM messages WHERE session_id = ? AND seq = ?",
        place.offset + 1,
        size,
        session_id,
        place.seq,
    )
    if row is None:
        return Passage()
    part, length = row
    end = place.offset + len(part)
    is_last = end >= length or not part
    return Passage(part=part, next=_before(until, place.seq + 1) if is_last else ExportPlace(place.seq, end))


def _before(until: int, seq: int) -> ExportPlace | None:
    return ExportPlace(seq) if seq < until else None


def lines(tx: Tx, session_id: str) -> Iterator[str]:
    """Read a transcript from its beginning, about a megabyte at a time."""
    place = 0
    while rows := messages.read_from(tx, session_id, place, max(_fitting(tx, session_id, place, PAGE_SIZE), 1)):
        yield from (body for _, body in rows)
        place = rows[-1][0] + 1


def _fitting(tx: Tx, session_id: str, place: int, size: int) -> int:
    """Count the messages from a place that fit into a size."""
    sizes = tx.all(
        "SELECT length(body) FROM messages WHERE session_id = ? AND seq >= ? ORDER BY seq LIMIT ?",
        session_id,
        place,
        EXPORT_LINES,
    )
    total = 0
    for count, (length,) in enumerate(sizes):
        total += length
        if total > size:
            return count
    return len(sizes)


def transcript_bytes(tx: Tx, session_id: str) -> int:
    """Return the size of a transcript's complete file."""
    return sum(len(line.encode()) + 1 for line in lines(tx, session_id))
