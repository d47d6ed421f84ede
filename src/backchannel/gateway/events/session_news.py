"""The event `sessions.changed`, with the session's present row.

A fact names only the session. Its row is read after the commit, if a client wants it. It may include a later change,
which has an event of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from backchannel.core.contracts import Clock
from backchannel.core.facts import SessionChanged
from backchannel.core.keys import SessionKey
from backchannel.errors import GatewayError
from backchannel.openclaw.rows import SessionRow
from backchannel.wire.events import SessionsChanged
from backchannel.wire.frames import show_event_head

LookUp = Callable[[str], Awaitable[SessionRow | None]]
"""Reads the row of a session."""


async def unknown_session(key: str) -> SessionRow | None:
    """Read no row: the event then has only the change."""
    return None


class SessionNews:
    """Reads the rows of changed sessions and sends them in order; `send` takes an event up to its number."""

    def __init__(
        self, clock: Clock, show_key: Callable[[str], str], look_up: LookUp, send: Callable[[str], None]
    ) -> None:
        self._clock = clock
        self._show_key = show_key
        self._look_up = look_up
        self._send = send
        self._waiting: list[SessionChanged] = []
        self._task: asyncio.Task[None] | None = None

    def tell(self, event: SessionChanged) -> None:
        """Send a change once its row is read."""
        self._waiting.append(event)
        if self._task is None:
            self._task = asyncio.create_task(self._tell_all())

    async def _tell_all(self) -> None:
        try:
            while self._waiting:
                told, self._waiting = self._waiting, []
                for event in told:
                    self._send(self._shown(event, await self._row(event)))
        finally:
            self._task = None

    async def _row(self, event: SessionChanged) -> SessionRow | None:
        if event.reason == "delete":
            return None
        try:
            return await self._look_up(event.key)
        except GatewayError:  # the database is away: the event is useful without the row
            return None

    def _shown(self, event: SessionChanged, row: SessionRow | None) -> str:
        payload = SessionsChanged(
            session_key=self._show_key(event.key),
            agent_id=SessionKey.stored(event.key).agent,
            reason=event.reason,
            ts=self._clock.now_ms(),
            session_id=None if row is None else row.session_id,
            active_run_ids=None if row is None else row.active_run_ids,
            session=row,
        )
        return show_event_head("sessions.changed", payload)
