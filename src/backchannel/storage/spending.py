"""What runs have used of models, by days."""

from __future__ import annotations

from typing import Any

from backchannel.core.records import DAY_MS, DayUsed, Spending
from backchannel.storage.tx import Row, Tx, required

MOST = 100_000
"""How many runs are looked at, the newest: no index finds them by their time, and one would cost every run."""


def look(tx: Tx, *, since: int, until: int, agent_id: str | None = None, most: int = MOST) -> Spending:
    """Add up what the runs used that were accepted in a time, of one agent or of all, by days of UTC."""
    (newest,) = required(tx.one("SELECT max(position) FROM runs"))
    after = (newest or 0) - most
    where = "position > ? AND accepted_at >= ? AND accepted_at < ?"
    values: list[Any] = [after, since, until]
    if agent_id is not None:
        where += " AND session_key >= ? AND session_key < ?"
        values += [f"agent:{agent_id}:", f"agent:{agent_id};"]  # the character after the colon: all its keys
    rows = tx.all(
        f"SELECT accepted_at / {DAY_MS}, sum(tokens_in), sum(tokens_out), sum(coalesce(cost, 0)), "
        "sum(CASE WHEN cost IS NULL AND tokens_in + tokens_out > 0 THEN 1 ELSE 0 END) "
        f"FROM runs WHERE {where} GROUP BY 1 ORDER BY 1",
        *values,
    )
    left_out = tx.one("SELECT accepted_at FROM runs WHERE position <= ? ORDER BY position DESC LIMIT 1", after)
    return Spending([_day(row) for row in rows], is_part=left_out is not None and left_out[0] >= since)


def _day(row: Row) -> DayUsed:
    number, tokens_in, tokens_out, cost, unpriced = row
    return DayUsed(int(number), int(tokens_in), int(tokens_out), float(cost), int(unpriced))
