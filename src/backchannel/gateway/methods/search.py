"""Search: words in one transcript (`chat.search`) or in many (`sessions.search`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from backchannel.core.full_text.matches import Match, RankedMatch
from backchannel.core.full_text.queries import LONGEST_QUERY, SearchPlace, SearchQuery, SearchWanted, parse_query
from backchannel.core.full_text.ranking import search_text, snippet
from backchannel.core.keys import normalise_agent_id
from backchannel.core.messages import Role
from backchannel.core.sessions import Session
from backchannel.errors import SessionIdReplaced, SessionNotFound
from backchannel.gateway.addressing import find_session
from backchannel.gateway.calls import Call, method
from backchannel.gateway.methods.history import earlier, session_or_main
from backchannel.gateway.methods.sessions import row_of
from backchannel.openclaw.rows import SessionRow
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Answer, Params, SharedParams

_MOST_SESSIONS = 200
_FOUND, _MOST_FOUND = 20, 200


class ChatSearchParams(Params, frozen=True, kw_only=True):
    session_key: str
    query: Annotated[str, Meta(min_length=1, max_length=LONGEST_QUERY)]
    agent_id: str | None = None
    transcript_id: str | None = None
    """An earlier transcript of the session, from before a reset."""
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
    """Finds words in a session's transcript, newest first, from its end or before a message.

    The query is written as for `sessions_search`; its last word may be unfinished. Tools are searched too.
    """
    query = parse_query(params.query, is_open=True)
    if params.transcript_id is None:
        _, session = await session_or_main(call, params.session_key, params.agent_id)
    else:
        _, session = await earlier(call, params.session_key, params.agent_id, params.transcript_id)
    if session is None:
        return ChatFound(matches=[], has_more=False)
    found = await call.parts.store.search(
        session.session_id, query, before=params.before, limit=min(params.limit, _MOST_FOUND)
    )
    last = found.found[-1].message.id if found.next_below is not None else None
    return ChatFound(
        matches=[_chat_match(match, query) for match in found.found], has_more=last is not None, next_before=last
    )


def _chat_match(match: Match, query: SearchQuery) -> ChatMatch:
    return ChatMatch(
        message_id=match.message.id,
        message_seq=match.seq + 1,
        role=match.message.role.value,
        timestamp=match.message.timestamp,
        excerpt=_excerpt(match, query, with_tools=True),
        run_id=match.message.run_id,
    )


def _excerpt(match: Match, query: SearchQuery, *, with_tools: bool) -> str:
    return snippet(search_text(match.message).text(with_tools=with_tools), query) or ""


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
    """From 0 to 1: how well it matches."""


class SessionsFound(Answer, frozen=True, kw_only=True):
    results: list[FoundMessage]
    truncated: bool | UnsetType = UNSET
    """Whether there are more, or older messages are still being indexed."""
    sessions: list[SessionRow] | UnsetType = UNSET
    """The sessions found, with `scope`."""


@method("sessions.search", TokenScope.READ)
async def sessions_search(call: Call, params: SessionsSearchParams) -> SessionsFound:
    """Finds words in all sessions, or in those named, best first.

    The query is written as for the tool `sessions_search`; its last word may be unfinished. Deleted sessions count, and
    transcripts that a reset has replaced: `chat.history` reads them, with the `sessionId` of the hit as `transcriptId`.
    With a `scope` they count only if its `archived` is `all`.
    """
    scope = params.scope or SearchScope(archived="all")
    keys = await _keys(call, params)
    agent_id = params.agent_id or scope.agent_id
    wanted = SearchWanted(
        query=parse_query(params.query, is_open=True),
        roles=(Role.USER.value, Role.ASSISTANT.value),
        keys=keys,
        agent_id=None if agent_id is None or keys is not None else normalise_agent_id(agent_id),
        is_current=scope.archived != "all",
        archived=None if scope.archived == "all" or keys is not None else scope.archived,
    )
    place = SearchPlace(now=call.parts.clock.now_ms())
    found = await call.parts.store.search_ranked(wanted, place=place, since=None, limit=params.limit)
    hits = [each for each in found.found if call.parts.scheme.lists(each.match.key)]
    return SessionsFound(
        results=[_found_message(call, each, wanted.query) for each in hits],
        truncated=True if found.next is not None or not found.is_complete else UNSET,
        sessions=UNSET if params.scope is None else await _rows(call, [each.match.key for each in hits]),
    )


def _found_message(call: Call, each: RankedMatch, query: SearchQuery) -> FoundMessage:
    match = each.match
    return FoundMessage(
        session_key=call.parts.rows.key(match.key),
        session_id=match.session_id,
        message_id=match.message.id,
        role=match.message.role.value,
        timestamp=match.message.timestamp,
        snippet=_excerpt(match, query, with_tools=False),
        score=round(each.rank, 4),
    )


async def _rows(call: Call, keys: Sequence[str]) -> list[SessionRow]:
    """Show the sessions of the hits, each once."""
    found = [await call.parts.store.session(key) for key in dict.fromkeys(keys)]
    return [await row_of(call, session) for session in found if session is not None]


async def _keys(call: Call, params: SessionsSearchParams) -> tuple[str, ...] | None:
    """Read which sessions are named; those that are not there are passed over."""
    if params.session_keys is None:
        return None
    named = [await _named(call, text, params.agent_id) for text in params.session_keys]
    return tuple(session.key for session in named if session is not None)


async def _named(call: Call, text: str, agent_id: str | None) -> Session | None:
    try:
        return await find_session(call.parts, text, agent_id, archived=True)
    except (SessionIdReplaced, SessionNotFound):
        return None
    finally:
        await asyncio.sleep(0)  # others get their turn between many of them
