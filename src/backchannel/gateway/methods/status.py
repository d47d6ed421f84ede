"""Status: the health of the gateway, and its work."""

from __future__ import annotations

import asyncio

from backchannel.gateway.calls import Call, method
from backchannel.gateway.condition import Amounts, examine
from backchannel.gateway.methods.channels import channel_states
from backchannel.gateway.openclaw.summaries import (
    NO_TASKS,
    agents_health,
    cli_projection,
    heartbeat_summary,
    sessions_counted,
    sessions_summary,
)
from backchannel.gateway.parts import GatewayParts
from backchannel.version import __version__
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.rows import GatewayState, ServiceState
from backchannel.wire.shapes import SharedParams
from backchannel.wire.state_answers import Health, Status


class GatewayStatusParams(SharedParams, frozen=True, kw_only=True):
    include_cli_projection: bool = False


@method("health", TokenScope.READ)
async def health(call: Call, params: SharedNoParams) -> Health:
    """Says whether the gateway can accept messages now, and lists its problems."""
    parts = call.parts
    condition = await examine(parts)
    sessions = condition.amounts.sessions if condition.amounts else None
    return Health(
        ok=condition.refusal is None,
        status=condition.word,
        ts=parts.clock.now_ms(),
        uptime_ms=call.connections.uptime_ms,
        default_agent_id=parts.agents.default_id,
        store=condition.refusal or "ok",
        problems=condition.problems,
        agents=agents_health(parts, sessions or {}),
        sessions=None if sessions is None else sessions_counted(sessions),
    )


@method("status", TokenScope.READ)
async def status(call: Call, params: GatewayStatusParams) -> Status:
    """Shows the gateway, its work and its problems.

    While the database cannot be read, `runs`, `deliveries`, `approvals` and `pairings` are empty and no session is
    counted.
    """
    parts = call.parts
    condition = await examine(parts)
    amounts = condition.amounts
    return Status(
        version=__version__,
        status=condition.word,
        ts=parts.clock.now_ms(),
        uptime_ms=call.connections.uptime_ms,
        connections=call.connections.count,
        runs=_runs_counted(amounts) if amounts else {},
        deliveries=_deliveries_counted(amounts) if amounts else {},
        approvals={"pending": amounts.approvals} if amounts else {},
        pairings={"pending": amounts.pairings} if amounts else {},
        channels=channel_states(parts),
        commits=parts.store.driver.commits,
        agents=parts.agents.ids(),
        default_agent_id=parts.agents.default_id,
        model=parts.agents.get(parts.agents.default_id).model,
        gateways=_gateways(parts),
        problems=condition.problems,
        services=_services(parts),
        search={"unindexed": parts.runtime.indexing.remaining} if parts.runtime.indexing.remaining else None,
        sessions=sessions_summary(parts, amounts.sessions if amounts else {}),
        heartbeat=heartbeat_summary(parts),
        tasks=NO_TASKS,
        channel_summary=(),
        queued_system_events=(),
        sandbox=await asyncio.to_thread(parts.sandboxes.how_memory_is_bounded),
        cli_projection=cli_projection(parts) if params.include_cli_projection else None,
    )


def _runs_counted(amounts: Amounts) -> dict[str, int]:
    return {
        "queued": amounts.runs.get("queued", 0),
        "running": amounts.runs.get("running", 0),
        "failed": amounts.troubles.runs_failed,
        "setAside": amounts.troubles.runs_set_aside,
        "waiting": amounts.troubles.runs_waiting,
    }


def _deliveries_counted(amounts: Amounts) -> dict[str, int]:
    counts = amounts.troubles.deliveries
    return {
        "waiting": counts.get("pending", 0) + counts.get("sending", 0),
        "failed": counts.get("failed", 0),
        "uncertain": counts.get("uncertain", 0),
    }


def _gateways(parts: GatewayParts) -> list[GatewayState]:
    return [
        GatewayState(
            number=peer.number,
            name=peer.member.name,
            version=peer.member.version,
            since=peer.started_at,
            agents=list(peer.member.agents),
            is_this=peer.number == parts.store.number,
        )
        for peer in parts.runtime.duties.peers
    ]


def _services(parts: GatewayParts) -> list[ServiceState]:
    return [
        ServiceState(
            name=name,
            up=health.is_up,
            since=health.since_ms,
            last_error=None if health.error is None else parts.secrets.hide(health.error),
            last_error_at=health.error_at_ms,
            next_try_at=health.next_try_ms,
        )
        for name, health in parts.supervisor.health().items()
    ]
