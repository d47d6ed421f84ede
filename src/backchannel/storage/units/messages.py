"""Messages of a transcript: appended, and read back."""

from __future__ import annotations

from collections.abc import Sequence

from backchannel.core.facts import MessageAppended
from backchannel.core.messages import (
    HistoryPage,
    Message,
    Role,
    TranscriptLines,
    decode_message,
    decode_messages,
    encode_message,
)
from backchannel.core.runs import TranscriptHead
from backchannel.errors import NotFound
from backchannel.storage.tables import MESSAGES
from backchannel.storage.tx import Row, Tx, required
from backchannel.storage.units import search_index

_LOOKED_BACK = 50
"""How many messages are searched for a run's last text."""
FIRST_READ, MOST_READ = 8, 64
"""How many messages are read at a time. The first read is small: a message may have megabytes."""
LARGEST_PAGE = 16 * 1024 * 1024
HEAD = "mark, next_seq, cut, shape, CASE carries WHEN 1 THEN follows END"
"""The columns of a `TranscriptHead`."""
_BEHIND_ALL = 1 << 62


def append(
    tx: Tx, key: str, session_id: str, message: Message, stored: str | None = None, *, shape: str | None = None
) -> TranscriptHead:
    """Append a message to its transcript; returns the transcript's row after that.

    A message that waited in another row is copied as it is `stored` there. `shape` is the new shape of the requests for
    the transcript, if it changed.
    """
    row = tx.one(f"SELECT {HEAD} FROM session_ids WHERE session_id = ?", session_id)
    mark, seq, cut, known_shape, carries_from = required(row)
    head = TranscriptHead(mark, seq + 1, cut, known_shape if shape is None else shape, carries_from)
    # With RETURNING, SQLite takes longer for both together.
    tx.run("UPDATE session_ids SET next_seq = ?, shape = ? WHERE session_id = ?", seq + 1, head.shape, session_id)
    line = encode_message(message) if stored is None else stored.encode()
    write(tx, key, session_id, seq, message, line.decode())
    tx.tell(MessageAppended(key, session_id, seq, message, line))
    return head


def write(tx: Tx, key: str, session_id: str, seq: int, message: Message, body: str) -> None:
    """Write a message, so that it can be found by its words from this commit on."""
    tx.insert(
        MESSAGES,
        session_id=session_id,
        seq=seq,
        id=message.id,
        role=message.role.value,
        body=body,
        **tx.full_text.columns(message, key, session_id),
    )


def remove_all(tx: Tx, key: str, session_id: str) -> None:
    """Remove the messages of a transcript, with their words in the index. Nothing else removes a message."""
    after = -1
    while entries := search_index.entries_of(tx, key, session_id, after):
        tx.full_text.remove(tx, [entry for _, entry in entries])
        after = entries[-1][0]
    tx.run("DELETE FROM messages WHERE session_id = ?", session_id)


def find(tx: Tx, message_id: str) -> Message | None:
    row = tx.one("SELECT body FROM messages WHERE id = ?", message_id)
    return None if row is None else decode_message(row[0])


def find_in(tx: Tx, session_id: str, message_id: str) -> Message:
    """Load one message of a transcript.

    Raises:
        NotFound: it is not in this transcript.
    """
    seq_of(tx, session_id, message_id)
    (body,) = required(tx.one("SELECT body FROM messages WHERE id = ?", message_id))
    return decode_message(body)


def history(
    tx: Tx, session_id: str, *, limit: int, before: str | None = None, after: str | None = None, with_tools: bool = True
) -> HistoryPage:
    """Read a page: the newest messages, or those before or after a message. Long messages make it shorter."""
    page = lines(tx, session_id, limit=limit, before=before, after=after, with_tools=with_tools)
    return HistoryPage(decode_messages([body for _, body in page.lines]), page.has_more)


