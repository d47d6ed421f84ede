"""Search: texts in one transcript (`chat.search`) or in many (`sessions.search`)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from backchannel.core.keys import normalise_agent_id
from backchannel.core.messages import Role
from backchannel.core.sessions import Session, SessionFilter
from backchannel.errors import SessionIdReplaced, SessionNotFound
from backchannel.gateway.addressing import find_session
from backchannel.gateway.calls import Call, method
from backchannel.gateway.methods.history import session_or_main
from backchannel.gateway.methods.sessions import row_of
from backchannel.wire.frames import TokenScope
from backchannel.wire.rows import SessionRow
from backchannel.wire.shapes import Answer, Params, SharedParams

_MOST_SESSIONS = 200
_FOUND, _MOST_FOUND = 20, 200
_LONGEST_QUERY = 512


class ChatSearchParams(Params, frozen=True, kw_only=True):
    session_key: str
    query: Annotated[str, Meta(min_length=1, max_length=_LONGEST_QUERY)]
    agent_id: str | None = None
    before: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _FOUND


class ChatMatch(Answer, frozen=True, kw_only=True):
    message_id: str
    message_seq: int
    role: str
    timestamp: int
    excerpt: str
    run_id: str | None = None


class ChatFound(Answer, frozen=True, kw_only=True):
    matches: list[ChatMatch]
    has_more: bool
    next_before: str | None = None
    """The `before` of the next part, even if this part has no match."""


@method("chat.search", TokenScope.READ)
async def chat_search(call: Call, params: ChatSearchParams) -> ChatFound:
    """Finds a text in a session's transcript, newest first, from its end or before a message; case does not matter.

    A call reads a bounded part of the transcript.
    """
    _, session = await session_or_main(call, params.session_key, params.agent_id)
    if session is None:
        return ChatFound(matches=[], has_more=False)
    found = await call.parts.store.search(
        session.session_id, params.query, before=params.before, limit=min(params.limit, _MOST_FOUND)
    )
    return ChatFound(
        matches=[
            ChatMatch(
                message_id=match.message.id,
                message_seq=match.seq + 1,
                role=match.message.role.value,
                timestamp=match.message.timestamp,
                excerpt=match.excerpt,
                run_id=match.message.run_id,
            )
            for match in found.found
        ],
        has_more=found.last is not None,
        next_before=found.last,
    )


class SearchScope(SharedParams, frozen=True, kw_only=True):
    """The sessions to search, in the words of `sessions.list`."""

    agent_id: str | None = None
    archived: bool | Literal["all"] = False


class SessionsSearchParams(SharedParams, frozen=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=4096)]
    limit: Annotated[int, Meta(ge=1, le=25)] = 10
    agent_id: str | None = None
    session_keys: Annotated[list[str], Meta(min_length=1, max_length=_MOST_SESSIONS)] | None = None
    scope: SearchScope | None = None
    """With it, the answer has the rows of the sessions found."""


class FoundMessage(Answer, frozen=True, kw_only=True):
    session_key: str
    session_id: str
    message_id: str
    role: str
    timestamp: int
    snippet: str
    score: float
    """Always 1."""


class SessionsFound(Answer, frozen=True, kw_only=True):
    results: list[FoundMessage]
    truncated: bool | UnsetType = UNSET
    """Whether a part of the sessions was not searched."""
    sessions: list[SessionRow] | UnsetType = UNSET
    """The sessions found, with `scope`."""


@method("sessions.search", TokenScope.READ)
async def sessions_search(call: Call, params: SessionsSearchParams) -> SessionsFound:
    """Finds a text in the newest sessions, or in those named; case does not matter.

    A call reads a bounded part of the transcripts.
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
