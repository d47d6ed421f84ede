"""What models have used and cost, as OpenClaw's clients ask for it; the figures are those of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from msgspec import Meta

from backchannel.core.records import DAY_MS, DayUsed
from backchannel.gateway.addressing import known_agent
from backchannel.gateway.ws.connections import Call, Method
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, SharedParams

_DAYS, _MOST_DAYS = 30, 3660


class UsageCostParams(SharedParams, frozen=True, kw_only=True):
    days: Annotated[int, Meta(ge=1, le=_MOST_DAYS)] = _DAYS
    agent_id: str | None = None
    agent_scope: Literal["all"] | None = None


class UsageSpent(Answer, frozen=True, kw_only=True, omit_defaults=False):
    input: int
    output: int
    total_tokens: int
    total_cost: float
    missing_cost_entries: int


class SpentOnDay(UsageSpent, frozen=True, kw_only=True, omit_defaults=False):
    date: str


class UsageCost(Answer, frozen=True, kw_only=True):
    updated_at: int
    days: int
    daily: list[SpentOnDay]
    totals: UsageSpent
    partial: bool | None = None


class UsageStatus(Answer, frozen=True, kw_only=True, omit_defaults=False):
    updated_at: int
    providers: tuple[()] = ()


async def usage_cost(call: Call, params: UsageCostParams) -> UsageCost:
    """Tells what the runs of an agent, or of all, have used and cost in the last days, which are those of UTC."""
    parts, now = call.parts, call.parts.clock.now_ms()
    agent = None
    if params.agent_scope is None:
        agent = parts.agents.default_id if params.agent_id is None else known_agent(parts, params.agent_id)
    since = (now // DAY_MS - params.days + 1) * DAY_MS
    found = await parts.store.spending(since=since, until=now + 1, agent_id=agent)
    return UsageCost(
        updated_at=now,
        days=params.days,
        daily=[SpentOnDay(date=_date(day), **_added([day])) for day in found.days],
        totals=UsageSpent(**_added(found.days)),
        partial=found.is_part or None,
    )


def _date(day: DayUsed) -> str:
    return datetime.fromtimestamp(day.number * DAY_MS // 1000, UTC).date().isoformat()


def _added(days: Sequence[DayUsed]) -> dict[str, Any]:
    used_in, out = sum(day.tokens_in for day in days), sum(day.tokens_out for day in days)
    return {
        "input": used_in,
        "output": out,
        "total_tokens": used_in + out,
        "total_cost": sum(day.cost for day in days),
        "missing_cost_entries": sum(day.unpriced for day in days),
    }


async def usage_status(call: Call, params: SharedNoParams) -> UsageStatus:
    """Lists nothing: what providers allow an account is not asked of them here."""
    return UsageStatus(updated_at=call.parts.clock.now_ms())


METHODS: tuple[Method[Any], ...] = (
    Method(
        "usage.cost",
        UsageCostParams,
        TokenScope.READ,
        usage_cost,
        "`{updatedAt, days, daily: [{date, input, output, totalTokens, totalCost, missingCostEntries}], totals {input, "
        "output, totalTokens, totalCost, missingCostEntries}, partial?}`; without `agentId` it is the default agent, "
        "with `agentScope: all` it is all of them; runs of models without a price are counted as `missingCostEntries`; "
        "`partial` says that there were more runs than are looked at, and the oldest are left out",
    ),
    Method("usage.status", SharedNoParams, TokenScope.READ, usage_status, "`{updatedAt, providers: []}`"),
)
