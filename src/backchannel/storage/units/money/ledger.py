"""The ledger: one row for each budget, subject and window of time.

A call is charged at its highest cost before it begins, and corrected with its reply. What is not corrected stays
charged, so a crash can only count too much. The `open_` columns say how much of it may still be given back. Each row
counts dollars, tokens and runs, so one statement serves all budgets of a call.

Several gateways change the same rows. `Tx.lock_ledger` lets their transactions do so one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from backchannel.core.money.amounts import Amount, Reservation
from backchannel.core.money.budgets import BudgetRules, BudgetWindow, LedgerRow, is_to_warn
from backchannel.storage.events import BudgetNearlySpent
from backchannel.storage.tables import BUDGET_WINDOWS
from backchannel.storage.tx import Tx, marks

_CHARGED = ("id", "budget", "subject", "start_at", "usd", "tokens", "runs", "open_usd", "open_tokens", "touched_at")
_SUMS = ("usd", "tokens", "runs", "open_usd", "open_tokens")


@cache
def _charge_sql(count: int) -> str:
    values = ", ".join(f"({marks(_CHARGED)})" for _ in range(count))
    sums = ", ".join(f"{name} = budget_windows.{name} + excluded.{name}" for name in _SUMS)
    return (
        f"INSERT INTO budget_windows ({', '.join(_CHARGED)}) VALUES {values} "
        f"ON CONFLICT (id) DO UPDATE SET {sums}, touched_at = excluded.touched_at {BUDGET_WINDOWS.returning}"
    )


def charge(tx: Tx, windows: Sequence[BudgetWindow], amount: Amount) -> list[tuple[BudgetWindow, LedgerRow]]:
    """Charge a call to its windows, and return each with its row afterwards."""
    if not windows:
        return []
    tx.lock_ledger()
    usd, tokens, runs = amount
    values = [
        value
        for w in windows
        for value in (w.id, w.budget.name, w.subject, w.start, usd, tokens, runs, usd, tokens, tx.now)
    ]
    rows = {row.id: row for row in map(BUDGET_WINDOWS.read, tx.all(_charge_sql(len(windows)), *values))}
    return [(window, rows[window.id]) for window in windows]


@cache
def _correct_sql(count: int, *, returns: bool) -> str:
    return (
        "UPDATE budget_windows SET usd = usd + ?, tokens = tokens + ?, runs = runs + ?, open_usd = open_usd - ?, "
        f"open_tokens = open_tokens - ?, touched_at = ? WHERE id IN ({marks(range(count))}) "
        f"{BUDGET_WINDOWS.returning if returns else ''}"
    )


def correct(tx: Tx, ids: Sequence[str], charged: Amount, used: Amount, *, is_near: bool = False) -> None:
    """Close a charge: it was `charged` so much, and `used` is what counts. `is_near`: owners may have to be told."""
    if not ids:
        return
    tx.lock_ledger()
    more = (used.usd - charged.usd, used.tokens - charged.tokens, used.runs - charged.runs)
    values = (*more, charged.usd, charged.tokens, tx.now, *ids)
    rules = tx.rules.budgets
    if rules is None or not is_near:
        tx.run(_correct_sql(len(ids), returns=False), *values)
    else:
        _warn(tx, rules, map(BUDGET_WINDOWS.read, tx.all(_correct_sql(len(ids), returns=True), *values)))


def _warn(tx: Tx, rules: BudgetRules, rows: Iterable[LedgerRow]) -> None:
    for row in rows:
        budget = rules.named(row.budget)
        if budget is not None and is_to_warn(budget, row):
            tx.run("UPDATE budget_windows SET warned = 1 WHERE id = ?", row.id)
            tx.happened(BudgetNearlySpent(budget, row))


def settle(tx: Tx, made: Reservation, used: Amount | None) -> None:
    """Count what a reserved call has really cost; None if that is not known: then all of it counts."""
    charged = made.amount
    correct(tx, made.windows, charged, charged if used is None else used._replace(runs=0), is_near=made.is_near)


def give_back(tx: Tx, made: Reservation) -> None:
    """Give back a reservation for which nothing was billed."""
    correct(tx, made.windows, made.amount, Amount())


def rows_of(tx: Tx, windows: Sequence[BudgetWindow]) -> list[tuple[BudgetWindow, LedgerRow]]:
    """Read the rows of windows; a window without one has nothing counted, and is left out."""
    if not windows:
        return []
    found = tx.all(f"{BUDGET_WINDOWS.select} WHERE id IN ({marks(windows)})", *[window.id for window in windows])
    rows = {row.id: row for row in map(BUDGET_WINDOWS.read, found)}
    return [(window, rows[window.id]) for window in windows if window.id in rows]


def find(tx: Tx, window_id: str) -> LedgerRow | None:
    row = tx.one(f"{BUDGET_WINDOWS.select} WHERE id = ?", window_id)
    return None if row is None else BUDGET_WINDOWS.read(row)
