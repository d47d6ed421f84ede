"""Budgets: how much of each is spent, and beginning one anew."""

from __future__ import annotations

from backchannel.core.money.budgets import BudgetSettings, BudgetState, LedgerRow, limit_of
from backchannel.gateway.calls import Call, method
from backchannel.wire.frames import NoParams, TokenScope
from backchannel.wire.shapes import Params
from backchannel.wire.state_answers import BudgetListed, BudgetReset, BudgetsListed, BudgetSubject


class BudgetParams(Params, frozen=True, kw_only=True):
    name: str


@method("budgets.list", TokenScope.READ)
async def budgets_list(call: Call, params: NoParams) -> BudgetsListed:
    """Lists the budgets with what is spent in their current windows, the fullest subjects first."""
    states = await call.parts.store.budgets()
    return BudgetsListed(budgets=[_shown(call, state) for state in states])


@method("budgets.reset", TokenScope.ADMIN)
async def budgets_reset(call: Call, params: BudgetParams) -> BudgetReset:
    """Begins the current windows of a budget anew. Calls under way still count."""
    await call.parts.store.reset_budget(params.name)
    return BudgetReset(ok=True, name=params.name)


def _shown(call: Call, state: BudgetState) -> BudgetListed:
    budget = state.budget
    return BudgetListed(
        name=budget.name,
        scope=budget.scope.value,
        per=budget.per.value,
        then=budget.then.value,
        unit=budget.unit,
        limit=_value(budget, budget.limit),
        since=state.start or None,
        opens_at=state.end,
        subjects=[_subject(call, budget, row) for row in state.rows],
        has_more=state.subjects > len(state.rows),
    )


def _subject(call: Call, budget: BudgetSettings, row: LedgerRow) -> BudgetSubject:
    open_ = row.open(budget.unit)
    is_key = budget.scope.value == "session"
    return BudgetSubject(
        subject=call.parts.rows.key(row.subject) if is_key else row.subject,
        spent=_value(budget, row.used(budget.unit) - open_),
        reserved=_value(budget, open_),
        limit=_value(budget, limit_of(budget, row)),
        granted=row.granted,
        denied=row.denied,
    )


def _value(budget: BudgetSettings, amount: int) -> float:
    """Show an amount in the unit of its budget: dollars, tokens or runs."""
    return amount / 1_000_000 if budget.unit == "usd" else amount
