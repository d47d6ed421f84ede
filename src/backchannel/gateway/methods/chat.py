"""Chat: sending a message to a session, stopping its run, leaving a note."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from backchannel.core.commands.commands import Command, CommandReply, Rank, parse
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Block, Provenance, ProvenanceKind
from backchannel.core.runs import MAX_RUN_S, RunAccepted, RunRequest, RunState
from backchannel.core.sessions import WEBCHAT, NewSession
from backchannel.gateway.addressing import address_for_message
from backchannel.gateway.calls import Call, method
from backchannel.gateway.fields import (
    IdempotencyKey,
    ImagesAttached,
    Label,
    digest_of,
    read_content,
    read_images,
    read_thinking,
)
from backchannel.storage.ids import new_id
from backchannel.wire.answers import ChatAborted, ChatStarted
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Answer, SharedParams


class ChatSendParams(SharedParams, frozen=True, kw_only=True):
    session_key: str
    message: str
    agent_id: str | None = None
    session_id: str | None = None
    deliver: bool = False
    thinking: str | None = None
    timeout_ms: Annotated[int, Meta(gt=0, le=MAX_RUN_S * 1000)] | None = None
    attachments: ImagesAttached = None
    idempotency_key: IdempotencyKey | None = None


class ChatAbortParams(SharedParams, frozen=True, kw_only=True):
    session_key: str
    agent_id: str | None = None
    run_id: str | None = None


class ChatInjectParams(SharedParams, frozen=True, kw_only=True):
    session_key: str
    message: str
    agent_id: str | None = None
    label: Label | None = None


class ChatInjected(Answer, frozen=True, kw_only=True):
    ok: bool
    message_id: str


@method("chat.send", TokenScope.WRITE)
async def chat_send(call: Call, params: ChatSendParams) -> ChatStarted:
    """Sends a message to a session, and makes the session if it is new; the answer comes as `chat` events.

    A repeated request gets the state of the first. A [chat command](../how-to/use-chat-commands.md) is answered at once
    with `status: ok` and its `reply`, which is also a `chat` event of the state `final`. `attachments` are images (PNG,
    JPEG, GIF, WebP) in base64, at most 20, within a frame; other files are refused.
    """
    at = await address_for_message(call.parts, params.session_key, params.agent_id, params.idempotency_key)
    params = replace(params, session_id=params.session_id or at.session_id)
    digest = digest_of(call.holder.token_id, "chat.send", at.key, params)
    if not params.attachments and (command := parse(params.message)):
        return await _carry_out(call, at.key, params, command, digest)
    return await start_run(call, at.key, params, digest)


async def start_run(
    call: Call, key: SessionKey, params: ChatSendParams, digest: str | None, making: NewSession | None = None
) -> ChatStarted:
    """Accept a message that is no chat command, with the settings of a new session."""
    request = RunRequest(
        key=key,
        content=_read_content(params),
        provenance=Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_channel="webchat"),
        id=params.idempotency_key,
        digest=digest,
        deliver=params.deliver,
        reply_to=None if params.deliver else WEBCHAT,
        thinking=read_thinking(params.thinking),
        timeout_s=None if params.timeout_ms is None else params.timeout_ms / 1000,
        expected_session_id=params.session_id,
        making=making,
    )
    if await _is_current(call, key, params.session_id):
        call.subscriptions.watch(call.subscriber, str(key))  # before it is accepted, so that no event is missed
    with call.subscriptions.answering(call.subscriber, str(key)):
        accepted = await call.parts.runtime.submit(request)
        call.subscriptions.follow(call.subscriber, accepted.run)
    return ChatStarted(run_id=accepted.run.id, status=shown_state(accepted))


async def _is_current(call: Call, key: SessionKey, session_id: str | None) -> bool:
    """Whether a session still has the id that the request names; a repeated request may name an old one."""
    if session_id is None:
        return True
    session = await call.parts.store.session(str(key))
    return session is not None and session.session_id == session_id


def _read_content(params: ChatSendParams) -> tuple[Block, ...]:
    """Read a message: its text and its images, of which one is enough."""
    images = read_images(params.attachments)
    text = read_content(params.message) if params.message.strip() or not images else ()
    return (*text, *images)


async def _carry_out(
    call: Call, key: SessionKey, params: ChatSendParams, command: Command | CommandReply, digest: str | None
) -> ChatStarted:
    """Carry out a chat command: it starts no run, and only its sender gets the answer."""
    text = await call.parts.commands.carry_out(
        command,
        key,
        Rank.of_operator(is_admin=TokenScope.ADMIN in call.holder.scopes),
        expected_session_id=params.session_id,
        idempotency_key=params.idempotency_key,
        digest=digest,
    )
    command_id = params.idempotency_key or new_id()
    with call.subscriptions.answering(call.subscriber, str(key)):
        call.subscriptions.answer(call.subscriber, command_id, str(key), text)
    return ChatStarted(run_id=command_id, status=RunState.OK.value, reply=text)


def shown_state(accepted: RunAccepted) -> str:
    """Say whether the run started or is queued; a repeated request gets its present state."""
    if accepted.run.state is RunState.RUNNING:
        return "started"
    return accepted.run.state.value


@method("chat.abort", TokenScope.WRITE)
async def chat_abort(call: Call, params: ChatAbortParams) -> ChatAborted:
    """Stops the running run of a session, or the run named, which may still be queued.

    If there is no run to stop, that is no error.
    """
    at = await address_for_message(call.parts, params.session_key, params.agent_id)
    run_ids = await call.parts.runtime.abort(str(at.key), params.run_id, expected_session_id=at.session_id)
    return ChatAborted(ok=True, aborted=bool(run_ids), run_ids=run_ids)


@method("chat.inject", TokenScope.WRITE)
async def chat_inject(call: Call, params: ChatInjectParams) -> ChatInjected:
    """Puts a note into a session; it starts no run and enters the transcript at the next boundary."""
    at = await address_for_message(call.parts, params.session_key, params.agent_id)
    read_content(params.message)
    message_id = await call.parts.runtime.inject(
        at.key, params.message, params.label, expected_session_id=at.session_id
    )
    return ChatInjected(ok=True, message_id=message_id)
