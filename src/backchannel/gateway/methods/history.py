"""History: a session's transcript, a page at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Set
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from backchannel.core.flows.steps import with_step
from backchannel.core.keys import SessionKey
from backchannel.core.messages import FIRST_PENDING, PendingPlace, encode_message
from backchannel.core.runs import RunState
from backchannel.core.sessions import OpenedSession, Session
from backchannel.errors import InvalidRequest, SessionNotFound
from backchannel.gateway.addressing import check_agent, find_session_or_main, resolve
from backchannel.gateway.calls import Call, method
from backchannel.gateway.openclaw.lines import pending_inputs, placed_all
from backchannel.gateway.parts import GatewayParts
from backchannel.openclaw.rows import InFlightRun, PendingInputs, SessionRow
from backchannel.tools.base import read_cursor, write_cursor
from backchannel.wire.answers import FollowedTranscript, SessionFound
from backchannel.wire.frames import TokenScope
from backchannel.wire.rows import ModelShown
from backchannel.wire.shapes import Answer, SharedParams

LISTED, _MOST_LISTED = 200, 1000
SHORTEST_ANSWER = 1024
_PENDING_SHOWN = 100


class ChatHistoryParams(SharedParams, frozen=True, kw_only=True):
    session_key: str
    agent_id: str | None = None
    transcript_id: str | None = None
    """An earlier transcript of the session, from before a reset."""
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = LISTED
    max_bytes: Annotated[int, Meta(ge=SHORTEST_ANSWER)] | None = None
    before: str | None = None
    after: str | None = None
    pending_cursor: str | None = None
    """The `pendingNext` of the page before: `pending` goes on there."""


class ChatHistory(Answer, frozen=True, kw_only=True):
    session_key: str
    messages: list[Raw]
    pending: list[Raw]
    """The messages that are accepted and not yet in the transcript."""
    has_more: bool
    pending_left_out: int | None = None
    """The number of waiting messages behind those in `pending`."""
    pending_next: str | None = None
    """The `pendingCursor` of the next page of `pending`."""
    session_id: str | None = None
    thinking_level: str | None = None
    follows: FollowedTranscript | None = None
    """The transcript before this one, if a reset ended it."""


class OpenedChat(ChatHistory, frozen=True, kw_only=True):
    """A page of a session's transcript, with what else a client shows of the session."""

    defaults: ModelShown
    verbose_level: str | None = None
    total_messages: int | None = None
    session_info: SessionRow | None = None
    """Its row; absent for a deleted session whose key is in use again."""
    in_flight_run: InFlightRun | None = None
    """The run at work, and its text as far as anybody has listened."""
    pending_inputs: PendingInputs | None = None
    resolution: SessionFound | None = None
    """The session that a `shortId` names."""


@method("chat.history", TokenScope.READ)
async def chat_history(call: Call, params: ChatHistoryParams) -> OpenedChat:
    """Reads a session's transcript, oldest first, as it is stored.

    A session that does not exist yet is empty and has no `sessionId`: its first message makes it. A deleted session is
    read by its id. OpenClaw's clients with a name that begins with `openclaw-` get messages as `chat.startup` shows
    them.
    """
    if params.transcript_id is None:
        key, session = await session_or_new(call, params.session_key, params.agent_id)
    else:
        key, session = await earlier(call, params.session_key, params.agent_id, params.transcript_id)
    return await open_chat(call, key, session, params)


async def session_or_new(call: Call, text: str, agent_id: str | None) -> tuple[SessionKey, Session | None]:
    """Find a session; None if a message would make it.

    Raises:
        SessionNotFound, InvalidSessionKey, UnknownAgent: no message can make it.
    """
    try:
        return await session_or_main(call, text, agent_id)
    except SessionNotFound:
        key = (await resolve(call.parts, text, agent_id)).key
        check_agent(call.parts, key.agent)
        return key, None


async def open_chat(
    call: Call,
    key: SessionKey,
    session: Session | None,
    params: ChatHistoryParams,
    *,
    for_people: bool = False,
) -> OpenedChat:
    """Read the end of a session's transcript, or the page asked for, and what a client shows beside it."""
    parts = call.parts
    if session is None or not _is_over(session, params.transcript_id or params.session_key):
        call.subscriptions.watch(call.subscriber, str(key))  # before it is read, so that no event is missed
    with call.subscriptions.hearing_ends(str(key)) as ended:
        history, opened = await read_history(
            call,
            key,
            session,
            limit=params.limit,
            max_bytes=params.max_bytes,
            before=params.before,
            after=params.after,
            pending_cursor=params.pending_cursor,
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
        pending_inputs=None if opened is None else pending_inputs(opened.pending, history.pending),
    )


