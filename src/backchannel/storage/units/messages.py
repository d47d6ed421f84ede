"""Units about transcripts, and what waits to enter them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, decode_messages
from backchannel.storage.transactions import idempotency, inbox, messages, sessions
from backchannel.storage.transactions.inbox import Pending
from backchannel.storage.transactions.messages import HistoryPage
from backchannel.storage.transactions.sessions import SessionIdEntry
from backchannel.storage.tx import Tx
from backchannel.storage.units.base import Units


class MessageUnits(Units):
    """Messages, in the transcript and in the inbox."""

    async def history(
        self,
        session_id: str,
        *,
        limit: int,
        before: str | None = None,
        after: str | None = None,
        with_tools: bool = True,
    ) -> HistoryPage:
        unit = partial(
            messages.history,
            session_id=session_id,
            limit=limit,
            before=before,
            after=after,
            with_tools=with_tools,
        )
        return await self._read(unit)

    async def context(self, session_id: str, *, max_bytes: int) -> tuple[SessionIdEntry, HistoryPage]:
        """Read the newest part of a transcript for a model, and the mark of its headers."""

        def unit(tx: Tx) -> tuple[SessionIdEntry, HistoryPage]:
            entry = sessions.by_id(tx, session_id)
            if entry is None:
                raise LookupError(f"no transcript {session_id!r}")
            return entry, messages.read_back(tx, session_id, max_bytes=max_bytes)

        return self._driver.look(unit)

    async def message(self, message_id: str) -> Message | None:
        return self._driver.look(partial(messages.find, message_id=message_id))

    async def message_in(self, session_id: str, message_id: str) -> Message:
        """Load one message of a transcript.

        Raises:
            NotFound: it is not there.
        """
        return self._driver.look(partial(messages.find_in, session_id=session_id, message_id=message_id))

    async def last_messages(
        self, session_ids: Sequence[str], per_session: int, *, with_tools: bool
    ) -> dict[str, list[Message]]:
        """Read the last messages of many sessions in one query."""
        found = await self.last_lines(session_ids, per_session, with_tools=with_tools)
        return {session_id: decode_messages(lines) for session_id, lines in found.items()}

    async def last_lines(
        self, session_ids: Sequence[str], per_session: int, *, with_tools: bool
    ) -> dict[str, list[str]]:
        """Read the same as they are stored, for those who need not read all of them."""
        return await self._read(
            partial(messages.last_of_each, session_ids=session_ids, per_session=per_session, with_tools=with_tools)
        )

    async def pending(self, key: str, limit: int) -> Pending:
        """Read the first of what was accepted and is not yet in the transcript."""
        return await self._read(partial(inbox.pending, key=key, limit=limit))

    async def add_note(
        self, key: SessionKey, note: Message, idempotency_key: str | None = None, digest: str | None = None
    ) -> str:
        """Accept a note, once for each idempotency key; returns its id, or that of the first.

        Raises:
            IdempotencyConflict: the key stands for something else.
        """

        def unit(tx: Tx) -> str:
            def add() -> str:
                inbox.add_note(tx, key, self.scheme, note, now)
                return note.id

            return idempotency.once(tx, idempotency_key, digest, now, add)

        now = self._now
        return await self._driver.write(unit)
