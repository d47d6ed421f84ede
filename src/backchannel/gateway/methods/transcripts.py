"""Transcripts: exporting sessions a page at a time, and their JSONL files.

`sessions.export` gives a row and the length of its transcript at one moment, and `transcripts.read` reads up to that
length. Transcripts only grow, so the two together are the session at that moment. The gateway keeps nothing between two
pages, so an export can go on after a restart.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, field
from msgspec.structs import replace

from backchannel.core.keys import MAX_KEY_LENGTH, SessionKey, normalise_agent_id
from backchannel.core.records import PAGE_SIZE, ExportListed, ExportPlace, Passage
from backchannel.core.sessions import Session
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest, SessionIdReplaced, SessionNotFound
from backchannel.gateway.addressing import find_session
from backchannel.gateway.calls import Call, method
from backchannel.openclaw.entries import imported_key
from backchannel.openclaw.files import iso_time
from backchannel.openclaw.writing import entry_of, header_of
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import Answer, Params
from backchannel.wire.state_answers import ListedTranscript, TranscriptRebuilt, TranscriptsListed

_LISTED, _MOST_LISTED, _MOST_KEYS = 100, 500, 100
_FAR = 2**53
_ROOM = 5
"""A character has at most four bytes on the wire; the rest of the frame is for the fields around it."""

Count = Annotated[int, Meta(ge=0, le=_FAR)]


class SessionsExportParams(Params, frozen=True, kw_only=True):
    keys: Annotated[list[str], Meta(min_length=1, max_length=_MOST_KEYS)] | None = None
    agent_id: str | None = None
    archived: bool = False
    after: Annotated[str, Meta(max_length=MAX_KEY_LENGTH)] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = _LISTED


class ExportedSession(Answer, frozen=True, kw_only=True):
    key: str
    session_id: str
    agent_id: str
    length: int
    """The number of its messages."""
    entry: dict[str, Any]
    """Its entry of `sessions.json`."""
    header: dict[str, Any]
    """The first line of its transcript."""


class SessionsExported(Answer, frozen=True, kw_only=True):
    sessions: list[ExportedSession]
    next: str | None = None
    """The `after` of the next page."""


class TranscriptsReadParams(Params, frozen=True, kw_only=True):
    session_id: str
    start: Count = field(name="from", default=0)
    offset: Count = 0
    until: Count | None = None


class TranscriptRead(Answer, frozen=True, kw_only=True):
    lines: list[Raw]
    part: str | None = None
    """A part of a message, as JSON text, that is too long for a frame. It comes alone."""
    next: int | None = None
    """The `from` of the next page."""
    offset: int = 0
    """The `offset` of the next page. The last part of a message has none."""


class RebuildParams(Params, frozen=True, kw_only=True):
    key: str
    agent_id: str | None = None


@method("sessions.export", TokenScope.READ)
async def sessions_export(call: Call, params: SessionsExportParams) -> SessionsExported:
    """Lists sessions by key, as an export writes them.

    A page can be short, or even empty, and have a `next`.
    """
    parts, limit = call.parts, min(params.limit, _MOST_LISTED)
    found = await parts.store.sessions_by_key(
        params.after,
        limit + 1,
        agent_id=None if params.agent_id is None else normalise_agent_id(params.agent_id),
        keys=None if params.keys is None else await _read_keys(call, params.keys),
    )
    page = found[:limit]
    return SessionsExported(
        sessions=[_exported(call, listed) for listed in page if _is_wanted(call, params, listed.session)],
        next=page[-1].session.key if len(found) > limit else None,
    )


async def _read_keys(call: Call, texts: list[str]) -> list[str]:
    return sorted({(await find_session(call.parts, text, archived=True)).key for text in texts})


def _is_wanted(call: Call, params: SessionsExportParams, session: Session) -> bool:
    if session.archived_at is not None and not params.archived:
        return False
    return call.parts.scheme.lists(session.key)


def _exported(call: Call, listed: ExportListed) -> ExportedSession:
    session = _as_named(call, listed.session)
    return ExportedSession(
        key=session.key,
        session_id=session.session_id,
        agent_id=session.agent_id,
        length=listed.length,
        entry=entry_of(session),
        header=header_of(session, iso_time(session.created_at)),
    )


def _as_named(call: Call, session: Session) -> Session:
    """Give a session its exported keys: the session that all direct chats share is the main session.

    An older main session beside it gets another key, since two entries of one file must not have the same key.
    """
    scheme, stored = call.parts.scheme, SessionKey.stored(session.key)
    if not scheme.global_scope:
        return session
    is_in_force = scheme.in_force(stored) == stored
    key = call.parts.rows.key(session.key) if is_in_force else str(imported_key(stored.agent, session.session_id))
    parent = None if session.spawned_by is None else call.parts.rows.key(session.spawned_by)
    return replace(session, key=key, spawned_by=parent)


@method("transcripts.read", TokenScope.READ)
async def transcripts_read(call: Call, params: TranscriptsReadParams) -> TranscriptRead:
    """Reads messages of a transcript as they are stored, up to `until`, about a megabyte a page."""
    await _check_transcript(call, params.session_id)
    size = min(PAGE_SIZE, call.connections.limits.frame_bytes // _ROOM)
    place, until = ExportPlace(params.start, params.offset), _FAR if params.until is None else params.until
    return _shown(await call.parts.store.read_transcript(params.session_id, place, until, size))


async def _check_transcript(call: Call, session_id: str) -> None:
    """Refuse an id without a transcript, or of a session that is not listed."""
    entry = await call.parts.store.session_by_id(session_id)
    is_whole = entry is not None and entry.end_reason != "importing"
    if entry is None or not is_whole or not call.parts.scheme.lists(entry.key):
        raise SessionNotFound(f"no session has or had the id {quoted(session_id)} (sessions.export shows them)")


def _shown(passage: Passage) -> TranscriptRead:
    lines = [Raw(line.encode()) for line in passage.lines]
    if passage.next is None:
        return TranscriptRead(lines=lines, part=passage.part)
    return TranscriptRead(lines=lines, part=passage.part, next=passage.next.seq, offset=passage.next.offset)


class TranscriptsListParams(Params, frozen=True, kw_only=True):
    cursor: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 500


@method("transcripts.list", TokenScope.ADMIN)
async def transcripts_list(call: Call, params: TranscriptsListParams) -> TranscriptsListed:
    """Lists all transcripts that have messages by id, also those that a reset or a deletion ended."""
    entries = await call.parts.store.transcripts(params.cursor, params.limit)
    return TranscriptsListed(
        transcripts=[
            ListedTranscript(
                session_id=entry.session_id,
                key=call.parts.rows.key(entry.key),
                ended_at=entry.ended_at,
                end_reason=entry.end_reason,
            )
            for entry in entries
        ],
        next_cursor=entries[-1].session_id if len(entries) == params.limit else None,
    )


@method("transcripts.rebuild", TokenScope.ADMIN)
async def transcripts_rebuild(call: Call, params: RebuildParams) -> TranscriptRebuilt:
    """Writes the file of a transcript again: of a session, archived or not, or of a session id."""
    parts = call.parts
    if not parts.config.writes_transcript_files:
        raise InvalidRequest("transcript files are off (transcripts.files turns them on)")
    key, session_id = await _find(call, params)
    lines = await parts.store.rebuild_transcript(session_id)
    return TranscriptRebuilt(ok=True, key=call.parts.rows.key(key), session_id=session_id, lines=lines)


async def _find(call: Call, params: RebuildParams) -> tuple[str, str]:
    try:
        session = await find_session(call.parts, params.key, params.agent_id, archived=True)
        return session.key, session.session_id
    except (SessionNotFound, SessionIdReplaced):
        entry = await call.parts.store.session_by_id(params.key)
        if entry is None:
            raise
        return entry.key, entry.session_id
