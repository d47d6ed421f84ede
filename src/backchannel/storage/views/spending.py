"""Spending: usage of runs by day, session and tree, and the state of budgets."""

from __future__ import annotations

from collections import Counter
from typing import Any

from backchannel.core.money.amounts import awaited_budget
from backchannel.core.money.budgets import BudgetSettings, BudgetState, Period
from backchannel.core.records import DAY_MS, DayUsed, SpendingByDay
from backchannel.core.sessions import Session
from backchannel.core.usage_sums import UsedBySession, UsedByTree, UsedSum, UsedTogether, sum_up
from backchannel.storage.tables import BUDGET_WINDOWS
from backchannel.storage.tx import Row, Tx, marks, required
from backchannel.storage.units import sessions

_MOST = 100_000
"""The most runs that are read, newest first: no index finds runs by time, and one would slow every run."""
_MOST_SUBJECTS = 50
"""How many subjects of one budget are listed."""
_AT_ONCE = 500
"""How many parents are looked up by one statement."""
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


def look_by_tree(tx: Tx, *, since: int, until: int, limit: int) -> UsedByTree:
    """Add up the same by tree: a session together with its sub-agents, and theirs. The dearest come first."""
    sums, _ = look_by_session(tx, since=since, until=until, limit=0)
    roots = _roots(tx, list(sums.sessions))
    trees: dict[str, UsedSum] = {}
    for key, used in sums.sessions.items():
        trees.setdefault(roots[key], UsedSum()).add(used.total)
    dearest = sorted(trees, key=lambda key: (trees[key].cost, trees[key].tokens), reverse=True)[:limit]
    found = ((key, sessions.find(tx, key), trees[key]) for key in dearest)
    return UsedByTree(sums, list(found), len(trees))


def _roots(tx: Tx, keys: list[str]) -> dict[str, str]:
    """Find the top of the tree of each session. One that was deleted is the top of what it left."""
    tops, parents, open_ = {key: key for key in keys}, dict[str, str](), set(keys)
    while open_:
        asked = sorted(open_)
        found: dict[str, str] = {}
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            found |= tx.all(
                f"SELECT key, spawned_by FROM sessions WHERE spawned_by IS NOT NULL AND key IN ({marks(some)})", *some
            )
        parents |= found
        open_ = set(found.values()) - parents.keys() - tops.keys()
    for key in keys:
        while (parent := parents.get(tops[key])) is not None:
            tops[key] = parent
    return tops


def budgets(tx: Tx, most: int = _MOST_SUBJECTS) -> list[BudgetState]:
    """List the budgets, each with its current windows, the fullest first."""
    rules = tx.rules.budgets
    if rules is None:
        return []
    held = tx.all("SELECT reserved FROM runs WHERE state = 'running' AND reserved IS NOT NULL")
    waiting = Counter(awaited_budget(reserved) for (reserved,) in held)
    return [
        _state(tx, budget, rules.period(budget.per, tx.now), most, waiting[budget.name]) for budget in rules.budgets
    ]


def _state(tx: Tx, budget: BudgetSettings, period: Period, most: int, waiting: int) -> BudgetState:
    where, unit = "FROM budget_windows WHERE budget = ? AND start_at = ?", budget.unit
    open_ = "0" if unit == "runs" else f"coalesce(sum(open_{unit}), 0)"
    sums = f"SELECT count(*), coalesce(sum({unit}), 0), {open_} {where}"
    count, used, held = required(tx.one(sums, budget.name, period.start))
    # Only the unit of the budget decides which are fullest. Grants are few, and change little.
    fullest = f"SELECT {BUDGET_WINDOWS.fields} {where} ORDER BY {unit} DESC, id LIMIT ?"
    rows = [BUDGET_WINDOWS.read(row) for row in tx.all(fullest, budget.name, period.start, most)]
    return BudgetState(budget, *period, rows, int(count), int(used) - int(held), int(held), waiting)


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
