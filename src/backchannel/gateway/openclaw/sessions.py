"""Sessions that OpenClaw's clients make, write to, stop and wake by key."""

from __future__ import annotations

import uuid
from typing import Annotated

from msgspec import UNSET, Meta
from msgspec.structs import replace

from backchannel.core.caller_keys import RequestAddress
from backchannel.core.commands.commands import parse
from backchannel.core.keys import SessionKey
from backchannel.core.runs import MAX_RUN_S
from backchannel.core.sessions import NewSession, SessionPatch
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest, RunNotFound
from backchannel.gateway.addressing import (
    address_for_message,
    address_to_make,
    known_agent,
    look_at,
    no_session,
)
from backchannel.gateway.calls import Call, method
from backchannel.gateway.fields import (
    IdempotencyKey,
    Label,
    NothingAttached,
    digest_of,
    read_content,
    read_model,
    read_thinking,
)
from backchannel.gateway.methods.chat import ChatSendParams, chat_send, start_run
from backchannel.openclaw.rows import SessionRow
from backchannel.triggers import hooks
from backchannel.wire.answers import ChatStarted
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Answer, SharedParams

_REQUESTS = uuid.UUID("9d7a5c1e-3f5b-4a53-9a51-6a2a2f6f1d11")
"""The namespace of session ids that are made from an idempotency key."""


class SessionsCreateParams(SharedParams, frozen=True, kw_only=True):
    key: str | None = None
    agent_id: str | None = None
    label: Label | None = None
    display_name: Label | None = None
    model: str | None = None
    thinking_level: str | None = None
    message: str | None = None
    task: str | None = None
    attachments: NothingAttached = None
    idempotency_key: IdempotencyKey | None = None


class SessionCreated(Answer, frozen=True, kw_only=True):
    ok: bool
    key: str
    session_id: str
    entry: SessionRow
    run_started: bool
    run_id: str | None = None


class SendByKeyParams(SharedParams, frozen=True, kw_only=True):
    key: str
    message: str
    agent_id: str | None = None
    thinking: str | None = None
    timeout_ms: Annotated[int, Meta(gt=0, le=MAX_RUN_S * 1000)] | None = None
    attachments: NothingAttached = None
    idempotency_key: IdempotencyKey | None = None


class AbortByKeyParams(SharedParams, frozen=True, kw_only=True):
    key: str | None = None
    run_id: str | None = None
    agent_id: str | None = None


class SessionAborted(Answer, frozen=True, kw_only=True):
    ok: bool
    aborted_run_id: str | None
    status: str
    """`aborted` or `no-active-run`."""


@method("sessions.create", TokenScope.WRITE)
async def sessions_create(call: Call, params: SessionsCreateParams) -> SessionCreated:
    """Makes a session, under the key given or a new one, and starts its first run if there is a message.

    An existing session is changed as `sessions.patch` would change it; its `displayName` needs `operator.admin`. A
    repeated request with the same idempotency key changes nothing and gets the session as it is now.
    """
    at = await _address(call, params)
    making = NewSession(
        settings=SessionPatch(
            label=params.label or UNSET,
            display_name=params.display_name or UNSET,
            model=read_model(call.parts, params.model) or UNSET,
            thinking_level=read_thinking(params.thinking_level, "thinkingLevel") or UNSET,
        ),
        may_rename=TokenScope.ADMIN in call.holder.scopes,
    )
    with call.subscriptions.answering(call.subscriber, str(at.key)):
        started = await _make(call, params, at, making)
        entry = await look_at(call.parts, str(at.key))
    assert entry is not None, "it has just been made"
    return SessionCreated(
        ok=True,
        key=entry.key,
        session_id=entry.session_id,
        entry=entry,
        run_started=started is not None,
        run_id=None if started is None else started.run_id,
    )


