"""What a client reads when it opens a session: its history with its row, and what can be chosen there."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Any

from msgspec import Meta, Raw
from msgspec.structs import replace

from backchannel.core.keys import SessionKey
from backchannel.core.messages import PendingMessages
from backchannel.core.runs import RunState
from backchannel.core.sessions import Session
from backchannel.errors import InvalidRequest, SessionNotFound
from backchannel.gateway.addressing import check_agent, find_by_short_id, resolve
from backchannel.gateway.methods.catalog import (
    CommandShown,
    ModelListed,
    ModelsListParams,
    commands_list,
    models_list,
)
from backchannel.gateway.methods.history import LISTED, ChatHistory, read_history, session_or_main
from backchannel.gateway.ws.connections import Call, Method
from backchannel.wire.answers import SessionFound
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.rows import ModelShown, SessionRow
from backchannel.wire.shapes import Answer, SharedParams

_SHORTEST = 1024
_MOST_INPUTS = 20


class ChatHistoryParams(SharedParams, frozen=True, kw_only=True):
    session_key: str
    agent_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = LISTED
    max_bytes: Annotated[int, Meta(ge=_SHORTEST)] | None = None
    before: str | None = None
    after: str | None = None


class ChatStartupParams(SharedParams, frozen=True, kw_only=True):
    session_key: str | None = None
    short_id: str | None = None
    agent_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = LISTED
    max_bytes: Annotated[int, Meta(ge=_SHORTEST)] | None = None


class SessionsGetParams(SharedParams, frozen=True, kw_only=True):
    key: str
    agent_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = LISTED


class ChatMetadataParams(SharedParams, frozen=True, kw_only=True):
    agent_id: str | None = None


class InFlightRun(Answer, frozen=True, kw_only=True, omit_defaults=False):
    """A run that is at work, and what it has said by now; empty where nobody has listened."""

    run_id: str
    text: str


class PendingInput(Answer, frozen=True, kw_only=True):
    """A message that was accepted and is not yet in the transcript."""

    id: str
    state: str
    message: Raw
    accepted_at: int
    run_id: str | None = None


class PendingInputs(Answer, frozen=True, kw_only=True):
    """What waits, as OpenClaw's clients read it; the first ones of many."""

    items: list[PendingInput]
    total: int


class OpenedChat(ChatHistory, frozen=True, kw_only=True):
    """A page of a session's transcript, with what else a client shows of the session."""

    defaults: ModelShown
    verbose_level: str | None = None
    total_messages: int | None = None
    session_info: SessionRow | None = None
    in_flight_run: InFlightRun | None = None
    pending_inputs: PendingInputs | None = None
    resolution: SessionFound | None = None
    """Which session it is, where it was named by a short id."""


class NotOpened(Answer, frozen=True, kw_only=True):
    """What is said of a session that was named by a short id, which none has, or several."""

    resolution: SessionFound


class SessionMessages(Answer, frozen=True, kw_only=True):
    messages: list[Raw]


class ChatMetadata(Answer, frozen=True, kw_only=True):
    models: list[ModelListed]
    commands: list[CommandShown]


async def chat_history(call: Call, params: ChatHistoryParams) -> OpenedChat:
    """Reads a session's transcript, oldest first, as it is stored; `pending` is accepted and not yet in it.

    A key that no session has is one that the first message makes: clients open a conversation so before anyone speaks.
    """
    key, session = await _perhaps_new(call, params.session_key, params.agent_id)
    return await _open(call, key, session, params, before=params.before, after=params.after)


async def chat_startup(call: Call, params: ChatStartupParams) -> OpenedChat | NotOpened:
    """Opens a session: the end of its transcript, as `chat.history` reads it; a session that is not there has none."""
    if params.session_key is not None:
        key, session = await _perhaps_new(call, params.session_key, params.agent_id)
        return await _open(call, key, session, params, for_people=True)
    if params.short_id is None:
        raise InvalidRequest("sessionKey: it is needed", param="sessionKey")
    found = await find_by_short_id(call.parts, params.short_id, params.agent_id)
    if found.key is None:
        return NotOpened(resolution=found)
    params = replace(params, session_key=found.key, agent_id=None)
    key, session = await _perhaps_new(call, found.key, None)
    return replace(await _open(call, key, session, params, for_people=True), resolution=found)


async def _perhaps_new(call: Call, text: str, agent_id: str | None) -> tuple[SessionKey, Session | None]:
    """Find a session; None where a message would make it.

    Raises:
        SessionNotFound, InvalidSessionKey, UnknownAgent: no message can make it.
    """
    try:
        return await session_or_main(call, text, agent_id)
    except SessionNotFound:
        key = (await resolve(call.parts, text, agent_id)).key
        check_agent(call.parts, key.agent)
        return key, None


