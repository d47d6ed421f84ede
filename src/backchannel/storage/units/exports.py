"""Units that read everything there is, a little at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from backchannel.storage.transactions import exports, sessions
from backchannel.storage.transactions.exports import Listed, Passage, Place
from backchannel.storage.transactions.sessions import SessionIdEntry
from backchannel.storage.units.base import Units


class ExportUnits(Units):
    """Sessions and transcripts, whole."""

    async def sessions_by_key(
        self, after: str, limit: int, *, agent_id: str | None = None, keys: Sequence[str] | None = None
    ) -> list[Listed]:
        """List sessions by their keys, archived ones included, each with the length of its transcript."""
        return await self._read(partial(exports.listed_after, after=after, limit=limit, agent_id=agent_id, keys=keys))

    async def transcripts(self, after: str, limit: int) -> list[SessionIdEntry]:
        """List all transcripts that have messages, those of ended sessions too, by their ids."""
        return await self._read(partial(sessions.transcripts_after, after=after, limit=limit))

    async def read_transcript(self, session_id: str, place: Place, until: int, size: int) -> Passage:
        """Read messages as they are stored, up to `size` characters of them; a longer one comes in parts."""
        return await self._read(partial(exports.read, session_id=session_id, place=place, until=until, size=size))

    async def transcript_bytes(self, session_id: str) -> int:
        """Tell how large a transcript's file is when nothing is missing in it."""
        return await self._read(partial(exports.transcript_bytes, session_id=session_id))