async def _address(call: Call, params: SessionsCreateParams) -> RequestAddress:
    """Choose the session to make; a repeated request means the same session."""
    if params.key is not None:
        return await address_to_make(call.parts, params.key, params.agent_id, params.idempotency_key)
    agent = call.parts.agents.default_id if params.agent_id is None else known_agent(call.parts, params.agent_id)
    if params.idempotency_key is None:
        return RequestAddress(SessionKey.of(agent, "dashboard", str(uuid.uuid4())))
    name = uuid.uuid5(_REQUESTS, f"{call.holder.token_id}/{params.idempotency_key}")
    return RequestAddress(SessionKey.of(agent, "dashboard", str(name)))


async def _make(call: Call, params: SessionsCreateParams, at: RequestAddress, making: NewSession) -> ChatStarted | None:
    """Make the session and accept its first message in one commit."""
    message, idempotency_key = params.message or params.task or "", params.idempotency_key
    digest = digest_of(call.holder.token_id, "sessions.create", at.key, params)
    sent = ChatSendParams(
        session_key=str(at.key), session_id=at.session_id, message=message, idempotency_key=idempotency_key
    )
    if message and not parse(message):
        return await start_run(call, at.key, sent, digest, making)
    await call.parts.store.make_session(
        at.key, making, expected_session_id=at.session_id, idempotency_key=idempotency_key, digest=digest
    )
    if not message:
        return None
    # A chat command is a step of its own, and so has a key of its own.
    return await chat_send(call, replace(sent, idempotency_key=idempotency_key and f"{idempotency_key}/command"))


@method("sessions.send", TokenScope.WRITE)
async def sessions_send(call: Call, params: SendByKeyParams) -> ChatStarted:
    """Sends a message to an existing session, as `chat.send` does."""
    parts = call.parts
    at = await address_for_message(parts, params.key, params.agent_id, params.idempotency_key)
    if not parts.scheme.is_main(at.key) and await parts.store.session(str(at.key)) is None:
        raise no_session(parts, params.key)
    return await chat_send(
        call,
        ChatSendParams(
            session_key=str(at.key),
            session_id=at.session_id,
            message=params.message,
            thinking=params.thinking,
            timeout_ms=params.timeout_ms,
            idempotency_key=params.idempotency_key,
        ),
    )


@method("sessions.abort", TokenScope.WRITE)
async def sessions_abort(call: Call, params: AbortByKeyParams) -> SessionAborted:
    """Stops the running run of a session, or the run named, which may still be queued.

    If there is no run to stop, that is no error.
    """
    at = await _whose_run(call, params)
    aborted = await call.parts.runtime.abort(str(at.key), params.run_id, expected_session_id=at.session_id)
    return SessionAborted(
        ok=True,
        aborted_run_id=aborted[0] if aborted else None,
        status="aborted" if aborted else "no-active-run",
    )


async def _whose_run(call: Call, params: AbortByKeyParams) -> RequestAddress:
    """Find the session of the run to stop, by its key or by the run."""
    if params.key is not None:
        return await address_for_message(call.parts, params.key, params.agent_id)
    if params.run_id is None:
        raise InvalidRequest("key, runId: one of them is needed", param="key")
    run = await call.parts.store.run(params.run_id)
    if run is None:
        raise RunNotFound(f"no run {quoted(params.run_id)} (runs.list shows them)", runId=params.run_id)
    return RequestAddress(SessionKey.stored(run.session_key))


class WakeParams(SharedParams, frozen=True, kw_only=True):
    text: str
    agent_id: str | None = None
    session_key: str | None = None


class AgentWoken(Answer, frozen=True, kw_only=True):
    ok: bool
    message_id: str
    session_key: str


@method("wake", TokenScope.WRITE)
async def wake(call: Call, params: WakeParams) -> AgentWoken:
    """Leaves a note in a session, by default the main one; the agent reads it with the next message."""
    parts = call.parts
    read_content(params.text, "text")
    at = await address_for_message(parts, params.session_key or "main", params.agent_id)
    note = hooks.wake_note(params.text, parts.clock.now_ms())
    message_id = await parts.store.add_note(at.key, note, expected_session_id=at.session_id)
    return AgentWoken(ok=True, message_id=message_id, session_key=parts.rows.key(str(at.key)))