async def _open(
    call: Call,
    key: SessionKey,
    session: Session | None,
    params: ChatHistoryParams | ChatStartupParams,
    *,
    before: str | None = None,
    after: str | None = None,
    for_people: bool = False,
) -> OpenedChat:
    parts = call.parts
    if session is None or not _is_over(session, params.session_key):
        call.subscriptions.watch(call.subscriber, str(key))  # before it is read, so that no event is missed
    with call.subscriptions.hearing_ends(str(key)) as ended:
        history, opened = await read_history(
            call,
            key,
            session,
            limit=params.limit,
            max_bytes=params.max_bytes,
            before=before,
            after=after,
            for_people=for_people or call.subscriber.is_for_people,
        )
    row = parts.rows.session_row(*opened.seen) if opened and opened.seen else None
    return OpenedChat(
        **{name: getattr(history, name) for name in ChatHistory.__struct_fields__},
        defaults=parts.rows.model(parts.agents.get(parts.agents.default_id).model) or ModelShown(),
        verbose_level=None if session is None else session.verbose_level,
        total_messages=opened and opened.length,
        session_info=row,
        in_flight_run=_in_flight(call, row, ended),
        pending_inputs=None if opened is None else _pending_inputs(opened.pending, history.pending),
    )


def _pending_inputs(pending: PendingMessages, lines: list[Raw]) -> PendingInputs:
    """Show what waits once more, in OpenClaw's shape: as many as its clients take, of those that fit the answer."""
    shown = zip(pending.messages[:_MOST_INPUTS], lines, strict=False)
    return PendingInputs(
        items=[
            PendingInput(id=each.id, state="queued", message=line, accepted_at=each.timestamp, run_id=each.run_id)
            for each, line in shown
        ],
        total=pending.total,
    )


def _is_over(session: Session, text: str | None) -> bool:
    """Whether a session was named by its id and is deleted: nothing is left to happen, but to others of its key."""
    return session.archived_at is not None and text is not None and text.strip().lower() == session.session_id


def _in_flight(call: Call, row: SessionRow | None, ended: Set[str]) -> InFlightRun | None:
    """Show the run at work: whoever opens a session in the middle of it shall not take it for idle.

    One whose end was told while the rows were read is not shown: a client would wait for that end for ever.
    """
    if row is None or row.status != RunState.RUNNING.value or not row.active_run_ids:
        return None
    run_id = row.active_run_ids[0]
    return None if run_id in ended else InFlightRun(run_id=run_id, text=call.subscriptions.saying_now(run_id))


async def sessions_get(call: Call, params: SessionsGetParams) -> SessionMessages:
    """Reads the end of a session's transcript; a session that is not there has none."""
    key, session = await _perhaps_new(call, params.key, params.agent_id)
    history, _ = await read_history(call, key, session, limit=params.limit, for_people=True)
    return SessionMessages(messages=history.messages)


async def chat_metadata(call: Call, params: ChatMetadataParams) -> ChatMetadata:
    """Lists what can be chosen in a chat: the models and the chat commands, as their own methods list them."""
    models = await models_list(call, ModelsListParams(agent_id=params.agent_id))
    commands = await commands_list(call, SharedNoParams())
    return ChatMetadata(models=models.models, commands=commands.commands)


_OPENED = (
    "`{sessionKey, sessionId?, messages, pending, pendingLeftOut?, hasMore, thinkingLevel?, verboseLevel?, "
    "totalMessages?, defaults {modelProvider, model, contextTokens}, sessionInfo?, inFlightRun? {runId, text}, "
    "pendingInputs? {items: [{id, state, message, acceptedAt, runId?}], total}}`; "
    "`sessionInfo` is [the row](#rows-of-sessions), `inFlightRun` a run at work and what it has said, as far as "
    "anybody has listened"
)

METHODS: tuple[Method[Any], ...] = (
    Method(
        "chat.history",
        ChatHistoryParams,
        TokenScope.READ,
        chat_history,
        _OPENED + "; without `sessionId` there is no such session yet, and its first message makes it. A deleted "
        "session is read by its id, without `sessionInfo` where its key lives anew. "
        "To clients of OpenClaw's that call themselves `openclaw-…`, the messages are those that people read, as in "
        "`chat.startup`",
    ),
    Method(
        "chat.startup",
        ChatStartupParams,
        TokenScope.READ,
        chat_startup,
        _OPENED + "; with `shortId` in place of a key `{resolution {ok}}`: sessions have none here. Messages are "
        "those that people read: what another session said has no prompt around it, and its `senderLabel` and "
        "`senderSession {sessionKey, agentId}`; control words are left out",
    ),
    Method("chat.metadata", ChatMetadataParams, TokenScope.READ, chat_metadata, "`{models, commands}`"),
    Method("sessions.get", SessionsGetParams, TokenScope.READ, sessions_get, "`{messages}`"),
)
