"""`sessions.search`: which sessions have a text, as OpenClaw's Control UI asks; `chat.search` looks into one."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from backchannel.core.keys import normalise_agent_id
from backchannel.core.messages import Role
from backchannel.core.sessions import Session, SessionFilter
from backchannel.errors import SessionIdReplaced, SessionNotFound
from backchannel.gateway.addressing import find_session
from backchannel.gateway.methods.sessions import row_of
from backchannel.gateway.ws.connections import Call, Method
from backchannel.wire.frames import TokenScope
from backchannel.wire.rows import SessionRow
from backchannel.wire.shapes import Answer, SharedParams

_MOST_SESSIONS = 200


class SearchScope(SharedParams, frozen=True, kw_only=True):
    """Which sessions are meant, in the words of `sessions.list`."""

    agent_id: str | None = None
    archived: bool | Literal["all"] = False


class SessionsSearchParams(SharedParams, frozen=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=4096)]
    limit: Annotated[int, Meta(ge=1, le=25)] = 10
    agent_id: str | None = None
    session_keys: Annotated[list[str], Meta(min_length=1, max_length=_MOST_SESSIONS)] | None = None
    scope: SearchScope | None = None
    """Given by a client that wants the rows of what is found, too."""


class FoundMessage(Answer, frozen=True, kw_only=True):
    session_key: str
    session_id: str
    message_id: str
    role: str
    timestamp: int
    snippet: str
    score: float


class SessionsFound(Answer, frozen=True, kw_only=True):
    results: list[FoundMessage]
    truncated: bool | UnsetType = UNSET
    sessions: list[SessionRow] | UnsetType = UNSET


async def sessions_search(call: Call, params: SessionsSearchParams) -> SessionsFound:
    """Looks for a text in what was said in the newest sessions, or in those named, in whatever case.

    A call looks at a bounded part of them.
    """
    sessions, has_more = await _sessions(call, params)
    found = await call.parts.store.search_each(
        list(sessions), params.query, roles=(Role.USER, Role.ASSISTANT), limit=params.limit
    )
    hits = dict.fromkeys(session_id for session_id, _ in found.found)
    return SessionsFound(
        results=[
            FoundMessage(
                session_key=call.parts.rows.key(sessions[session_id].key),
                session_id=session_id,
                message_id=match.message.id,
                role=match.message.role.value,
                timestamp=match.message.timestamp,
                snippet=match.excerpt,
                score=1.0,  # it has the text: none has it more than another
            )
            for session_id, match in found.found
        ],
        truncated=True if found.is_cut or has_more else UNSET,
        sessions=UNSET if params.scope is None else [await row_of(call, sessions[id]) for id in hits],
    )


async def _sessions(call: Call, params: SessionsSearchParams) -> tuple[dict[str, Session], bool]:
    """Load the sessions to look into, by their ids, newest activity first, and tell whether there are more."""
    if params.session_keys is not None:
        named = [await _named(call, text, params.agent_id) for text in params.session_keys]
        return {session.session_id: session for session in named if session is not None}, False
    scope = params.scope or SearchScope()
    agent_id = params.agent_id or scope.agent_id
    wanted = SessionFilter(
        agent_id=None if agent_id is None else normalise_agent_id(agent_id),
        archived=None if scope.archived == "all" else scope.archived,
    )
    page = await call.parts.store.sessions(wanted, after=None, limit=_MOST_SESSIONS + 1)
    return {session.session_id: session for session in page[:_MOST_SESSIONS]}, len(page) > _MOST_SESSIONS


async def _named(call: Call, text: str, agent_id: str | None) -> Session | None:
    try:
        return await find_session(call.parts, text, agent_id, archived=True)
    except (SessionIdReplaced, SessionNotFound):
        return None
    finally:
        await asyncio.sleep(0)  # others get their turn between many of them


METHODS: tuple[Method[Any], ...] = (
    Method(
        "sessions.search",
        SessionsSearchParams,
        TokenScope.READ,
        sessions_search,
        "`{results: [{sessionKey, sessionId, messageId, role: user | assistant, timestamp, snippet, score}], "
        "truncated?, sessions?}`; `score` is always 1, `truncated` says that not everything was looked at, and with "
        "`scope` there are the [rows](#rows-of-sessions) of what was found",
    ),
)
