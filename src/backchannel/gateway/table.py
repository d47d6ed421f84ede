"""All methods and all events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backchannel.gateway.calls import Method, methods_of
from backchannel.gateway.methods import (
    agents,
    approvals,
    budgets,
    channels,
    chat,
    commands,
    cron,
    deliveries,
    exchanges,
    history,
    ids,
    models,
    nodes,
    pairing,
    runs,
    search,
    sessions,
    settings,
    slots,
    status,
    tokens,
    tools,
    transcripts,
    tree,
)
from backchannel.gateway.openclaw import agents as their_agents
from backchannel.gateway.openclaw import approvals as their_approvals
from backchannel.gateway.openclaw import channels as their_channels
from backchannel.gateway.openclaw import chat as their_chat
from backchannel.gateway.openclaw import cron as their_cron
from backchannel.gateway.openclaw import devices, empty, system, usage
from backchannel.gateway.openclaw import nodes as their_nodes
from backchannel.gateway.openclaw import sessions as their_sessions
from backchannel.gateway.openclaw.approval_shapes import ApprovalAsked, ApprovalResolved
from backchannel.wire.events import AgentEvent, Challenge, ChatEvent, SessionMessage, SessionsChanged, Shutdown, Tick
from backchannel.wire.rows import ApprovalRow, DeliveryRow
from backchannel.wire.shapes import Answer

_NATIVE = (  # in the order of the page
    status,
    runs,
    exchanges,
    chat,
    history,
    sessions,
    settings,
    tree,
    search,
    agents,
    models,
    commands,
    ids,
    channels,
    deliveries,
    approvals,
    pairing,
    slots,
    budgets,
    cron,
    tokens,
    transcripts,
    tools,
    nodes,
)
_OPENCLAW = (
    their_chat,
    their_sessions,
    their_agents,
    their_channels,
    their_approvals,
    their_cron,
    usage,
    their_nodes,
    devices,
    system,
)

METHODS: Mapping[str, Method[Any, Any]] = {
    each.name: each for group in (*_NATIVE, *_OPENCLAW) for each in methods_of(group)
} | {each.name: each for each in empty.METHODS}

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
"""The payload of each event."""
CAPABILITIES = ("published-model-catalog",)
"""Features that OpenClaw's clients look for before they call; this one says that `models.list` is complete."""
NODE_EVENTS = ("connect.challenge", "chat", "tick", "shutdown")
