"""Usage and cost of runs by day, model and session, for OpenClaw's clients.

A run counts on the UTC day on which it was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, Literal

from msgspec import Meta

from backchannel.core.records import DAY_MS, DayUsed
from backchannel.core.sessions import Session
from backchannel.core.usage_sums import UsedInTime
from backchannel.errors import InvalidRequest
from backchannel.gateway.addressing import find_session, known_agent
from backchannel.gateway.calls import Call, method
from backchannel.gateway.openclaw.usage_shapes import (
    SessionsUsage,
    SessionUsage,
    UsagePoint,
    UsageSeries,
    show_aggregates,
    show_date,
    show_totals,
    show_usage,
)
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, SharedParams

_DAYS, _MOST_DAYS = 30, 3660
_RANGES = {"7d": 7, "30d": 30, "90d": 90, "1y": 365, "all": 36_500}
_LISTED, _MOST_LISTED, _POINTS = 50, 1000, 200


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
    """The number of runs of models without a price."""


class SpentOnDay(UsageSpent, frozen=True, kw_only=True, omit_defaults=False):
    date: str


class UsageCost(Answer, frozen=True, kw_only=True):
    updated_at: int
    days: int
    daily: list[SpentOnDay]
    totals: UsageSpent
    partial: bool | None = None
    """Whether the oldest runs were left out, since there were too many."""


class UsageStatus(Answer, frozen=True, kw_only=True, omit_defaults=False):
    updated_at: int
    providers: tuple[()] = ()


@method("usage.cost", TokenScope.READ)
async def usage_cost(call: Call, params: UsageCostParams) -> UsageCost:
    """Shows the tokens and cost of runs in the last days, which are UTC days.

    Without `agentId` it is the default agent, with `agentScope: all` it is all agents.
    """
    parts, now = call.parts, call.parts.clock.now_ms()
    agent = None
    if params.agent_scope is None:
        agent = parts.agents.default_id if params.agent_id is None else known_agent(parts, params.agent_id)
    since = (now // DAY_MS - params.days + 1) * DAY_MS
    found = await parts.store.spending(since=since, until=now + 1, agent_id=agent)
    return UsageCost(
        updated_at=now,
        days=params.days,
        daily=[SpentOnDay(date=show_date(day.number), **_added([day])) for day in found.days],
        totals=UsageSpent(**_added(found.days)),
        partial=found.is_part or None,
    )


def _added(days: Sequence[DayUsed]) -> dict[str, Any]:
    used_in, out = sum(day.tokens_in for day in days), sum(day.tokens_out for day in days)
    return {
        "input": used_in,
        "output": out,
        "total_tokens": used_in + out,
        "total_cost": sum(day.cost for day in days),
        "missing_cost_entries": sum(day.unpriced for day in days),
    }


@method("usage.status", TokenScope.READ)
async def usage_status(call: Call, params: SharedNoParams) -> UsageStatus:
    """Lists nothing: the gateway does not ask providers for the limits of an account."""
    return UsageStatus(updated_at=call.parts.clock.now_ms())


class SessionsUsageParams(SharedParams, frozen=True, kw_only=True):
    key: str | None = None
    agent_id: str | None = None
    agent_scope: Literal["all"] | None = None
    start_date: str | None = None
    end_date: str | None = None
    range: Literal["7d", "30d", "90d", "1y", "all"] | None = None
    limit: Annotated[int, Meta(ge=1)] = _LISTED


class OneSessionParams(SharedParams, frozen=True, kw_only=True):
    key: str


@method("sessions.usage", TokenScope.READ)
async def sessions_usage(call: Call, params: SessionsUsageParams) -> SessionsUsage:
    """Shows the tokens and cost of the newest sessions, by UTC day and model.

    Without `agentId` it is the default agent, with `agentScope: all` it is all agents. Tool calls are not counted and
    costs are not split by kinds of tokens: these fields are zero.
    """
    parts, now = call.parts, call.parts.clock.now_ms()
    first, last = _days(params, now)
    key = None if params.key is None else (await find_session(parts, params.key, params.agent_id, archived=True)).key
    agent = None
    if key is None and params.agent_scope is None:
        agent = parts.agents.default_id if params.agent_id is None else known_agent(parts, params.agent_id)
    sums, listed = await parts.store.spending_by_session(
        since=first * DAY_MS,
        until=(last + 1) * DAY_MS,
        agent_id=agent,
        session_key=key,
        limit=min(params.limit, _MOST_LISTED),
    )
    return SessionsUsage(
        updated_at=now,
        start_date=show_date(first),
        end_date=show_date(last),
        sessions=[_session(call, session, sums.sessions[session.key]) for session in listed],
        totals=show_totals(sums.together.total),
        aggregates=show_aggregates(sums),
        partial=sums.is_part or None,
    )


@method("sessions.usage.timeseries", TokenScope.READ)
async def sessions_usage_timeseries(call: Call, params: OneSessionParams) -> UsageSeries:
    """Shows the tokens and cost of the last 200 runs of a session, one by one."""
    session = await find_session(call.parts, params.key, archived=True)
    runs = await call.parts.store.runs(session_key=session.key, limit=_POINTS)
    points: list[UsagePoint] = []
    tokens, cost = 0, 0.0
    for run in reversed(runs):
        tokens, cost = tokens + run.usage.total, cost + (run.cost or 0)
        points.append(
            UsagePoint(
                timestamp=run.accepted_at,
                input=run.tokens_in,
                output=run.tokens_out,
                total_tokens=run.usage.total,
                cost=run.cost or 0,
                cumulative_tokens=tokens,
                cumulative_cost=cost,
            )
        )
    return UsageSeries(session_id=session.session_id, points=points)


def _days(params: SessionsUsageParams, now: int) -> tuple[int, int]:
    """Read the first and the last day, as numbers of days since 1970."""
    today = now // DAY_MS
    last = today if params.end_date is None else _day(params.end_date, "endDate")
    if params.start_date is not None:
        return _day(params.start_date, "startDate"), last
    return max(0, last - _RANGES[params.range or "30d"] + 1), last


def _day(text: str, param: str) -> int:
    try:
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError:
        raise InvalidRequest(f"{param}: expected a day, such as 2026-01-31", param=param) from None


def _session(call: Call, session: Session, used: UsedInTime) -> SessionUsage:
    row = call.parts.rows.session_row(session, [])
    return SessionUsage(
        key=row.key,
        session_id=session.session_id,
        agent_id=session.agent_id,
        updated_at=session.updated_at,
        label=row.label,
        channel=row.channel,
        usage=show_usage(session.session_id, used),
    )
