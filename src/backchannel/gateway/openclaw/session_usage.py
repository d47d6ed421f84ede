"""What each session has used and cost, as OpenClaw's Control UI asks for it on its page of usage.

The figures are those of runs, by the day of UTC on which each was accepted.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from msgspec import Meta

from backchannel.core.records import DAY_MS
from backchannel.core.sessions import Session
from backchannel.core.usage_sums import UsedInTime
from backchannel.errors import InvalidRequest
from backchannel.gateway.addressing import find_session, known_agent
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
from backchannel.gateway.ws.connections import Call, Method
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import SharedParams

_RANGES = {"7d": 7, "30d": 30, "90d": 90, "1y": 365, "all": 36_500}
_LISTED, _MOST_LISTED, _POINTS = 50, 1000, 200


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


async def sessions_usage(call: Call, params: SessionsUsageParams) -> SessionsUsage:
    """Tells what sessions have used and cost in a time, by days and models; those that were used last are listed."""
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


async def sessions_usage_timeseries(call: Call, params: OneSessionParams) -> UsageSeries:
    """Tells what the last runs of a session have used and cost, one by one."""
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
    """Read the first and the last day that are asked for, as numbers of days since 1970."""
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


METHODS: tuple[Method[Any], ...] = (
    Method(
        "sessions.usage",
        SessionsUsageParams,
        TokenScope.READ,
        sessions_usage,
        "`{updatedAt, startDate, endDate, sessions: [{key, sessionId, agentId, updatedAt, label?, channel?, usage}], "
        "totals, aggregates {sessionCount, messages, tools, byModel, byProvider, byAgent, byChannel, byCreator, daily, "
        "costDaily, modelDaily}, partial?}`; days are those of UTC. `usage` has the totals of a session, and its "
        "`dailyBreakdown`, `dailyMessageCounts`, `dailyModelUsage`, `messageCounts` and `modelUsage`. Without "
        "`agentId` it is the default agent, with `agentScope: all` it is all of them. Calls of tools are not counted, "
        "and costs are not split by kinds of tokens: these are zero",
    ),
    Method(
        "sessions.usage.timeseries",
        OneSessionParams,
        TokenScope.READ,
        sessions_usage_timeseries,
        "`{sessionId, points: [{timestamp, input, output, cacheRead, cacheWrite, totalTokens, cost, cumulativeTokens, "
        "cumulativeCost}]}` of the last 200 runs",
    ),
)
