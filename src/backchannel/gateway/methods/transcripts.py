"""Transcript files: writing one anew from the database, which is the truth."""

from __future__ import annotations

from typing import Any

from backchannel.errors import InvalidRequest
from backchannel.gateway.addressing import find_session
from backchannel.gateway.call import Call
from backchannel.gateway.methods.sessions import KeyParams
from backchannel.gateway.protocol import Method, Scope
from backchannel.tools.inputs import Answer


class Rebuilt(Answer, frozen=True, kw_only=True):
    ok: bool
    key: str
    lines: int


async def transcripts_rebuild(call: Call, params: KeyParams) -> Rebuilt:
    """Writes a session's transcript file anew."""
    gateway = call.gateway
    if not gateway.config.writes_transcript_files:
        raise InvalidRequest("transcript files are off (transcripts.files turns them on)")
    session = await find_session(gateway, params.key, params.agent_id)
    lines = await gateway.store.rebuild_transcript(session)
    return Rebuilt(ok=True, key=call.door.rows.key(session.key), lines=lines)


METHODS: tuple[Method[Any], ...] = (
    Method("transcripts.rebuild", KeyParams, Scope.ADMIN, transcripts_rebuild, "`{ok, key, lines}`"),
)
