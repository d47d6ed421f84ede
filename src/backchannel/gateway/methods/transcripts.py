"""Transcript files: which transcripts there are, and writing one's file anew from the database, which is the truth."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from backchannel.core.shapes import Answer, Params
from backchannel.errors import InvalidRequest, SessionIdReplaced, SessionNotFound
from backchannel.gateway.addressing import find_session
from backchannel.gateway.connections import Call, Method
from backchannel.gateway.methods.sessions import KeyParams
from backchannel.gateway.protocol import Scope


class TranscriptsListParams(Params, frozen=True, kw_only=True):
    cursor: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 500


class ListedTranscript(Answer, frozen=True, kw_only=True):
    session_id: str
    key: str
    ended_at: int | None = None
    end_reason: str | None = None


class TranscriptsListed(Answer, frozen=True, kw_only=True):
    transcripts: list[ListedTranscript]
    next_cursor: str | None = None


class Rebuilt(Answer, frozen=True, kw_only=True):
    ok: bool
    key: str
    session_id: str
    lines: int


async def transcripts_list(call: Call, params: TranscriptsListParams) -> TranscriptsListed:
    """Lists all transcripts that have messages, those that a reset or a deletion has ended too, by their ids."""
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


async def transcripts_rebuild(call: Call, params: KeyParams) -> Rebuilt:
    """Writes the file of a transcript anew: of a session, archived or not, or of the session id that is named."""
    parts = call.parts
    if not parts.config.writes_transcript_files:
        raise InvalidRequest("transcript files are off (transcripts.files turns them on)")
    key, session_id = await _find(call, params)
    lines = await parts.store.rebuild_transcript(session_id)
    return Rebuilt(ok=True, key=call.parts.rows.key(key), session_id=session_id, lines=lines)


async def _find(call: Call, params: KeyParams) -> tuple[str, str]:
    try:
        session = await find_session(call.parts, params.key, params.agent_id, archived=True)
        return session.key, session.session_id
    except (SessionNotFound, SessionIdReplaced):
        entry = await call.parts.store.session_by_id(params.key)
        if entry is None:
            raise
        return entry.key, entry.session_id


METHODS: tuple[Method[Any], ...] = (
    Method(
        "transcripts.list",
        TranscriptsListParams,
        Scope.ADMIN,
        transcripts_list,
        "`{transcripts: [{sessionId, key, endedAt?, endReason?}], nextCursor?}`",
    ),
    Method("transcripts.rebuild", KeyParams, Scope.ADMIN, transcripts_rebuild, "`{ok, key, sessionId, lines}`"),
)
