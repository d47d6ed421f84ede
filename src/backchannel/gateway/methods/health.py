"""Health: whether the gateway works, and how much it has to do."""

from __future__ import annotations

from typing import Any

from backchannel.errors import Unavailable
from backchannel.gateway.call import Call
from backchannel.gateway.protocol import Method, NoParams, Scope
from backchannel.tools.inputs import Answer
from backchannel.version import __version__


class Health(Answer, frozen=True, kw_only=True):
    ok: bool
    ts: int
    uptime_ms: int
    default_agent_id: str
    store: str


class Status(Answer, frozen=True, kw_only=True):
    version: str
    ts: int
    uptime_ms: int
    connections: int
    runs: dict[str, int]
    commits: int
    agents: list[str]
    default_agent_id: str
    model: str


async def health(call: Call, params: NoParams) -> Health:
    """Tells whether the gateway can accept messages now."""
    gateway = call.gateway
    try:
        await gateway.store.check_writable()
        store = "ok"
    except Unavailable as error:
        store = error.message
    return Health(
        ok=store == "ok",
        ts=gateway.clock.now_ms(),
        uptime_ms=call.door.uptime_ms,
        default_agent_id=gateway.agents.default_id,
        store=store,
    )


async def status(call: Call, params: NoParams) -> Status:
    """Tells what the gateway is and how much it has to do."""
    gateway = call.gateway
    counts = await gateway.store.run_counts()
    return Status(
        version=__version__,
        ts=gateway.clock.now_ms(),
        uptime_ms=call.door.uptime_ms,
        connections=call.door.connections,
        runs={"queued": counts.get("queued", 0), "running": counts.get("running", 0)},
        commits=gateway.store.commits,
        agents=gateway.agents.ids(),
        default_agent_id=gateway.agents.default_id,
        model=gateway.agents.get(gateway.agents.default_id).model,
    )


METHODS: tuple[Method[Any], ...] = (
    Method("health", NoParams, Scope.READ, health, "`{ok, ts, uptimeMs, defaultAgentId, store}`"),
    Method(
        "status",
        NoParams,
        Scope.READ,
        status,
        "`{version, ts, uptimeMs, connections, runs {queued, running}, commits, agents, defaultAgentId, model}`",
    ),
)
