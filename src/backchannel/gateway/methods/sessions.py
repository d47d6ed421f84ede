"""Sessions: listing, finding, resetting, deleting and subscribing to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from backchannel.core.compaction.values import CompactionState
from backchannel.core.keys import MAX_KEY_LENGTH, Kind, SessionKey, normalise_agent_id
from backchannel.core.sessions import Session, SessionFilter
from backchannel.core.text import one_line, quoted
from backchannel.errors import InvalidRequest, SessionNotFound
from backchannel.gateway.addressing import (
    address_existing,
    check_agent,
    find_by_short_id,
    find_labelled,
    find_session,
    no_session,
    operator_keys,
    resolve,
)
from backchannel.gateway.calls import Call, method
from backchannel.openclaw.rows import SessionRow
from backchannel.tools.listing import active_since, read_page
from backchannel.tools.rows import preview, title_of
from backchannel.wire.answers import (
    DeletedSession,
    EventsSubscribed,
    SessionCompacted,
    SessionDeleted,
    SessionDescribed,
    SessionFound,
    SessionPatched,
    SessionRows,
)
from backchannel.wire.frames import SharedNoParams, TokenScope
from backchannel.wire.rows import ModelShown
from backchannel.wire.shapes import Answer, SharedParams

_LISTED, _MOST_LISTED, _MOST_PREVIEWED = 100, 1000, 64
_PREVIEW_DEPTH = 5
_KINDS = tuple(kind.value for kind in Kind)
_LONGEST_WISH = 2000
_NOT_UNDONE = {
    CompactionState.BUSY: "a run is active: the summary is taken back when it has ended",
    CompactionState.GONE: "there is no summary to take back",
}


class SessionsListParams(SharedParams, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _LISTED
    cursor: str | None = None
    offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    active_minutes: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    search: Annotated[str, Meta(max_length=MAX_KEY_LENGTH)] | None = None
    label: str | None = None
    agent_id: str | None = None
    spawned_by: str | None = None
    kinds: tuple[str, ...] = ()
    archived: bool | Literal["all"] = False
    include_last_message: bool = False
    include_derived_titles: bool = False


class Reference(SharedParams, frozen=True, kw_only=True):
    """A session in the address of a page."""

    key: str


class SessionsResolveParams(SharedParams, frozen=True, kw_only=True):
    key: str | None = None
    session_id: str | None = None
    label: str | None = None
    reference: Reference | None = None
    short_id: str | None = None
    agent_id: str | None = None
    allow_missing: bool = False


class KeyParams(SharedParams, frozen=True, kw_only=True):
    key: str
    agent_id: str | None = None


class SessionsCompactParams(KeyParams, frozen=True, kw_only=True):
    instructions: Annotated[str, Meta(max_length=_LONGEST_WISH)] | None = None
    undo: bool = False


class SessionsPreviewParams(SharedParams, frozen=True, kw_only=True):
    keys: Annotated[list[str], Meta(min_length=1, max_length=_MOST_PREVIEWED)]
    limit: Annotated[int, Meta(ge=1, le=50)] = 12
    max_chars: Annotated[int, Meta(ge=20, le=4000)] = 240


class PreviewItem(Answer, frozen=True, kw_only=True):
    role: str
    text: str
    timestamp: int


class Preview(Answer, frozen=True, kw_only=True):
    key: str
    status: str
    """`ok`, `empty` or `missing`."""
    items: list[PreviewItem]


class Previews(Answer, frozen=True, kw_only=True):
    ts: int
    previews: list[Preview]


@method("sessions.list", TokenScope.READ)
async def sessions_list(call: Call, params: SessionsListParams) -> SessionRows:
    """Lists sessions, newest activity first; `cursor` continues a list."""
    parts, rows = call.parts, call.parts.rows
    if params.cursor is not None and params.offset:
        raise InvalidRequest("cursor, offset: only one of them can be given", param="cursor")
    now = parts.clock.now_ms()
    wanted = _read_filter(call, params, now)
    query: list[Any] = ["sessions.list", wanted.kinds, wanted.agent_id, wanted.label, wanted.search, wanted.spawned_by]
    query += [params.active_minutes, wanted.archived]
    page = await read_page(parts, wanted, query, params.cursor, min(params.limit, _MOST_LISTED), params.offset)
    return SessionRows(
        ts=now,
        path=parts.store.database.name,
        count=len(page.sessions),
        has_more=page.next_cursor is not None,
        next_cursor=page.next_cursor,
        defaults=rows.model(parts.agents.get(parts.agents.default_id).model) or ModelShown(),
        sessions=await _shown(call, params, page.sessions),
    )


def _read_filter(call: Call, params: SessionsListParams, now: int) -> SessionFilter:
    for word in params.kinds:
        if word not in _KINDS:
            raise InvalidRequest(
                f"kinds: {quoted(word, 64)} is not a kind (expected any of {', '.join(_KINDS)})", param="kinds"
            )
    spawned_by = params.spawned_by and str(operator_keys(call.parts).read(params.spawned_by).key)
    return SessionFilter(
        kinds=tuple(sorted(set(params.kinds))),
        agent_id=None if params.agent_id is None else normalise_agent_id(params.agent_id),
        label=params.label,
        search=params.search or None,
        spawned_by=spawned_by or None,
        updated_since=active_since(now, params.active_minutes),
        archived=None if params.archived == "all" else params.archived,
    )


async def _shown(call: Call, params: SessionsListParams, sessions: list[Session]) -> list[SessionRow]:
    live = await _live_runs(call, sessions)
    if not params.include_last_message and not params.include_derived_titles:
        return cast("list[SessionRow]", call.parts.rows.encoded_rows(sessions, live))  # written as they are
    ids = [session.session_id for session in sessions]
    last = await _last_said(call, ids) if params.include_last_message else {}
    first = await call.parts.store.first_said(ids) if params.include_derived_titles else None
    return [
        call.parts.rows.session_row(
            session,
            live.get(session.key, []),
            preview=last.get(session.session_id),
            title=None if first is None else title_of(session, first.get(session.session_id)),
        )
        for session in sessions
    ]


async def _live_runs(call: Call, sessions: Sequence[Session]) -> dict[str, list[str]]:
    """List the unfinished runs of each session; without a queue its row names the only one."""
    live = {session.key: [session.running_run] for session in sessions if session.running_run is not None}
    waiting = [session.key for session in sessions if session.queued or session.set_aside]
    return live | (await call.parts.store.live_runs(waiting) if waiting else {})


async def _last_said(call: Call, ids: Sequence[str]) -> dict[str, str]:
    """Find the newest text for people in each session, among its last messages."""
    said: dict[str, str] = {}
    for depth in (1, _PREVIEW_DEPTH):
        last = await call.parts.store.last_messages([each for each in ids if each not in said], depth, with_tools=False)
        said |= {session_id: text for session_id, messages in last.items() if (text := preview(messages))}
    return said


@method("sessions.resolve", TokenScope.READ)
async def sessions_resolve(call: Call, params: SessionsResolveParams) -> SessionFound:
    """Finds the key of a session by a key as people write it, its id, its label, a `reference` or a `shortId`.

    Addresses of pages have a `reference`, which is a key, or a `shortId`: 8 to 32 digits of the UUID that ends a key.
    With `allowMissing`, a session that is not found is `ok: false` and no error.
    """
    named = params.key, params.session_id, None if params.reference is None else params.reference.key
    given = [value for value in (*named, params.label, params.short_id) if value is not None]
    if len(given) != 1:
        raise InvalidRequest("key, sessionId, label, reference, shortId: exactly one of them is needed", param="key")
    try:
        if params.short_id is not None:
            return await _by_short_id(call, params.short_id, params)
        if params.label is not None:
            key = str(await find_labelled(call.parts, params.label, params.agent_id))
        else:
            key = (await find_session(call.parts, given[0], params.agent_id)).key
    except SessionNotFound:
        if params.allow_missing:
            return SessionFound(ok=False)
        raise
    return SessionFound(ok=True, key=call.parts.rows.key(key), agent_id=SessionKey.stored(key).agent)


async def _by_short_id(call: Call, short_id: str, params: SessionsResolveParams) -> SessionFound:
    found = await find_by_short_id(call.parts, short_id, params.agent_id)
    if not found.ok and not params.allow_missing:
        raise no_session(call.parts, short_id)
    return found


@method("sessions.reset", TokenScope.ADMIN)
async def sessions_reset(call: Call, params: KeyParams) -> SessionPatched:
    """Starts a new transcript under the same key; the running run is aborted, queued runs go to the new one.

    A session that does not exist is made.
    """
    at = await resolve(call.parts, params.key, params.agent_id)
    session = await call.parts.store.session(str(at.key)) if at.exists else None
    if session is None or session.archived_at is not None:
        check_agent(call.parts, at.key.agent)
    return await changed(call, await call.parts.store.reset_session(at.key, expected_session_id=at.session_id))


@method("sessions.compact", TokenScope.WRITE)
async def sessions_compact(call: Call, params: SessionsCompactParams) -> SessionCompacted:
    """Summarises the older part of a session's conversation and waits for it, or takes the last summary back.

    `instructions` say what to keep. While a run is active, the summary is written when it has ended.
    """
    session, compaction = await find_session(call.parts, params.key, params.agent_id), call.parts.runtime.compaction
    key = call.parts.rows.key(session.key)
    if params.undo:
        undone = await compaction.undo(session.key, session.session_id)
        reason = _NOT_UNDONE.get(undone.state)
        return SessionCompacted(ok=True, key=key, compacted=False, undone=undone.entry is not None, reason=reason)
    made = await compaction.asked(session, params.instructions)
    return SessionCompacted(ok=True, key=key, compacted=made.entry is not None, reason=made.reason, result=made.entry)


@method("sessions.delete", TokenScope.ADMIN)
async def sessions_delete(call: Call, params: KeyParams) -> SessionDeleted:
    """Archives a session: it leaves the lists, and its transcript does not change any more."""
    try:
        at = await address_existing(call.parts, params.key, params.agent_id)
        archived = await call.parts.runtime.delete(at.key, expected_session_id=at.session_id)
    except SessionNotFound:
        return SessionDeleted(ok=True, key=params.key, deleted=False, archived=[])
    was = DeletedSession(session_id=archived.session_id)
    return SessionDeleted(ok=True, key=call.parts.rows.key(archived.key), deleted=True, archived=[], backchannel=was)


@method("sessions.describe", TokenScope.READ)
async def sessions_describe(call: Call, params: KeyParams) -> SessionDescribed:
    """Shows one session; null if there is none."""
    try:
        session = await find_session(call.parts, params.key, params.agent_id, archived=True)
    except SessionNotFound:
        return SessionDescribed(session=None)
    compaction = await call.parts.store.compaction(session.session_id)
    return SessionDescribed(session=await row_of(call, session), compaction=compaction)


@method("sessions.preview", TokenScope.READ)
async def sessions_preview(call: Call, params: SessionsPreviewParams) -> Previews:
    """Shows the last messages of several sessions, cut short."""
    found: dict[str, Session | None] = {}
    for text in params.keys:
        try:
            found[text] = await find_session(call.parts, text, archived=True)
        except SessionNotFound:
            found[text] = None
    ids = [session.session_id for session in found.values() if session is not None]
    last = await call.parts.store.last_messages(ids, params.limit, with_tools=False)
    previews = [_preview(text, session, last, params) for text, session in found.items()]
    return Previews(ts=call.parts.clock.now_ms(), previews=previews)


def _preview(text: str, session: Session | None, last: dict[str, Any], params: SessionsPreviewParams) -> Preview:
    if session is None:
        return Preview(key=text, status="missing", items=[])
    items = [
        PreviewItem(role=message.role.value, text=one_line(message.text, params.max_chars), timestamp=message.timestamp)
        for message in last.get(session.session_id, [])
    ]
    return Preview(key=text, status="ok" if items else "empty", items=items)


async def row_of(call: Call, session: Session) -> SessionRow:
    """Show a session as it is now."""
    live = await _live_runs(call, [session])
    return call.parts.rows.session_row(session, live.get(session.key, []))


async def changed(call: Call, session: Session) -> SessionPatched:
    """Show a session that was changed."""
    return SessionPatched(ok=True, key=call.parts.rows.key(session.key), entry=await row_of(call, session))


@method("sessions.subscribe", TokenScope.READ)
async def sessions_subscribe(call: Call, params: SharedNoParams) -> EventsSubscribed:
    """Sends this connection `sessions.changed` and the `chat` and `agent` events of all sessions."""
    call.subscriptions.subscribe(call.subscriber)
    return EventsSubscribed(subscribed=True)


@method("sessions.unsubscribe", TokenScope.READ)
async def sessions_unsubscribe(call: Call, params: SharedNoParams) -> EventsSubscribed:
    """Ends `sessions.subscribe`."""
    call.subscriptions.unsubscribe(call.subscriber)
    return EventsSubscribed(subscribed=False)


@method("sessions.messages.subscribe", TokenScope.READ)
async def messages_subscribe(call: Call, params: KeyParams) -> EventsSubscribed:
    """Sends this connection the new messages of a session, and its `chat` and `agent` events."""
    key = str((await resolve(call.parts, params.key, params.agent_id)).key)
    call.subscriptions.watch_messages(call.subscriber, key)
    return EventsSubscribed(subscribed=True, key=call.parts.rows.key(key))


@method("sessions.messages.unsubscribe", TokenScope.READ)
async def messages_unsubscribe(call: Call, params: KeyParams) -> EventsSubscribed:
    """Ends `sessions.messages.subscribe` for a session."""
    key = str((await resolve(call.parts, params.key, params.agent_id)).key)
    call.subscriptions.unwatch_messages(call.subscriber, key)
    return EventsSubscribed(subscribed=False, key=call.parts.rows.key(key))
