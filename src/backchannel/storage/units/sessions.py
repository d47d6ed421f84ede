"""Units about sessions: the rows, their settings, reset and delete."""

from __future__ import annotations

from functools import partial

from backchannel.core.keys import SessionKey
from backchannel.core.sessions import Page, Session, SessionFilter, SessionPatch
from backchannel.storage.transactions import commands, sessions
from backchannel.storage.transactions.sessions import SessionIdEntry
from backchannel.storage.units.base import Units


class SessionUnits(Units):
    """Sessions and what hangs on them."""

    async def session(self, key: str) -> Session | None:
        """Load a session, archived or not."""
        return self._driver.look(partial(sessions.find, key=key))

    async def session_by_id(self, session_id: str) -> SessionIdEntry | None:
        """Tell whose transcript this is or was."""
        return self._driver.look(partial(sessions.by_id, session_id=session_id))

    async def sessions_labelled(self, label: str, agent_id: str | None) -> list[Session]:
        return await self._read(partial(sessions.labelled, label=label, agent_id=agent_id))

    async def sessions(
        self, wanted: SessionFilter, *, after: Page | None, limit: int, offset: int = 0
    ) -> list[Session]:
        """List sessions, newest first."""
        return await self._read(partial(sessions.page, wanted=wanted, after=after, limit=limit, offset=offset))

    async def agents_with_sessions(self) -> list[str]:
        return self._driver.look(sessions.agents_with_sessions)

    async def exchanges_of(self, key: str) -> list[tuple[str, str, int]]:
        return await self._read(partial(sessions.exchanges_of, key=key))

    async def receipts_of(self, key: str, since: int) -> list[tuple[str, str, int, str | None]]:
        return await self._read(partial(sessions.receipts_of, key=key, since=since))

    async def patch_session(
        self, key: SessionKey, change: SessionPatch, *, expected_session_id: str | None = None
    ) -> Session:
        """Change a session's settings, making it if it is new.

        Raises:
            LabelInUse, SessionIdReplaced
        """
        unit = partial(
            sessions.patch,
            key=key,
            scheme=self.scheme,
            change=change,
            expected_session_id=expected_session_id,
            now=self._now,
        )
        return await self._driver.write(unit)

    async def reset_session(self, key: SessionKey) -> Session:
        """Start a new transcript under the same key, and ask the active run to stop."""

        return await self._driver.write(partial(commands.reset, key=str(key), now=self._now))

    async def delete_session(self, key: SessionKey) -> Session:
        """Archive a session; one that has something to do follows when that has stopped."""
        return await self._driver.write(partial(commands.delete, key=key, scheme=self.scheme, now=self._now))