def lines(
    tx: Tx, session_id: str, *, limit: int, before: str | None, after: str | None, with_tools: bool = True
) -> TranscriptLines:
    """Read the lines of a page."""
    low = -1 if after is None else seq_of(tx, session_id, after)
    high = _BEHIND_ALL if before is None else seq_of(tx, session_id, before)
    order = "DESC" if after is None else "ASC"
    roles = "" if with_tools else " AND role <> 'toolResult'"
    found: list[tuple[int, str]] = []
    size, count, has_more = 0, FIRST_READ, True
    while has_more and len(found) <= limit and size < LARGEST_PAGE:
        count = min(count, limit + 1 - len(found))
        rows = tx.all(
            f"SELECT seq, body FROM messages WHERE session_id = ? AND seq > ? AND seq < ?{roles} "
            f"ORDER BY seq {order} LIMIT ?",
            session_id,
            low,
            high,
            count,
        )
        found.extend(rows)
        size += sum(len(body) for _, body in rows)
        has_more = len(rows) == count
        if has_more:
            low, high = (low, rows[-1][0]) if after is None else (rows[-1][0], high)
        count = min(2 * count, MOST_READ)
    kept = found[:-1] if has_more else found
    return TranscriptLines(kept[::-1] if after is None else kept, has_more)


def last_text_of(tx: Tx, session_id: str, run_id: str, role: Role) -> str | None:
    """Find the newest text of a run in this role among the last messages, read one by one: they may be long."""
    (before,) = required(tx.one("SELECT next_seq FROM session_ids WHERE session_id = ?", session_id))
    for _ in range(_LOOKED_BACK):
        row = tx.one(
            "SELECT seq, body FROM messages WHERE session_id = ? AND seq < ? AND role = ? ORDER BY seq DESC LIMIT 1",
            session_id,
            before,
            role.value,
        )
        if row is None:
            return None
        before, message = row[0], decode_message(row[1])
        if message.run_id == run_id and message.text.strip():
            return message.text
    return None


def transcript_with(tx: Tx, session_id: str, message_id: str) -> str:
    """Find which transcript of a session has a message: the one that it has now, or a former one of the same key.

    Raises:
        NotFound: no transcript of this session has it.
    """
    row = tx.one(
        "SELECT there.session_id FROM messages m JOIN session_ids there ON there.session_id = m.session_id "
        "JOIN session_ids here ON here.key = there.key WHERE m.id = ? AND here.session_id = ?",
        message_id,
        session_id,
    )
    if row is None:
        raise _not_in_transcript(message_id)
    return str(row[0])


def seq_of(tx: Tx, session_id: str, message_id: str) -> int:
    """Find a message's place in its transcript.

    Raises:
        NotFound: it is not in this transcript.
    """
    row = tx.one("SELECT seq FROM messages WHERE id = ? AND session_id = ?", message_id, session_id)
    if row is None:
        raise _not_in_transcript(message_id)
    return int(row[0])


def _not_in_transcript(message_id: str) -> NotFound:
    return NotFound(
        f"no message {message_id!r} in this session's current transcript: pass an id that history returned",
        messageId=message_id,
    )


def read_from(tx: Tx, session_id: str, seq: int, limit: int) -> list[tuple[int, str]]:
    """Read raw lines from a place, for the transcript file."""
    rows: Sequence[Row] = tx.all(
        "SELECT seq, body FROM messages WHERE session_id = ? AND seq >= ? ORDER BY seq LIMIT ?", session_id, seq, limit
    )
    return [(seq, body) for seq, body in rows]


def last_of_each(tx: Tx, session_ids: Sequence[str], per_session: int, *, with_tools: bool) -> dict[str, list[str]]:
    """Read the last lines of many sessions in one query, each from its n-th last message."""
    if not session_ids:
        return {}
    roles = "" if with_tools else f" AND role <> '{Role.TOOL_RESULT.value}'"
    wanted = dict.fromkeys(session_ids)
    marks = ", ".join("(?)" for _ in wanted)
    rows = tx.all(
        f"WITH wanted(sid) AS (VALUES {marks}) "
        "SELECT session_id, body FROM wanted JOIN messages ON session_id = sid AND seq >= coalesce("
        f"(SELECT seq FROM messages WHERE session_id = sid{roles} ORDER BY seq DESC LIMIT 1 OFFSET ?), 0){roles} "
        "ORDER BY session_id, seq",
        *wanted,
        per_session - 1,
    )
    found: dict[str, list[str]] = {}
    for session_id, body in rows:
        found.setdefault(session_id, []).append(body)
    return found
