"""The first page of a chat and its choices, as OpenClaw's clients open one."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw
from msgspec.structs import replace

from backchannel.errors import InvalidRequest
from backchannel.gateway.addressing import find_by_short_id
from backchannel.gateway.calls import Call, method
from backchannel.gateway.methods.commands import CommandShown, commands_list
from backchannel.gateway.methods.history import (
    LISTED,
    SHORTEST_ANSWER,
    ChatHistoryParams,
    OpenedChat,
    open_chat,
    read_history,
    session_or_new,
)
from backchannel.gateway.methods.models import ModelListed, ModelsListParams, models_list
from backchannel.wire.answers import SessionFound
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.shapes import Answer, SharedParams


class ChatStartupParams(SharedParams, frozen=True, kw_only=True):
    session_key: str | None = None
    short_id: str | None = None
    agent_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = LISTED
    max_bytes: Annotated[int, Meta(ge=SHORTEST_ANSWER)] | None = None


class SessionsGetParams(SharedParams, frozen=True, kw_only=True):
    key: str
    agent_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = LISTED


class ChatMetadataParams(SharedParams, frozen=True, kw_only=True):
    agent_id: str | None = None


class NotOpened(Answer, frozen=True, kw_only=True):
    """The answer for a `shortId` that no session has, or several."""

    resolution: SessionFound


class SessionMessages(Answer, frozen=True, kw_only=True):
    messages: list[Raw]


class ChatMetadata(Answer, frozen=True, kw_only=True):
    models: list[ModelListed]
    commands: list[CommandShown]


@method("chat.startup", TokenScope.READ)
async def chat_startup(call: Call, params: ChatStartupParams) -> OpenedChat | NotOpened:
    """Opens a session: the end of its transcript, as `chat.history` reads it.

    Messages are shown as people read them. A message of another session has no prompt around it, and a `senderLabel`
    and `senderSession {sessionKey, agentId}`. Control words are left out.
    """
    if params.session_key is not None:
        return await _open(call, params, params.session_key, params.agent_id)
    if params.short_id is None:
        raise InvalidRequest("sessionKey: it is missing", param="sessionKey")
    found = await find_by_short_id(call.parts, params.short_id, params.agent_id)
    if found.key is None:
        return NotOpened(resolution=found)
    return replace(await _open(call, params, found.key, None), resolution=found)


async def _open(call: Call, params: ChatStartupParams, text: str, agent_id: str | None) -> OpenedChat:
    key, session = await session_or_new(call, text, agent_id)
    page = ChatHistoryParams(session_key=text, limit=params.limit, max_bytes=params.max_bytes)
    return await open_chat(call, key, session, page, for_people=True)


@method("sessions.get", TokenScope.READ)
async def sessions_get(call: Call, params: SessionsGetParams) -> SessionMessages:
    """Reads the end of a session's transcript; a session that is not there has none."""
    key, session = await session_or_new(call, params.key, params.agent_id)
    history, _ = await read_history(call, key, session, limit=params.limit, for_people=True)
    return SessionMessages(messages=history.messages)


@method("chat.metadata", TokenScope.READ)
async def chat_metadata(call: Call, params: ChatMetadataParams) -> ChatMetadata:
    """Lists what can be chosen in a chat: the models and the chat commands, as their own methods list them."""
    models = await models_list(call, ModelsListParams(agent_id=params.agent_id))
    commands = await commands_list(call, SharedNoParams())
    return ChatMetadata(models=models.models, commands=commands.commands)
