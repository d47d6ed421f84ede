"""Budgets: how much of each is spent and on what, and beginning one anew."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backchannel.core.money.amounts import amount_in_unit
from backchannel.core.money.budgets import BudgetSettings, BudgetState, LedgerRow, limit_of
from backchannel.core.records import DAY_MS
from backchannel.core.sessions import Session
from backchannel.core.text import shown_name
from backchannel.core.usage_sums import UsedSum
from backchannel.gateway.calls import Call, method
from backchannel.gateway.openclaw.usage_shapes import show_date
from backchannel.wire.frames import NoParams, TokenScope
from backchannel.wire.shapes import Params
from backchannel.wire.state_answers import (
    BudgetListed,
    BudgetReset,
    BudgetsListed,
    BudgetSubject,
    SpendingShown,
    SpentByAgent,
    SpentByDay,
    SpentByTree,
    SpentSum,
)


class BudgetParams(Params, frozen=True, kw_only=True):
    name: str


class SpendingParams(Params, frozen=True, kw_only=True):
    days: Annotated[int, Meta(ge=1, le=366)] = 30
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


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
        warn_at=budget.warns_at,
        waiting=state.waiting,
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
    return amount_in_unit(amount, budget.unit)


@method("budgets.spending", TokenScope.READ)
async def budgets_spending(call: Call, params: SpendingParams) -> SpendingShown:
    """Shows what runs have cost in the last days: by UTC day, by agent, and by tree of sessions.

    A tree is a session with its sub-agents, and theirs. Agents and trees that cost most come first.
    """
    parts, now = call.parts, call.parts.clock.now_ms()
    since = (now // DAY_MS - params.days + 1) * DAY_MS
    found = await parts.store.spending_by_tree(since=since, until=now + 1, limit=params.limit)
    days, agents = found.sums.together.days, found.sums.agents
    dearest = sorted(agents, key=lambda agent_id: (agents[agent_id].cost, agents[agent_id].tokens), reverse=True)
    return SpendingShown(
        days=[
            SpentByDay(date=show_date(day), **_used(days.get(day, UsedSum())))
            for day in range(since // DAY_MS, now // DAY_MS + 1)
        ],
        agents=[SpentByAgent(agent_id=agent_id, **_used(agents[agent_id])) for agent_id in dearest[: params.limit]],
        trees=[
            SpentByTree(session_key=parts.rows.key(key), name=_name(session), **_used(used))
            for key, session, used in found.trees
        ],
        total=SpentSum(**_used(found.sums.together.total)),
        agents_left_out=max(0, len(agents) - params.limit),
        trees_left_out=found.total - len(found.trees),
        partial=found.sums.is_part,
    )


def _name(session: Session | None) -> str | None:
    return None if session is None else shown_name(session.label or session.display_name)


def _used(used: UsedSum) -> dict[str, Any]:
    return {"usd": used.cost, "tokens": used.tokens, "runs": used.runs, "unpriced": used.unpriced}
