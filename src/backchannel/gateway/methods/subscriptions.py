"""Subscriptions: which events a connection gets besides those of the runs it started."""

from __future__ import annotations

from typing import Any

from backchannel.core.shapes import Answer
from backchannel.gateway.addressing import resolve
from backchannel.gateway.connections import Call, Method
from backchannel.gateway.methods.sessions import KeyParams
from backchannel.gateway.protocol import NoParams, Scope


class Subscribed(Answer, frozen=True, kw_only=True):
    subscribed: bool
    key: str | None = None


async def sessions_subscribe(call: Call, params: NoParams) -> Subscribed:
    """Sends this connection `sessions.changed`, and the `chat` and `agent` events of all sessions."""
    call.subscriptions.subscribe(call.subscriber)
    return Subscribed(subscribed=True)


async def sessions_unsubscribe(call: Call, params: NoParams) -> Subscribed:
    """Ends `sessions.subscribe`."""
    call.subscriptions.unsubscribe(call.subscriber)
    return Subscribed(subscribed=False)


async def messages_subscribe(call: Call, params: KeyParams) -> Subscribed:
    """Sends this connection the messages that enter a session's transcript, and its `chat` and `agent` events."""
    key = str((await resolve(call.parts, params.key, params.agent_id)).key)
    call.subscriptions.watch_messages(call.subscriber, key)
    return Subscribed(subscribed=True, key=call.parts.rows.key(key))


async def messages_unsubscribe(call: Call, params: KeyParams) -> Subscribed:
    """Ends `sessions.messages.subscribe` for a session."""
    key = str((await resolve(call.parts, params.key, params.agent_id)).key)
    call.subscriptions.unwatch_messages(call.subscriber, key)
    return Subscribed(subscribed=False, key=call.parts.rows.key(key))


METHODS: tuple[Method[Any], ...] = (
    Method("sessions.subscribe", NoParams, Scope.READ, sessions_subscribe, "`{subscribed: true}`"),
    Method("sessions.unsubscribe", NoParams, Scope.READ, sessions_unsubscribe, "`{subscribed: false}`"),
    Method("sessions.messages.subscribe", KeyParams, Scope.READ, messages_subscribe, "`{subscribed: true, key}`"),
    Method("sessions.messages.unsubscribe", KeyParams, Scope.READ, messages_unsubscribe, "`{subscribed: false, key}`"),
)
