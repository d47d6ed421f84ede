"""Usage of runs in the shapes of OpenClaw's usage page.

A run counts as the message that it answers, and as a reply unless it failed. Tool calls are not counted, and a cost is
not split: those fields are zero.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from backchannel.core.records import DAY_MS
from backchannel.core.usage_sums import UsedBySession, UsedInTime, UsedSum
from backchannel.wire.shapes import Answer


class UsageTotals(Answer, frozen=True, kw_only=True, omit_defaults=False):
    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int
    total_cost: float
    input_cost: float = 0
    output_cost: float = 0
    cache_read_cost: float = 0
    cache_write_cost: float = 0
    missing_cost_entries: int


class DayTotals(UsageTotals, frozen=True, kw_only=True, omit_defaults=False):
    date: str
    tokens: int
    cost: float


class DayActivity(Answer, frozen=True, kw_only=True, omit_defaults=False):
    date: str
    tokens: int
    cost: float
    messages: int
    tool_calls: int = 0
    errors: int


class ModelTotals(Answer, frozen=True, kw_only=True):
    provider: str
    model: str | None = None
    count: int
    totals: UsageTotals


class ModelOfDay(Answer, frozen=True, kw_only=True, omit_defaults=False):
    date: str
    provider: str
    model: str
    tokens: int
    cost: float
    count: int


class AgentTotals(Answer, frozen=True, kw_only=True):
    agent_id: str
    totals: UsageTotals


class MessageCounts(Answer, frozen=True, kw_only=True, omit_defaults=False):
    total: int
    user: int
    assistant: int
    tool_calls: int = 0
    tool_results: int = 0
    errors: int


class DayMessages(MessageCounts, frozen=True, kw_only=True, omit_defaults=False):
    date: str


class ToolTotals(Answer, frozen=True, kw_only=True, omit_defaults=False):
    total_calls: int = 0
    unique_tools: int = 0
    tools: tuple[()] = ()


class UsageOfSession(UsageTotals, frozen=True, kw_only=True, omit_defaults=False):
    session_id: str
    first_activity: int | None
    last_activity: int | None
    duration_ms: int
    activity_dates: list[str]
    daily_breakdown: list[DayTotals]
    daily_message_counts: list[DayMessages]
    daily_model_usage: list[ModelOfDay]
    message_counts: MessageCounts
    model_usage: list[ModelTotals]


class SessionUsage(Answer, frozen=True, kw_only=True):
    key: str
    session_id: str
    agent_id: str
    updated_at: int
    usage: UsageOfSession
    label: str | None = None
    channel: str | None = None


class UsageAggregates(Answer, frozen=True, kw_only=True, omit_defaults=False):
    session_count: int
    messages: MessageCounts
    tools: ToolTotals = ToolTotals()
    by_model: list[ModelTotals]
    by_provider: list[ModelTotals]
    by_agent: list[AgentTotals]
    by_channel: tuple[()] = ()
    by_creator: tuple[()] = ()
    daily: list[DayActivity]
    cost_daily: list[DayTotals]
    model_daily: list[ModelOfDay]


class SessionsUsage(Answer, frozen=True, kw_only=True):
    updated_at: int
    start_date: str
    end_date: str
    sessions: list[SessionUsage]
    totals: UsageTotals
    aggregates: UsageAggregates
    partial: bool | None = None


class UsagePoint(Answer, frozen=True, kw_only=True, omit_defaults=False):
    timestamp: int
    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int
    cost: float
    cumulative_tokens: int
    cumulative_cost: float


class UsageSeries(Answer, frozen=True, kw_only=True, omit_defaults=False):
    session_id: str
    points: list[UsagePoint]


def show_date(day: int) -> str:
    """Show a day, which is a number of days since 1970."""
    return datetime.fromtimestamp(day * DAY_MS // 1000, UTC).date().isoformat()


def show_totals(used: UsedSum) -> UsageTotals:
    """Show a sum."""
    return UsageTotals(**_totals(used))


def show_usage(session_id: str, used: UsedInTime) -> UsageOfSession:
    """Show the usage of a session."""
    return UsageOfSession(
        **_totals(used.total),
        session_id=session_id,
        first_activity=used.first,
        last_activity=used.last,
        duration_ms=max(0, (used.last or 0) - (used.first or 0)),
        activity_dates=[show_date(day) for day in sorted(used.days)],
        daily_breakdown=_daily(used),
        daily_message_counts=[
            DayMessages(date=show_date(day), **_messages(each)) for day, each in sorted(used.days.items())
        ],
        daily_model_usage=_models_of_days(used),
        message_counts=MessageCounts(**_messages(used.total)),
        model_usage=_models(used),
    )


def show_aggregates(sums: UsedBySession) -> UsageAggregates:
    """Show the usage of all sessions together."""
    together = sums.together
    providers: dict[str, UsedSum] = {}
    for model, used in together.models.items():
        providers.setdefault(_split(model)[0], UsedSum()).add(used)
    return UsageAggregates(
        session_count=len(sums.sessions),
        messages=MessageCounts(**_messages(together.total)),
        by_model=_models(together),
        by_provider=[
            ModelTotals(provider=provider, count=used.runs, totals=show_totals(used))
            for provider, used in _by_tokens(providers)
        ],
        by_agent=[AgentTotals(agent_id=agent, totals=show_totals(used)) for agent, used in _by_tokens(sums.agents)],
        daily=[
            DayActivity(
                date=show_date(day),
                tokens=used.tokens_in + used.tokens_out,
                cost=used.cost,
                messages=_messages(used)["total"],
                errors=used.failed,
            )
            for day, used in sorted(together.days.items())
        ],
        cost_daily=_daily(together),
        model_daily=_models_of_days(together),
    )


def _by_tokens(sums: dict[str, UsedSum]) -> list[tuple[str, UsedSum]]:
    return sorted(sums.items(), key=lambda each: each[1].tokens_in + each[1].tokens_out, reverse=True)


def _daily(used: UsedInTime) -> list[DayTotals]:
    return [
        DayTotals(date=show_date(day), tokens=each.tokens_in + each.tokens_out, cost=each.cost, **_totals(each))
        for day, each in sorted(used.days.items())
    ]


def _models(used: UsedInTime) -> list[ModelTotals]:
    return [
        ModelTotals(provider=provider, model=name, count=each.runs, totals=show_totals(each))
        for model, each in _by_tokens(used.models)
        for provider, name in (_split(model),)
    ]


def _models_of_days(used: UsedInTime) -> list[ModelOfDay]:
    return [
        ModelOfDay(
            date=show_date(day),
            provider=provider,
            model=name,
            tokens=each.tokens_in + each.tokens_out,
            cost=each.cost,
            count=each.runs,
        )
        for (day, model), each in sorted(used.models_of_days.items())
        for provider, name in (_split(model),)
    ]


def _split(model: str) -> tuple[str, str]:
    """Split the name of a model; a run without an answer has none."""
    provider, _, name = model.partition("/")
    return provider or "unknown", name or provider or "unknown"


def _totals(used: UsedSum) -> dict[str, Any]:
    return {
        "input": used.tokens_in,
        "output": used.tokens_out,
        "total_tokens": used.tokens_in + used.tokens_out,
        "total_cost": used.cost,
        "missing_cost_entries": used.unpriced,
    }


def _messages(used: UsedSum) -> dict[str, int]:
    replies = used.runs - used.failed
    return {"total": used.runs + replies, "user": used.runs, "assistant": replies, "errors": used.failed}