def _is_over(session: Session, text: str | None) -> bool:
    """Whether a transcript was named by its id and has ended: it has no more events of its own."""
    return session.archived_at is not None and text is not None and text.strip().lower() == session.session_id


def _in_flight(call: Call, row: SessionRow | None, ended: Set[str]) -> InFlightRun | None:
    """Show the run at work, so that a client does not take the session for idle.

    A run whose end was sent while the rows were read is left out: the client would wait for that end for ever.
    """
    if row is None or row.status != RunState.RUNNING.value or not row.active_run_ids:
        return None
    run_id = row.active_run_ids[0]
    return None if run_id in ended else InFlightRun(run_id=run_id, text=call.subscriptions.saying_now(run_id))


async def read_history(
    call: Call,
    key: SessionKey,
    session: Session | None,
    *,
    limit: int,
    max_bytes: int | None = None,
    before: str | None = None,
    after: str | None = None,
    pending_cursor: str | None = None,
    for_people: bool = False,
) -> tuple[ChatHistory, OpenedSession | None]:
    """Read a page of a session's transcript, and what was read with it; a new session has none.

    Raises:
        InvalidRequest: it cannot be read both before and after a message.
        NotFound: the message to read from is not in the transcript.
    """
    if before is not None and after is not None:
        raise InvalidRequest("before, after: only one of them can be given", param="before")
    if session is None:
        return ChatHistory(session_key=call.parts.rows.key(str(key)), messages=[], pending=[], has_more=False), None
    limit = min(limit, _MOST_LISTED)
    place = FIRST_PENDING if pending_cursor is None else read_cursor(pending_cursor, session.key, PendingPlace)
    opened = await call.parts.store.opened(
        session, limit=limit, before=before, after=after, most_pending=_PENDING_SHOWN, pending_after=place
    )
    room = min(call.connections.limits.frame_bytes, max_bytes or sys.maxsize)
    messages, pending, is_cut = _fitted(opened, room, is_forwards=after is not None, for_people=for_people)
    left_out = opened.pending.total - len(pending)
    history = ChatHistory(
        session_key=call.parts.rows.key(session.key),
        session_id=session.session_id,
        messages=messages,
        pending=pending,
        pending_left_out=left_out or None,
        pending_next=write_cursor(session.key, opened.pending.places[len(pending) - 1]) if left_out else None,
        has_more=opened.page.has_more or is_cut,
        thinking_level=session.thinking_level,
        follows=None if opened.follows is None else FollowedTranscript(**opened.follows._asdict()),
    )
    return history, opened


def _fitted(
    opened: OpenedSession, room: int, *, is_forwards: bool, for_people: bool
) -> tuple[list[Raw], list[Raw], bool]:
    """Write as many messages, and waiting messages, as fit; reading backwards keeps the newest."""
    pending, _ = fit((encode_message(with_step(each)) for each in opened.pending.messages), room // 4)
    room -= 2 * sum(len(bytes(line)) for line in pending)  # OpenClaw's shape repeats them
    lines = opened.page.lines
    in_order = lines if is_forwards else reversed(lines)
    messages, is_cut = fit(placed_all(in_order, for_people=for_people), room)
    return messages if is_forwards else messages[::-1], pending, is_cut


def fit(lines: Iterable[bytes], max_bytes: int) -> tuple[list[Raw], bool]:
    """Keep as many messages as an answer can hold, at least one, and say whether any was left out.

    The next page has the rest.
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
    """Find a session to read, or a deleted one by its id; a main session may have no row yet."""
    try:
        at, session = await find_session_or_main(call.parts, text, agent_id)
    except SessionNotFound:
        if (deleted := await _ended(call.parts, text, "deleted")) is None:
            raise
        return SessionKey.stored(deleted.key), deleted
    return at.key, session


async def earlier(call: Call, text: str, agent_id: str | None, transcript_id: str) -> tuple[SessionKey, Session]:
    """Find a transcript of a session by its id, as a session that is over.

    Raises:
        SessionNotFound: the session has no such transcript.
    """
    key = (await resolve(call.parts, text, agent_id)).key
    session = await _ended(call.parts, transcript_id)
    if session is None or session.key != str(key):
        raise SessionNotFound(
            f"{text} has no ended transcript {transcript_id!r} (transcripts.list shows those there are)", key=text
        )
    return key, session


async def _ended(parts: GatewayParts, text: str, reason: str | None = None) -> Session | None:
    """Find an ended transcript by its id, or None if it ended for another reason than that."""
    entry = await parts.store.session_by_id(text.strip().lower())
    if entry is None or entry.end_reason in (None, "importing") or entry.end_reason != (reason or entry.end_reason):
        return None
    session = await parts.store.session(entry.key)
    if session is None or session.session_id == entry.session_id:
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
