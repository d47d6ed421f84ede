"""Summaries of agents and sessions in `health` and `status`, as OpenClaw's command line prints them.

Without them, that command line would print what it finds in OpenClaw's own files on its machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backchannel.errors import UnknownModel
from backchannel.gateway.parts import GatewayParts

STORE = "the gateway's database"
"""The path of the sessions, in words."""
NO_TASKS = {"total": 0, "active": 0, "terminal": 0, "failures": 0, "byStatus": {}, "byRuntime": {}}
_NO_MEMORY = {"enabled": False, "slot": None, "reason": "there are no plugins here"}


def agents_health(parts: GatewayParts, counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Show the agents, the default agent first, with their numbers of sessions."""
    return [
        {
            "agentId": id,
            "isDefault": id == parts.agents.default_id,
            "heartbeat": _no_heartbeat(id),
            "sessions": _counted(counts.get(id, 0)),
            **_named(parts, id),
        }
        for id in _ids(parts)
    ]


def sessions_counted(counts: Mapping[str, int]) -> dict[str, Any]:
    """Show the number of sessions, including those of former agents."""
    return _counted(sum(counts.values()))


def sessions_summary(parts: GatewayParts, counts: Mapping[str, int]) -> dict[str, Any]:
    """Show the number of sessions, and the defaults of a new one; `sessions.list` has the list."""
    return {
        "count": sum(counts.values()),
        "defaults": _defaults(parts),
        "paths": [],
        "recent": [],
        "byAgent": [{**_counted(counts.get(id, 0)), "agentId": id} for id in _ids(parts)],
    }


def heartbeat_summary(parts: GatewayParts) -> dict[str, Any]:
    """Show that no agent has a heartbeat: agents here wake by cron jobs."""
    return {"defaultAgentId": parts.agents.default_id, "agents": [_no_heartbeat(id) for id in _ids(parts)]}


def cli_projection(parts: GatewayParts) -> dict[str, Any]:
    """Show what that command line would otherwise read from its own configuration."""
    rows = [{"id": id, **_named(parts, id)} for id in _ids(parts)]
    return {
        "agents": {"defaultId": parts.agents.default_id, "selectionRequired": False, "rows": rows},
        "memoryPlugin": _NO_MEMORY,
    }


def _ids(parts: GatewayParts) -> list[str]:
    return sorted(parts.agents.ids(), key=lambda id: (id != parts.agents.default_id, id))


def _named(parts: GatewayParts, agent_id: str) -> dict[str, str]:
    name = parts.agents.get(agent_id).name
    return {} if name is None else {"name": name}


def _counted(count: int) -> dict[str, Any]:
    return {"path": STORE, "count": count, "recent": []}


def _no_heartbeat(agent_id: str) -> dict[str, Any]:
    return {"agentId": agent_id, "enabled": False, "every": "disabled", "everyMs": None}


def _defaults(parts: GatewayParts) -> dict[str, Any]:
    ref = parts.agents.get(parts.agents.default_id).model
    try:
        window = parts.models.get(ref).context_window
    except UnknownModel:  # the problems say so
        window = None
    return {"model": ref} if window is None else {"model": ref, "contextTokens": window}
