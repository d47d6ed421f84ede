"""Searching a transcript: from its end backwards, a bounded part of it in each call."""

from __future__ import annotations

import msgspec

from backchannel.core.excerpts import reading_text
from backchannel.core.messages import Message, decode_message
from backchannel.core.text import excerpt_around
from backchannel.storage import messages
from backchannel.storage.tx import Tx

MOST_LOOKED_AT = 5000
MOST_BYTES = 8 * 1024 * 1024
READ_AT_ONCE = 16
_BEHIND_ALL = 1 << 62


class Match(msgspec.Struct, frozen=True):
    """A message that has what was looked for, and its place."""

    seq: int
    message: Message
    excerpt: str


class Matches(msgspec.Struct, frozen=True):
    """What was found, newest first; `last` is the message to go on before, if there is more to look at."""

    found: list[Match]
    last: str | None


def search(tx: Tx, session_id: str, query: str, *, before: str | None, limit: int) -> Matches:
    """Look for a text in whatever case, in the newest part of a transcript or in the part before a message.

    Raises:
        NotFound: `before` is not in this transcript.
    """
    high = _BEHIND_ALL if before is None else messages.seq_of(tx, session_id, before)
    written = msgspec.json.encode(query)[1:-1].decode().lower()
    found: list[Match] = []
    looked_at = size = 0
    while True:
        rows = tx.all(
            "SELECT seq, id, body FROM messages WHERE session_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
            session_id,
            high,
            READ_AT_ONCE,
        )
        for high, message_id, body in rows:
            looked_at, size = looked_at + 1, size + len(body)
            if written in body.lower() and (match := _match(high, body, query)) is not None:
                found.append(match)
            if len(found) == limit or looked_at == MOST_LOOKED_AT or size > MOST_BYTES:
                return Matches(found, message_id if high > 0 else None)
        if len(rows) < READ_AT_ONCE:
            return Matches(found, None)


def _match(seq: int, body: str, query: str) -> Match | None:
    """Look closer: the line has names and ids besides what was said."""
    message = decode_message(body)
    excerpt = excerpt_around(reading_text(message), query)
    return None if excerpt is None else Match(seq, message, excerpt)
