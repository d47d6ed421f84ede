"""Lists of exchanges, and the map of sessions that talk.

Each query uses an index and stops at a limit, so that a list costs the same for any history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backchannel.core.commands.control_words import CONTROL_WORDS
from backchannel.core.flows.exchange_values import ExchangePlace, ExchangeRecord, ExchangeState, Talk, TalkMap
from backchannel.core.flows.spawn_values import SpawnOutcome
from backchannel.core.stored import StoredForm
from backchannel.storage.tx import Tx, marks, required
from backchannel.storage.units import sessions
from backchannel.storage.units.flows import exchanges

MOST_FLOWS = 5000
"""The most exchanges, and the most spawns, that the map counts, newest first."""


def page(
    tx: Tx,
    *,
    session_key: str | None = None,
    states: Sequence[ExchangeState] = (),
    after: ExchangePlace | None = None,
    limit: int,
) -> list[ExchangeRecord]:
    """List exchanges after `after`, newest first.

    A `session_key` selects those of a requester or target; `states` those in one of these states.
    """
    where, values = "1 = 1", []
    if after is not None:
        where, values = "(created_at, id) < (?, ?)", [after.created_at, after.id]
    if states:
        where += f" AND state IN ({marks(states)})"
        values += [state.value for state in states]
    if states and ExchangeState.DONE not in states:
        where += " AND state <> 'done'"  # the condition of the partial index, which is not used without it
    rows = _newest(tx, session_key, where, values, limit)
    return [exchanges.story(tx, exchange_id) for exchange_id, _ in rows]


def _newest(tx: Tx, key: str | None, where: str, values: list[Any], limit: int) -> list[tuple[Any, ...]]:
    """Find the newest matching ids.

    A session needs two queries, one a role: no index covers both columns.
    """
    if key is None:
        newest = f"SELECT id, created_at FROM exchanges WHERE {where} ORDER BY created_at DESC, id DESC LIMIT ?"
        return tx.all(newest, *values, limit)
    sides = [
        f"SELECT * FROM (SELECT id, created_at FROM exchanges WHERE {side} = ? AND {where} "
        "ORDER BY created_at DESC, id DESC LIMIT ?) AS newest"
        for side in ("requester_key", "target_key")
    ]
    given = (key, *values, limit)
    return tx.all(f"{' UNION '.join(sides)} ORDER BY created_at DESC, id DESC LIMIT ?", *given, *given, limit)


def talk_map(tx: Tx, since: int) -> TalkMap:
    """Count the sends, spawns and replies between sessions since a time; also loads the sessions.

    The map says if there were more than it counts (`MOST_FLOWS`).
    """
    (count,) = required(
        tx.one(
            "SELECT count(*) FROM (SELECT 1 FROM exchanges WHERE created_at >= ? LIMIT ?) AS newest",
            since,
            MOST_FLOWS + 1,
        )
    )
    spawned, has_more_spawns = _spawns(tx, since)
    talks = _joined([*_sends(tx, since), *spawned])
    keys = dict.fromkeys(key for talk in talks for key in (talk.requester, talk.target) if key is not None)
    found = {key: session for key in keys if (session := sessions.find(tx, key)) is not None}
    return TalkMap(talks, found, has_more_spawns or int(count) > MOST_FLOWS)


def _sends(tx: Tx, since: int) -> list[Talk]:
    """Count exchanges by requester and target. A reply is a run of the target with more than a control word."""
    silent = ", ".join(f"'{word}'" for word in CONTROL_WORDS)
    rows = tx.all(
        "SELECT e.requester_key, e.target_key, count(DISTINCT e.id), max(e.updated_at), sum(r.cost), "
        "sum(CASE WHEN r.session_key = e.target_key AND r.kind IN ('primary', 'turn') AND r.state = 'ok' "
        f"AND trim(coalesce(r.reply, '')) NOT IN ('', {silent}) THEN 1 ELSE 0 END) "
        "FROM (SELECT id, requester_key, target_key, updated_at FROM exchanges WHERE created_at >= ? "
        "ORDER BY created_at DESC, id DESC LIMIT ?) e LEFT JOIN runs r ON r.exchange_id = e.id GROUP BY 1, 2",
        since,
        MOST_FLOWS,
    )
    return [
        Talk(requester=asker, target=asked, sends=sends, last_at=last_at, cost=cost, replies=replies)
        for asker, asked, sends, last_at, cost, replies in rows
    ]


class _Outcome(msgspec.Struct):
    """The one field of a stored spawn that the map needs; the rest is not decoded."""

    outcome: SpawnOutcome | None = None


_STORED_OUTCOME: StoredForm[_Outcome] = StoredForm(_Outcome)


def _spawns(tx: Tx, since: int) -> tuple[list[Talk], bool]:
    """Read the newest spawns, each as a `Talk`, and whether there are more. A posted result counts as the reply."""
    rows = tx.all(
        "SELECT s.requester_key, s.child_key, s.updated_at, s.body, (SELECT sum(cost) FROM runs WHERE spawn_id = s.id) "
        "FROM spawns s WHERE s.created_at >= ? ORDER BY s.created_at DESC, s.id DESC LIMIT ?",
        since,
        MOST_FLOWS + 1,
    )
    talks = [
        Talk(
            requester=parent,
            target=child,
            spawns=1,
            replies=int(_STORED_OUTCOME.read(body).outcome is SpawnOutcome.POSTED),
            last_at=at,
            cost=cost,
        )
        for parent, child, at, body, cost in rows[:MOST_FLOWS]
    ]
    return talks, len(rows) > MOST_FLOWS


def _joined(talks: Sequence[Talk]) -> list[Talk]:
    """Add up talks with the same requester and target, newest first."""
    joined: dict[tuple[str | None, str], Talk] = {}
    for talk in talks:
        pair = (talk.requester, talk.target)
        known = joined.get(pair)
        joined[pair] = talk if known is None else _added(known, talk)
    return sorted(joined.values(), key=lambda talk: talk.last_at, reverse=True)


def _added(one: Talk, other: Talk) -> Talk:
    costs = [cost for cost in (one.cost, other.cost) if cost is not None]
    return Talk(
        requester=one.requester,
        target=one.target,
        sends=one.sends + other.sends,
        replies=one.replies + other.replies,
        spawns=one.spawns + other.spawns,
        last_at=max(one.last_at, other.last_at),
        cost=sum(costs) if costs else None,
    )
