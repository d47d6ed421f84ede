"""Health: whether the gateway works, what is wrong, and how much it has to do."""

from __future__ import annotations

from typing import Any

from backchannel.core.shapes import Answer
from backchannel.gateway.connections import Call, Method
from backchannel.gateway.health import Problem, examine
from backchannel.gateway.protocol import NoParams, Scope
from backchannel.version import __version__


class Health(Answer, frozen=True, kw_only=True):
    ok: bool
    status: str
    ts: int
    uptime_ms: int
    default_agent_id: str
    store: str
    problems: list[Problem]


class Status(Answer, frozen=True, kw_only=True):
    version: str
    status: str
    ts: int
    uptime_ms: int
    connections: int
    runs: dict[str, int]
    deliveries: dict[str, int]
    commits: int
    agents: list[str]
    default_agent_id: str
    model: str
    problems: list[Problem]


async def health(call: Call, params: NoParams) -> Health:
    """Tells whether the gateway can accept messages now, and what is wrong besides."""
    parts = call.parts
    condition = await examine(parts)
    return Health(
        ok=condition.refusal is None,
        status=condition.word,
        ts=parts.clock.now_ms(),
        uptime_ms=call.connections.uptime_ms,
        default_agent_id=parts.agents.default_id,
        store=condition.refusal or "ok",
        problems=condition.problems,
    )


async def status(call: Call, params: NoParams) -> Status:
    """Tells what the gateway is, how much it has to do, and what is wrong; `status` is ok, degraded or unavailable."""
    parts = call.parts
    condition = await examine(parts)
    live, waiting = await parts.store.run_counts(), condition.troubles.deliveries
    return Status(
        version=__version__,
        status=condition.word,
        ts=parts.clock.now_ms(),
        uptime_ms=call.connections.uptime_ms,
        connections=call.connections.count,
        runs={
            "queued": live.get("queued", 0),
            "running": live.get("running", 0),
            "failed": condition.troubles.runs_failed,
            "setAside": condition.troubles.runs_set_aside,
        },
        deliveries={
            "waiting": waiting.get("pending", 0) + waiting.get("sending", 0),
            "failed": waiting.get("failed", 0),
            "uncertain": waiting.get("uncertain", 0),
        },
        commits=parts.store.commits,
        agents=parts.agents.ids(),
        default_agent_id=parts.agents.default_id,
        model=parts.agents.get(parts.agents.default_id).model,
        problems=condition.problems,
    )


_PROBLEMS = "problems: [{code, message, hint}]"

METHODS: tuple[Method[Any], ...] = (
    Method(
        "health",
        NoParams,
        Scope.READ,
        health,
        f"`{{ok, status: ok | degraded | unavailable, ts, uptimeMs, defaultAgentId, store, {_PROBLEMS}}}`",
    ),
    Method(
        "status",
        NoParams,
        Scope.READ,
        status,
        "`{version, status: ok | degraded | unavailable, ts, uptimeMs, connections, "
        "runs {queued, running, failed, setAside}, deliveries {waiting, failed, uncertain}, commits, agents, "
        f"defaultAgentId, model, {_PROBLEMS}}}`; `runs.failed` counts the last 24 hours",
    ),
)
