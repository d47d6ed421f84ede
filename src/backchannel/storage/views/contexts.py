"""Transcripts as requests to models need them: from the cut on, or the newest part."""

from __future__ import annotations

from backchannel.core.cut import read_cut
from backchannel.core.messages import Message, Role, decode_message
from backchannel.core.requests import Line, TranscriptPart
from backchannel.core.runs import TranscriptHead
from backchannel.storage.tx import Tx
from backchannel.storage.units import messages

_READ_AT_ONCE = 256


def head(tx: Tx, session_id: str) -> TranscriptHead:
    """Read the row of a transcript."""
    row = tx.one(f"SELECT {messages.HEAD} FROM session_ids WHERE session_id = ?", session_id)
    if row is None:
        raise LookupError(f"no transcript {session_id!r}")
    return TranscriptHead(*row)


def from_cut(tx: Tx, session_id: str, *, max_bytes: int) -> TranscriptPart:
    """Read a transcript from its cut on, or about `max_bytes` of its end.

    It never begins with a tool result. Without its call a result is not shown, and the model would call again.
    """
    found = head(tx, session_id)
    cut = read_cut(found.cut)
    rows: list[tuple[int, str]] = []
    size, before, is_whole, is_split = 0, found.next_seq, False, False
    while (size < max_bytes or is_split) and not is_whole:
        part = tx.all(
            "SELECT seq, body, role FROM messages WHERE session_id = ? AND seq >= ? AND seq < ? "
            "ORDER BY seq DESC LIMIT ?",
            session_id,
            cut.from_seq,
            before,
            messages.FIRST_READ if size >= max_bytes or not rows else _READ_AT_ONCE,
        )
        rows += [(seq, body) for seq, body, _ in part]
        size += sum(len(body) for _, body, _ in part)
        before = part[-1][0] if part else cut.from_seq
        is_whole = before <= cut.from_seq or not part
        is_split = bool(part) and part[-1][2] == Role.TOOL_RESULT
    lines = [(seq, decode_message(body)) for seq, body in reversed(rows)]
    if cut.question_seq is not None:
        lines = lines_between(tx, session_id, cut.question_seq, cut.question_seq + 1) + lines
    summary = None if cut.summary_id is None else messages.find_in(tx, session_id, cut.summary_id)
    return TranscriptPart(found, summary, lines, before, is_whole)


def lines_between(tx: Tx, session_id: str, low: int, high: int) -> list[Line]:
    """Read the messages from one place to before another."""
    rows = tx.all(
        "SELECT seq, body FROM messages WHERE session_id = ? AND seq >= ? AND seq < ? ORDER BY seq",
        session_id,
        low,
        high,
    )
    return [(seq, decode_message(body)) for seq, body in rows]


def own_lines(tx: Tx, session_id: str, run_id: str, message_id: str, before: int) -> list[Line]:
    """Read what a run said and did before a place, from its message on."""
    row = tx.one("SELECT seq FROM messages WHERE id = ? AND session_id = ?", message_id, session_id)
    low = before if row is None else int(row[0])
    own: list[Line] = []
    while low < before:
        high = min(low + _READ_AT_ONCE, before)
        own += [line for line in lines_between(tx, session_id, low, high) if _is_of(line[1], run_id)]
        low = high
    return own


def _is_of(message: Message, run_id: str) -> bool:
    return message.run_id == run_id
