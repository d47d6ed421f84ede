"""What `health` and `status` tell of agents and sessions, as OpenClaw's command line prints it.

Where it is missing, that command line prints what it finds in files of OpenClaw's own on its machine instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from backchannel.errors import UnknownModel
from backchannel.gateway.parts import GatewayParts
from backchannel.wire.summaries import (
    AgentHealth,
    AgentHeartbeat,
    AgentNamed,
    AgentSessions,
    AgentsNamed,
    CliProjection,
    HeartbeatSummary,
    ModelDefaults,
    NoMemory,
    SessionsCounted,
    SessionsSummary,
)

STORE = "the gateway's database"
"""Where sessions are kept, where a path is asked for."""


def agents_health(parts: GatewayParts, counts: Mapping[str, int]) -> list[AgentHealth]:
    """Show the agents, the default one first, each with how many sessions it has."""
    return [
        AgentHealth(
            agent_id=id,
            name=parts.agents.get(id).name,
            is_default=id == parts.agents.default_id,
            heartbeat=_no_heartbeat(id),
            sessions=SessionsCounted(path=STORE, count=counts.get(id, 0), recent=()),
        )
        for id in _ids(parts)
    ]


def sessions_counted(counts: Mapping[str, int]) -> SessionsCounted:
    """Show how many sessions there are, those of agents included that are no more."""
    return SessionsCounted(path=STORE, count=sum(counts.values()), recent=())


def sessions_summary(parts: GatewayParts, counts: Mapping[str, int]) -> SessionsSummary:
    """Show how many sessions there are, and what a new one would have."""
    return SessionsSummary(
        count=sum(counts.values()),
        defaults=_defaults(parts),
        paths=(),
        recent=(),
        by_agent=[AgentSessions(agent_id=id, path=STORE, count=counts.get(id, 0), recent=()) for id in _ids(parts)],
    )


def heartbeat_summary(parts: GatewayParts) -> HeartbeatSummary:
    """Show that no agent has a heartbeat: agents here wake by cron jobs."""
    return HeartbeatSummary(default_agent_id=parts.agents.default_id, agents=[_no_heartbeat(id) for id in _ids(parts)])


def cli_projection(parts: GatewayParts) -> CliProjection:
    """Show what that command line would otherwise take from a configuration of its own."""
    rows = [AgentNamed(id=id, name=parts.agents.get(id).name) for id in _ids(parts)]
    return CliProjection(
        agents=AgentsNamed(default_id=parts.agents.default_id, selection_required=False, rows=rows),
        memory_plugin=NoMemory(),
    )


def _ids(parts: GatewayParts) -> list[str]:
    return sorted(parts.agents.ids(), key=lambda id: (id != parts.agents.default_id, id))


def _no_heartbeat(agent_id: str) -> AgentHeartbeat:
    return AgentHeartbeat(agent_id=agent_id)


def _defaults(parts: GatewayParts) -> ModelDefaults:
    ref = parts.agents.get(parts.agents.default_id).model
    try:
        window = parts.models.get(ref).context_window
    except UnknownModel:  # the problems say so
        return ModelDefaults(model=ref)
    return ModelDefaults(model=ref, context_tokens=window)
