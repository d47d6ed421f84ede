"""Search in transcripts: each from its end backwards, a bounded part in each call."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from backchannel.core.excerpts import reading_text
from backchannel.core.messages import Message, Role, decode_message
from backchannel.core.text import excerpt_around
from backchannel.storage.full_text import SearchEffort
from backchannel.storage.tables import MESSAGES
from backchannel.storage.tx import Tx, required
from backchannel.storage.units import messages

_AFTER_ALL = 1 << 62


class Match(msgspec.Struct, frozen=True):
    """A message that contains the text, and its place."""

    seq: int
    message: Message
    excerpt: str


class Matches(msgspec.Struct, frozen=True):
    """Matches, newest first; `last` is the message to continue before, if there is more to search."""

    found: list[Match]
    last: str | None


class MatchesOfEach(msgspec.Struct, frozen=True):
    """Matches in several transcripts, each with its session id, and whether there may be more."""

    found: list[tuple[str, Match]]
    is_cut: bool


def search(tx: Tx, session_id: str, query: str, *, before: str | None, limit: int) -> Matches:
    """Search for a text, in any case, in a transcript or in the part before a message.

    Raises:
        NotFound: `before` is not in this transcript.
    """
    below = _AFTER_ALL if before is None else messages.seq_of(tx, session_id, before)
    effort = SearchEffort()
    found = _search(tx, session_id, query, below, limit, effort)
    if effort.reached is None:
        return Matches(found, None)
    last = tx.one("SELECT id FROM messages WHERE session_id = ? AND seq = ?", session_id, effort.reached)
    return Matches(found, str(required(last)[0]))


def search_each(
    tx: Tx, session_ids: Sequence[str], query: str, *, roles: Collection[Role], limit: int
) -> MatchesOfEach:
    """Search transcripts one after the other, in messages of some roles; one bound holds for all together."""
    found: list[tuple[str, Match]] = []
    effort = SearchEffort()
    for session_id in session_ids:
        matches = _search(tx, session_id, query, _AFTER_ALL, limit - len(found), effort, roles)
        found += [(session_id, match) for match in matches]
        if len(found) == limit or effort.is_spent:
            return MatchesOfEach(found, is_cut=effort.reached is not None or session_id != session_ids[-1])
    return MatchesOfEach(found, is_cut=False)


def _search(
    tx: Tx,
    session_id: str,
    query: str,
    below: int,
    limit: int,
    effort: SearchEffort,
    roles: Collection[Role] = tuple(Role),
) -> list[Match]:
    found: list[Match] = []
    for seq, body in tx.search(MESSAGES, query, session_id, below, effort):
        message = decode_message(body)
        excerpt = excerpt_around(reading_text(message), query)  # the row has names and ids besides what was said
        if excerpt is not None and message.role in roles:
            found.append(Match(seq, message, excerpt))
            if len(found) == limit:
                break
    return found
