"""Budgets as people see them: the current windows, the fullest first."""

from __future__ import annotations

from backchannel.core.money.budgets import BudgetSettings, BudgetState
from backchannel.storage.tables import BUDGET_WINDOWS
from backchannel.storage.tx import Tx, required

MOST_SUBJECTS = 50
"""How many subjects of one budget are listed."""


def current(tx: Tx, most: int = MOST_SUBJECTS) -> list[BudgetState]:
    """List the budgets, each with its current windows."""
    rules = tx.rules.budgets
    return (
        []
        if rules is None
        else [_state(tx, budget, *rules.period(budget.per, tx.now), most) for budget in rules.budgets]
    )


def _state(tx: Tx, budget: BudgetSettings, start: int, end: int | None, most: int) -> BudgetState:
    where = "FROM budget_windows WHERE budget = ? AND start_at = ?"
    (count,) = required(tx.one(f"SELECT count(*) {where}", budget.name, start))
    # Only the unit of the budget decides which are fullest. Grants are few, and change little.
    fullest = f"SELECT {BUDGET_WINDOWS.fields} {where} ORDER BY {budget.unit} DESC, id LIMIT ?"
    rows = [BUDGET_WINDOWS.read(row) for row in tx.all(fullest, budget.name, start, most)]
    return BudgetState(budget, start, end, rows, int(count))
