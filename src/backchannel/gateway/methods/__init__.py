"""The method table: every method there is, from the files of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backchannel.gateway.methods import (
    approvals,
    catalog,
    channel_pairing,
    channels,
    chat,
    command_policy,
    cron,
    deliveries,
    devices,
    exchanges,
    exports,
    health,
    history,
    inspection,
    inventory,
    machine,
    made_sessions,
    nodes,
    nothing,
    pairing,
    patching,
    runs,
    searching,
    session_usage,
    sessions,
    slots,
    startup,
    tokens,
    tools,
    trees,
    usage,
)
from backchannel.gateway.ws.connections import Method

METHODS: Mapping[str, Method[Any]] = {
    method.name: method
    for group in (
        health,
        runs,
        exchanges,
        chat,
        startup,
        history,
        sessions,
        searching,
        session_usage,
        patching,
        made_sessions,
        trees,
        catalog,
        channel_pairing,
        command_policy,
        channels,
        deliveries,
        approvals,
        pairing,
        slots,
        cron,
        tokens,
        devices,
        exports,
        tools,
        nodes,
        inventory,
        machine,
        usage,
        inspection,
        nothing,
    )
    for method in group.METHODS
}
