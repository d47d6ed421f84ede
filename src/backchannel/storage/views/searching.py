"""Search in transcripts: the messages with the words of a query, newest first.

The index finds most of them. Messages that wait for the index are read one by one, but only the newest: normally
there are few. While an older state is indexed, the others are left out, and `is_complete` says so.

Conditions on sessions are part of the query. The index also has the owner of each message. A query names the owners
that it may find, so a session that sees little does not read all that others said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backchannel.core.full_text.matches import Match, Matches, RankedMatch, RankedMatches
from backchannel.core.full_text.queries import AFTER_ALL, SearchPlace, SearchQuery, SearchWanted, find_terms
from backchannel.core.full_text.ranking import Ranking, search_text
from backchannel.core.messages import Message, decode_message
from backchannel.core.policy.visibility import VisibleScope
from backchannel.storage.full_text import IndexMatch, agent_owner, session_owner
from backchannel.storage.tx import Row, Tx, marks
from backchannel.storage.units import messages, search_index

WINDOW = 400
_MOST_WINDOWS = 8
MOST_UNINDEXED = 1024
"""How many messages that are not indexed a search reads itself."""
_MOST_OWNERS = 256
_READ_AT_ONCE = 64
_MOST_CHARS = 4 * 1024 * 1024
"""How much of the messages found is read at a time."""
_FIELDS = "m.session_id, m.seq, s.key, s.label, s.display_name, s.session_id, s.kind"
_SESSIONS = "JOIN session_ids i ON i.session_id = m.session_id JOIN sessions s ON s.key = i.key"


def search(tx: Tx, wanted: SearchWanted, *, below: int, limit: int) -> Matches:
    """Find the newest matches below a place."""
    if wanted.keys == ():
        return Matches([], None, True)
    where, values = _conditions(wanted)
    found = _indexed(tx, wanted, where, values, below, limit)
    waiting, is_complete = _waiting(tx, wanted, where, values, below)
    rows = sorted(found + waiting, key=lambda row: -row[0])
    matches = _with_messages(tx, rows[:limit])
    is_cut = len(matches) < len(rows) or len(found) == limit
    return Matches(matches, matches[-1].position if is_cut and matches else None, is_complete)


def ranked(tx: Tx, wanted: SearchWanted, *, place: SearchPlace, since: int | None, limit: int) -> RankedMatches:
    """Find matches behind a place, best first: window after window, and by rank in each.

    A window is the newest matches below a place. So few are ranked, however many there are.
    """
    ranking = Ranking(wanted.query, place.now)
    hits: list[RankedMatch] = []
    is_complete = True
    for _ in range(_MOST_WINDOWS):
        window = search(tx, wanted, below=place.below, limit=WINDOW)
        is_complete &= window.is_complete
        found = [match for match in window.found if match.position >= place.low]
        order = _order(ranking, found, wanted, since, place)
        hits += (taken := order[: limit - len(hits)])
        if len(order) > len(taken):
            top = place.below if place.below < AFTER_ALL else window.found[0].position + 1
            low = place.low or window.found[-1].position
            last = hits[-1]
            return RankedMatches(hits, SearchPlace(top, place.now, low, last.rank, last.match.position), is_complete)
        is_over = since is not None and all(match.message.timestamp < since for match in found)
        if is_over or (window.next_below is None and not place.low):
            return RankedMatches(hits, None, is_complete)
        place = SearchPlace(place.low or window.next_below or 0, place.now)
        if len(hits) == limit:
            break
    return RankedMatches(hits, place, is_complete)


def _order(
    ranking: Ranking, found: Sequence[Match], wanted: SearchWanted, since: int | None, place: SearchPlace
) -> list[RankedMatch]:
    """Put the matches of a window in order, and leave out those up to a place.

    Summaries are left out too: they repeat what was said, and would stand before it.
    """
    all_ranked = [
        RankedMatch(ranking.rank(_text(match.message, wanted), match.message.timestamp), match)
        for match in found
        if match.message.compaction is None and (since is None or match.message.timestamp >= since)
    ]
    all_ranked.sort(key=_place_in_window)
    if place.rank is None or place.position is None:
        return all_ranked
    after = (-place.rank, -place.position)
    return [each for each in all_ranked if _place_in_window(each) > after]


def _place_in_window(each: RankedMatch) -> tuple[float, int]:
    return -each.rank, -each.match.position


def _text(message: Message, wanted: SearchWanted) -> str:
    return search_text(message).text(with_tools=wanted.with_tools)


def search_transcript(tx: Tx, session_id: str, query: SearchQuery, *, before: str | None, limit: int) -> Matches:
    """Find the newest matches in one transcript, or in its part before a message.

    Raises:
        NotFound: `before` is not in this transcript.
    """
    below = AFTER_ALL
    if before is not None:
        seq = messages.seq_of(tx, session_id, before)
        row = tx.one("SELECT position FROM message_order WHERE session_id = ? AND seq = ?", session_id, seq)
        below = below if row is None else int(row[0])
    key = tx.one("SELECT key FROM session_ids WHERE session_id = ?", session_id)
    keys = () if key is None else (str(key[0]),)
    wanted = SearchWanted(query=query, with_tools=True, keys=keys, session_id=session_id)
    return search(tx, wanted, below=below, limit=limit)


def _indexed(tx: Tx, wanted: SearchWanted, where: str, values: list[Any], below: int, limit: int) -> list[Row]:
    match = tx.full_text.match(wanted.query, _owners(tx, wanted), with_tools=wanted.with_tools)
    return _select(tx, match, f"{match.condition} AND {where}", [match.value, *values], below, limit)


def _select(tx: Tx, match: IndexMatch, where: str, values: list[Any], below: int, limit: int) -> list[Row]:
    return tx.all(
        f"SELECT {match.position}, {_FIELDS} FROM {match.source} {_SESSIONS} "
        f"WHERE {where} AND {match.position} < ? ORDER BY {match.position} DESC LIMIT ?",
        *values,
        below,
        limit,
    )


def _waiting(tx: Tx, wanted: SearchWanted, where: str, values: list[Any], below: int) -> tuple[list[Row], bool]:
    """Look through the newest messages that wait for the index."""
    index = tx.full_text
    newest = IndexMatch(index.waiting, "", index.waiting_position, "")
    rows = _select(tx, newest, where, values, below, MOST_UNINDEXED)
    found = [
        row
        for row, match in zip(rows, _with_messages(tx, rows), strict=False)
        if find_terms(_text(match.message, wanted), wanted.query) is not None
    ]
    return found, search_index.count_waiting(tx, MOST_UNINDEXED + 1) <= MOST_UNINDEXED


def _with_messages(tx: Tx, rows: Sequence[Row]) -> list[Match]:
    """Read the messages of rows, in their order, until they have become long."""
    found: list[Match] = []
    chars = 0
    for start in range(0, len(rows), _READ_AT_ONCE):
        part = rows[start : start + _READ_AT_ONCE]
        places = ", ".join("(?, ?)" for _ in part)
        bodies = {
            (session_id, seq): body
            for session_id, seq, body in tx.all(
                f"WITH wanted(sid, place) AS (VALUES {places}) "
                "SELECT session_id, seq, body FROM wanted JOIN messages ON session_id = sid AND seq = place",
                *(value for row in part for value in row[1:3]),
            )
        }
        for row in part:
            found.append(_match(row, bodies[row[1], row[2]]))
        chars += sum(map(len, bodies.values()))
        if chars > _MOST_CHARS:
            break
    return found


def _match(row: Row, body: str) -> Match:
    position, session_id, seq, key, label, display_name, current_id, kind = row
    return Match(
        position, session_id, seq, key, label, display_name, session_id == current_id, kind, decode_message(body)
    )


def _conditions(wanted: SearchWanted) -> tuple[str, list[Any]]:
    """Write the conditions on a message `m`, its transcript `i` and its session `s`."""
    where = ["coalesce(i.end_reason, '') <> 'importing'"]
    values: list[Any] = []
    for condition, given in (
        ("s.key IN ({})", wanted.keys),
        ("s.kind IN ({})", wanted.kinds or None),
        ("m.role IN ({})", wanted.roles or None),
        ("s.agent_id IN ({})", None if wanted.agent_id is None else (wanted.agent_id,)),
        ("m.session_id IN ({})", None if wanted.session_id is None else (wanted.session_id,)),
    ):
        if given is not None:
            where.append(condition.format(marks(given)))
            values += given
    if wanted.is_current:
        where.append("i.session_id = s.session_id")
    if wanted.archived is not None:
        where.append(f"s.archived_at IS {'NOT ' if wanted.archived else ''}NULL")
    if wanted.visible is not None and not wanted.visible.everything:
        seen, own = _visible(wanted.visible)
        where.append(seen)
        values += own
    return " AND ".join(where), values


def _visible(scope: VisibleScope) -> tuple[str, list[Any]]:
    """Write what a caller may read: all transcripts of its own sessions, and the present ones of others.

    Its own are the calling session and the sessions that it spawned.
    """
    own, values = "s.key = ?", [scope.key]
    if scope.spawned_by is not None:
        own += " OR s.spawned_by = ?"
        values.append(scope.spawned_by)
    if not scope.agent_ids:
        return f"({own})", values
    now = "i.session_id = s.session_id AND s.archived_at IS NULL"
    return f"({own} OR (s.agent_id IN ({marks(scope.agent_ids)}) AND {now}))", [*values, *scope.agent_ids]


def _owners(tx: Tx, wanted: SearchWanted) -> list[str]:
    """Name the owners that the conditions leave; empty if there are too many to name."""
    scope = wanted.visible
    if wanted.keys is not None and len(wanted.keys) <= _MOST_OWNERS:
        owners = [*map(session_owner, _transcripts(tx, "i.key", wanted.keys))]
    elif scope is None or scope.everything:
        owners = [] if wanted.agent_id is None else [agent_owner(wanted.agent_id)]
    else:
        owners = [*map(agent_owner, scope.agent_ids), *map(session_owner, _transcripts(tx, "i.key", (scope.key,)))]
        if scope.spawned_by is not None:
            owners += map(session_owner, _transcripts(tx, "s.spawned_by", (scope.spawned_by,)))
    return owners if len(owners) <= _MOST_OWNERS else []


def _transcripts(tx: Tx, column: str, values: Sequence[str | None]) -> list[str]:
    rows = tx.all(
        f"SELECT i.session_id FROM session_ids i JOIN sessions s ON s.key = i.key WHERE {column} IN ({marks(values)}) "
        "LIMIT ?",
        *values,
        _MOST_OWNERS + 1,
    )
    return [session_id for (session_id,) in rows]
