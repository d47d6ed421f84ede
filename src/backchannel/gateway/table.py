"""The tables of all methods and all events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backchannel.gateway.methods import (
    approvals,
    catalog,
    channels,
    chat,
    cron,
    deliveries,
    exchanges,
    history,
    nodes,
    pairing,
    patching,
    runs,
    search,
    sessions,
    slots,
    status,
    tokens,
    tools,
    transcripts,
    tree,
)
from backchannel.gateway.openclaw import (
    channel_pairing,
    command_policy,
    devices,
    empty,
    inspection,
    inventory,
    session_usage,
    startup,
    system,
    usage,
)
from backchannel.gateway.openclaw import sessions as openclaw_sessions
from backchannel.gateway.openclaw.approval_shapes import ApprovalAsked, ApprovalResolved
from backchannel.gateway.ws.connections import Method
from backchannel.wire.events import AgentEvent, Challenge, ChatEvent, SessionMessage, SessionsChanged, Shutdown, Tick
from backchannel.wire.rows import ApprovalRow, DeliveryRow
from backchannel.wire.shapes import Answer

METHODS: Mapping[str, Method[Any]] = {
    method.name: method
    for group in (
        status,
        runs,
        exchanges,
        chat,
        history,
        sessions,
        search,
        patching,
        tree,
        catalog,
        channels,
        deliveries,
        approvals,
        pairing,
        slots,
        cron,
        tokens,
        transcripts,
        tools,
        nodes,
        startup,
        openclaw_sessions,
        channel_pairing,
        devices,
        command_policy,
        session_usage,
        usage,
        inventory,
        system,
        inspection,
        empty,
    )
    for method in group.METHODS
}

EVENTS: Mapping[str, type[Answer]] = {
    "connect.challenge": Challenge,
    "agent": AgentEvent,
    "chat": ChatEvent,
    "sessions.changed": SessionsChanged,
    "session.message": SessionMessage,
    "delivery": DeliveryRow,
    "approval": ApprovalRow,
    "plugin.approval.requested": ApprovalAsked,
    "plugin.approval.resolved": ApprovalResolved,
    "tick": Tick,
    "shutdown": Shutdown,
}
"""Every event, and what it carries."""
CAPABILITIES = ("published-model-catalog",)
"""What OpenClaw's clients ask for before they call: here, that `models.list` is the whole answer."""
NODE_EVENTS = ("connect.challenge", "chat", "tick", "shutdown")
