"""History: reading a session's transcript, and looking for a text in it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from backchannel.core.flows.steps import with_step
from backchannel.core.keys import SessionKey
from backchannel.core.messages import encode_message
from backchannel.core.sessions import OpenedSession, Session
from backchannel.errors import InvalidRequest, SessionNotFound
from backchannel.gateway.addressing import find_session_or_main
from backchannel.gateway.openclaw.places import placed_all
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.connections import Call, Method
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Answer, Params

LISTED, _MOST_LISTED = 200, 1000
_PENDING_SHOWN = 100
_FOUND, _MOST_FOUND = 20, 200
_LONGEST_QUERY = 512


class ChatHistory(Answer, frozen=True, kw_only=True):
    session_key: str
    messages: list[Raw]
    pending: list[Raw]
    has_more: bool
    pending_left_out: int | None = None
    """How many more wait than `pending` has."""
    session_id: str | None = None
    thinking_level: str | None = None


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


async def read_history(
    call: Call,
    key: SessionKey,
    session: Session | None,
    *,
    limit: int,
    max_bytes: int | None = None,
    before: str | None = None,
    after: str | None = None,
    for_people: bool = False,
) -> tuple[ChatHistory, OpenedSession | None]:
    """Read a page of a session's transcript, and what was read with it; a session that is not there yet has none.

    Raises:
        InvalidRequest: it cannot be read both before and after a message.
        NotFound: the message to read from is not in the transcript.
    """
    if before is not None and after is not None:
        raise InvalidRequest("before, after: only one of them can be given", param="before")
    if session is None:
        return ChatHistory(session_key=call.parts.rows.key(str(key)), messages=[], pending=[], has_more=False), None
    limit = min(limit, _MOST_LISTED)
    opened = await call.parts.store.opened(
        session, limit=limit, before=before, after=after, most_pending=_PENDING_SHOWN
    )
    room = min(call.connections.limits.frame_bytes, max_bytes or sys.maxsize)
    messages, pending, is_cut = _fitted(opened, room, is_forwards=after is not None, for_people=for_people)
    history = ChatHistory(
        session_key=call.parts.rows.key(session.key),
        session_id=session.session_id,
        messages=messages,
        pending=pending,
        pending_left_out=(opened.pending.total - len(pending)) or None,
        has_more=opened.page.has_more or is_cut,
        thinking_level=session.thinking_level,
    )
    return history, opened


def _fitted(
    opened: OpenedSession, room: int, *, is_forwards: bool, for_people: bool
) -> tuple[list[Raw], list[Raw], bool]:
    """Write as many messages, and as many that wait, as there is room for; reading backwards the newest are kept."""
    pending, _ = fit((encode_message(with_step(each)) for each in opened.pending.messages), room // 4)
    room -= 2 * sum(len(bytes(line)) for line in pending)  # OpenClaw's clients are told them in their own shape too
    lines = opened.page.lines
    in_order = lines if is_forwards else reversed(lines)
    messages, is_cut = fit(placed_all(in_order, for_people=for_people), room)
    return messages if is_forwards else messages[::-1], pending, is_cut


def fit(lines: Iterable[bytes], max_bytes: int) -> tuple[list[Raw], bool]:
    """Keep as many messages as an answer can hold, one at least, and tell whether any was left out.

    What is left out is read with the next page.
    """
    kept: list[Raw] = []
    size = 0
    for line in lines:
        size += len(line)
        if kept and size > max_bytes:
            return kept, True
        kept.append(Raw(line))
    return kept, False


async def session_or_main(call: Call, text: str, agent_id: str | None) -> tuple[SessionKey, Session | None]:
    """Find a session to read, a deleted one by its id too; a main session is there before anyone has spoken to it."""
    try:
        at, session = await find_session_or_main(call.parts, text, agent_id)
    except SessionNotFound:
        if (deleted := await _deleted(call.parts, text)) is None:
            raise
        return SessionKey.stored(deleted.key), deleted
    return at.key, session


async def _deleted(parts: GatewayParts, text: str) -> Session | None:
    """Find a deleted session by its id; of one whose key lives anew, nothing but its transcript is known any more."""
    entry = await parts.store.session_by_id(text.strip().lower())
    session = None if entry is None or entry.end_reason != "deleted" else await parts.store.session(entry.key)
    if entry is None or session is None or session.session_id == entry.session_id:
        return session
    return msgspec.structs.replace(
        session,
        session_id=entry.session_id,
        archived_at=entry.ended_at,
        label=None,
        display_name=None,
        model=None,
        thinking_level=None,
        verbose_level=None,
        running_run=None,
        queued=0,
    )


async def chat_search(call: Call, params: ChatSearchParams) -> ChatFound:
    """Looks for a text in a session's transcript, in whatever case, from its end or from a message backwards.

    A call looks at a bounded part of the transcript.
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


METHODS: tuple[Method[Any], ...] = (
    Method(
        "chat.search",
        ChatSearchParams,
        TokenScope.READ,
        chat_search,
        "`{matches: [{messageId, messageSeq, role, timestamp, excerpt, runId?}], hasMore, nextBefore?}`, newest first; "
        "with `hasMore`, `nextBefore` is the `before` of the next part, also where this one has no match",
    ),
)
