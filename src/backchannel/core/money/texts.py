"""Texts about budgets: refusals, questions, warnings."""

from __future__ import annotations

from backchannel.core.compaction.telling import show_time
from backchannel.core.money.amounts import Amount
from backchannel.core.money.budgets import (
    BudgetSettings,
    BudgetState,
    BudgetUnit,
    BudgetWindow,
    LedgerRow,
    limit_of,
    spent_share,
)
from backchannel.errors import BudgetExceeded

_PER = {"hour": "this hour", "day": "today", "month": "this month", "total": "in all"}


def show_amount(value: int, unit: BudgetUnit) -> str:
    """Write an amount for people: dollars with as many digits as small ones need."""
    if unit != "usd":
        word = unit.removesuffix("s") if value == 1 else unit
        return f"{value:,} {word}"
    dollars = value / 1_000_000
    return f"${dollars:,.2f}" if dollars >= 1 or value % 10_000 == 0 else f"${dollars:.6f}".rstrip("0")


def used_up(window: BudgetWindow, row: LedgerRow, now: int) -> BudgetExceeded:
    """Refuse a message for which nothing is left."""
    return _refusal(window, row, f"{_state(window, row)}: nothing is left", now)


def exceeded(window: BudgetWindow, row: LedgerRow, call: Amount, now: int) -> BudgetExceeded:
    """Refuse a call that does not fit into what is left."""
    budget = window.budget
    if budget.unit == "runs":
        return used_up(window, row, now)
    most = call.usd if budget.unit == "usd" else call.tokens
    needs = f"the next call may need up to {show_amount(most, budget.unit)}"
    return _refusal(window, row, f"{_state(window, row)}, and {needs}", now)


def _refusal(window: BudgetWindow, row: LedgerRow, why: str, now: int) -> BudgetExceeded:
    denied = " and its owners denied more" if row.denied else ""
    if window.end is None:
        opens = f"it opens again by `backchannel budgets reset {window.budget.name}` or a higher limit"
        return BudgetExceeded(f"{why}{denied}; {opens}", budget=window.budget.name)
    at = show_time(window.end)
    return BudgetExceeded(
        f"{why}{denied}; it opens again at {at}",
        budget=window.budget.name,
        opensAt=window.end,
        retryAfterMs=max(0, window.end - now),
    )


def _state(window: BudgetWindow, row: LedgerRow) -> str:
    """Say how much of a budget is spent. Calls under way are not, as they may cost less."""
    budget = window.budget
    spent = row.used(budget.unit) - row.open(budget.unit)
    whose = f" of {window.subject}" if window.subject else ""
    of = f"{show_amount(max(0, spent), budget.unit)} of {show_amount(limit_of(budget, row), budget.unit)}"
    return f"the budget {budget.name}{whose} has spent {of} {_PER[budget.per.value]}"


def problem_text(state: BudgetState, row: LedgerRow) -> str:
    """Write how much the fullest subject of a budget has spent, and when the budget opens again."""
    budget = state.budget
    others = sum(each is not row and spent_share(budget, each) >= budget.warns_at for each in state.rows)
    told = _state(BudgetWindow(row.id, budget, row.subject, state.start, state.end), row)
    more = f", and {others} {'other is' if others == 1 else 'others are'} near the limit" if others > 0 else ""
    opens = "" if state.end is None else f"; it begins anew at {show_time(state.end)}"
    return f"{told[0].upper()}{told[1:]}{more}{opens}."


def refused_text(error: BudgetExceeded) -> str:
    """Write what a chat is told, once, when a message is refused. Amounts are for owners."""
    opens = error.details.get("opensAt")
    when = f" until {show_time(int(opens))}" if opens else ""
    return f"The budget {error.details['budget']} is used up{when}, so this message was not taken."


def question_text(question_id: str, budget: BudgetSettings, subject: str, row: LedgerRow) -> str:
    """Write the question that owners are asked."""
    whose = f" of {subject}" if subject else ""
    spent = show_amount(max(0, row.used(budget.unit) - row.open(budget.unit)), budget.unit)
    limit = show_amount(limit_of(budget, row), budget.unit)
    more = show_amount(budget.limit, budget.unit)
    return (
        f"The budget {budget.name}{whose} has spent {spent} of {limit} {_PER[budget.per.value]}, and a run waits.\n"
        f"/approve {question_id} grants {more} more, /deny {question_id} ends what waits for it."
    )


def warning_text(budget: BudgetSettings, row: LedgerRow) -> str:
    """Write what owners are told when much of a budget is spent."""
    whose = f" of {row.subject}" if row.subject else ""
    spent = show_amount(max(0, row.used(budget.unit) - row.open(budget.unit)), budget.unit)
    then = {"ask": "then I ask you", "stop": "then runs stop", "warn": "nothing stops"}[budget.then.value]
    limit = show_amount(limit_of(budget, row), budget.unit)
    return f"The budget {budget.name}{whose} has spent {spent} of {limit} {_PER[budget.per.value]}; {then}."
