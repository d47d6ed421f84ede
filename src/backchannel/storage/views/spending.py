"""Spending: tokens and cost of runs, by day and by session."""

from __future__ import annotations

from typing import Any

from backchannel.core.records import DAY_MS, DayUsed, SpendingByDay
from backchannel.core.sessions import Session
from backchannel.core.usage_sums import UsedBySession, UsedTogether, sum_up
from backchannel.storage.tx import Row, Tx, required
from backchannel.storage.units import sessions

_MOST = 100_000
"""The most runs that are read, newest first: no index finds runs by time, and one would slow every run."""
_UNPRICED = "sum(CASE WHEN cost IS NULL AND tokens_in + tokens_out > 0 THEN 1 ELSE 0 END)"


def look(tx: Tx, *, since: int, until: int, agent_id: str | None = None, most: int = _MOST) -> SpendingByDay:
    """Add up the usage of runs accepted in a time, by days of UTC."""
    where, values, is_part = _within(tx, since, until, agent_id, most)
    rows = tx.all(
        f"SELECT accepted_at / {DAY_MS}, sum(tokens_in), sum(tokens_out), sum(coalesce(cost, 0)), {_UNPRICED} "
        f"FROM runs WHERE {where} GROUP BY 1 ORDER BY 1",
        *values,
    )
    return SpendingByDay([_day(row) for row in rows], is_part=is_part)


def look_by_session(
    tx: Tx,
    *,
    since: int,
    until: int,
    agent_id: str | None = None,
    session_key: str | None = None,
    limit: int,
    most: int = _MOST,
) -> tuple[UsedBySession, list[Session]]:
    """Add up the same by session too; also loads the last used sessions, archived ones too."""
    where, values, is_part = _within(tx, since, until, agent_id, most)
    if session_key is not None:
        where, values = f"{where} AND session_key = ?", [*values, session_key]
    rows = tx.all(
        f"SELECT session_key, accepted_at / {DAY_MS}, coalesce(answered_by, ''), count(*), "
        "sum(CASE WHEN state IN ('error', 'timeout') THEN 1 ELSE 0 END), "
        f"sum(tokens_in), sum(tokens_out), sum(coalesce(cost, 0)), {_UNPRICED}, "
        f"min(accepted_at), max(coalesce(ended_at, accepted_at)) FROM runs WHERE {where} GROUP BY 1, 2, 3",
        *values,
    )
    sums = sum_up((_together(row) for row in rows), is_part=is_part)
    newest = sorted(sums.sessions, key=lambda key: sums.sessions[key].last or 0, reverse=True)[:limit]
    loaded = (sessions.find(tx, key) for key in newest)
    return sums, [session for session in loaded if session is not None]


def _within(tx: Tx, since: int, until: int, agent_id: str | None, most: int) -> tuple[str, list[Any], bool]:
    """Select the runs to read; also returns whether there were more."""
    (newest,) = required(tx.one("SELECT max(position) FROM runs"))
    after = (newest or 0) - most
    where = "position > ? AND accepted_at >= ? AND accepted_at < ?"
    values: list[Any] = [after, since, until]
    if agent_id is not None:
        where += " AND session_key >= ? AND session_key < ?"
        values += [f"agent:{agent_id}:", f"agent:{agent_id};"]  # the character after the colon: all its keys
    left_out = tx.one("SELECT accepted_at FROM runs WHERE position <= ? ORDER BY position DESC LIMIT 1", after)
    return where, values, left_out is not None and left_out[0] >= since


def _together(row: Row) -> UsedTogether:
    key, day, model, runs, failed, tokens_in, tokens_out, cost, unpriced, first, last = row
    numbers = (int(runs), int(failed), int(tokens_in), int(tokens_out), float(cost), int(unpriced))
    return UsedTogether(key, int(day), model, *numbers, int(first), int(last))


def _day(row: Row) -> DayUsed:
    number, tokens_in, tokens_out, cost, unpriced = row
    return DayUsed(int(number), int(tokens_in), int(tokens_out), float(cost), int(unpriced))
