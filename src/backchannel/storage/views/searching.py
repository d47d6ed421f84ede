"""Searching transcripts: each from its end backwards, and a bounded part of them in each call."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from backchannel.core.excerpts import reading_text
from backchannel.core.messages import Message, Role, decode_message
from backchannel.core.text import excerpt_around
from backchannel.storage.tx import Tx
from backchannel.storage.units import messages

_MOST_LOOKED_AT = 5000
_MOST_BYTES = 8 * 1024 * 1024
_READ_AT_ONCE = 16
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


class MatchesOfEach(msgspec.Struct, frozen=True):
    """What was found in several transcripts, each with its session's id, and whether there may be more."""

    found: list[tuple[str, Match]]
    is_cut: bool


class _Effort:
    """How much was looked at so far."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0

    def count(self, body: str) -> None:
        self.messages, self.bytes = self.messages + 1, self.bytes + len(body)

    @property
    def is_enough(self) -> bool:
        return self.messages >= _MOST_LOOKED_AT or self.bytes > _MOST_BYTES


def search(tx: Tx, session_id: str, query: str, *, before: str | None, limit: int) -> Matches:
    """Look for a text in whatever case, in the newest part of a transcript or in the part before a message.

    Raises:
        NotFound: `before` is not in this transcript.
    """
    high = _BEHIND_ALL if before is None else messages.seq_of(tx, session_id, before)
    return _search(tx, session_id, query, high, limit, _Effort())


def search_each(
    tx: Tx, session_ids: Sequence[str], query: str, *, roles: Collection[Role], limit: int
) -> MatchesOfEach:
    """Look for a text in one transcript after the other, in messages of some roles; all together it is bounded."""
    found: list[tuple[str, Match]] = []
    effort = _Effort()
    for session_id in session_ids:
        matches = _search(tx, session_id, query, _BEHIND_ALL, limit - len(found), effort, roles)
        found += [(session_id, match) for match in matches.found]
        if len(found) == limit or effort.is_enough:
            return MatchesOfEach(found, is_cut=matches.last is not None or session_id != session_ids[-1])
    return MatchesOfEach(found, is_cut=False)


def _search(
    tx: Tx,
    session_id: str,
    query: str,
    high: int,
    limit: int,
    effort: _Effort,
    roles: Collection[Role] = tuple(Role),
) -> Matches:
    written = msgspec.json.encode(query)[1:-1].decode().lower()
    found: list[Match] = []
    while True:
        rows = tx.all(
            "SELECT seq, id, body FROM messages WHERE session_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
            session_id,
            high,
            _READ_AT_ONCE,
        )
        for high, message_id, body in rows:
            effort.count(body)
            if written in body.lower() and (match := _match(high, body, query)) and match.message.role in roles:
                found.append(match)
            if len(found) == limit or effort.is_enough:
                return Matches(found, message_id if high > 0 else None)
        if len(rows) < _READ_AT_ONCE:
            return Matches(found, None)


def _match(seq: int, body: str, query: str) -> Match | None:
    """Look closer: the line has names and ids besides what was said."""
    message = decode_message(body)
    excerpt = excerpt_around(reading_text(message), query)
    return None if excerpt is None else Match(seq, message, excerpt)
