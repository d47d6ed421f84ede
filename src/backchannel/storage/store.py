"""The store: every state change is one transaction, and this is the list of them.

Each method hands one unit from `transactions/` to the driver. What is returned is durable. What changed is told to
`on_facts` after the commit, in order, before the caller is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from backchannel.core.contracts import Clock
from backchannel.core.facts import Fact
from backchannel.core.keys import KeyScheme
from backchannel.core.sessions import Session
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest, SessionNotFound, Unavailable
from backchannel.storage.folder import StateFolder, archived_path
from backchannel.storage.migrations import prepare_sqlite, refuse_emptied
from backchannel.storage.sqlite import Faults, SqliteDriver
from backchannel.storage.transactions import recovery, troubles
from backchannel.storage.transactions.deliveries import NoOutlets, Outlets
from backchannel.storage.transactions.troubles import Unfinished
from backchannel.storage.transcripts import Transcripts
from backchannel.storage.units.cron import CronUnits
from backchannel.storage.units.deliveries import DeliveryUnits
from backchannel.storage.units.exchanges import ExchangeUnits
from backchannel.storage.units.exports import ExportUnits
from backchannel.storage.units.imports import ImportUnits
from backchannel.storage.units.inbound import InboundUnits
from backchannel.storage.units.messages import MessageUnits
from backchannel.storage.units.runs import RunUnits
from backchannel.storage.units.sessions import SessionUnits
from backchannel.storage.units.spawns import SpawnUnits
from backchannel.storage.units.troubles import TroubleUnits
from backchannel.storage.units.upkeep import UpkeepUnits


class Store(
    SessionUnits,
    MessageUnits,
    RunUnits,
    ExchangeUnits,
    InboundUnits,
    DeliveryUnits,
    SpawnUnits,
    CronUnits,
    UpkeepUnits,
    TroubleUnits,
    ImportUnits,
    ExportUnits,
):
    """The durable facts of one gateway."""

    def __init__(self, folder: StateFolder, scheme: KeyScheme, clock: Clock) -> None:
        self.folder = folder
        self.scheme = scheme
        self.number = 0
        self.on_facts: Callable[[Sequence[Fact]], None] = lambda facts: None
        self.outlets: Outlets = NoOutlets()
        self.tells_failures = True
        self.found = Unfinished()
        """What was left to do when the store was opened."""
        self._clock = clock
        self._transcripts: Transcripts | None = None

    @classmethod
    async def open(
        cls,
        folder: StateFolder,
        scheme: KeyScheme,
        clock: Clock,
        *,
        on_fatal: Callable[[BaseException], None],
        database: Path | None = None,
        faults: Faults | None = None,
        writes_files: bool = True,
    ) -> Self:
        """Open or create the database, in the state folder unless another place is named.

        `writes_files` says whether transcripts are kept as files too.

        Raises:
            DatabaseUnusable: it is corrupt, not ours, or newer than this program.
            StateFolderInUse: another process uses it.
        """
        store = cls(folder, scheme, clock)
        path = database or folder.database
        folder.hold_database(path)
        await asyncio.to_thread(refuse_emptied, path, has_past=folder.has_transcripts)
        await asyncio.to_thread(prepare_sqlite, path)
        store._driver = SqliteDriver(path, on_facts=store._committed, on_fatal=on_fatal, faults=faults)
        try:
            store.number = await store._driver.write(partial(recovery.enter, now=clock.now_ms()))
        except BaseException:  # a store that cannot be opened leaves no thread behind, and the error goes on
            await store.abandon()
            raise
        store.found = store._driver.look(troubles.unfinished)
        if writes_files:
            store._transcripts = Transcripts(path, folder.transcript)
        return store

    async def close(self) -> None:
        """End cleanly: runs in progress go on at the next start, and this end is not counted against them."""
        try:
            with suppress(Unavailable):  # no room to say it: the next start takes this end for a crash
                await self._driver.write(partial(recovery.leave, number=self.number, now=self._now))
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Let go of the files without a word, as a process that dies does."""
        await self._driver.close()
        if self._transcripts is not None:
            await asyncio.to_thread(self._transcripts.close)

    @property
    def commits(self) -> int:
        """How many commits this process has made; `units` tells how many units of work they held."""
        return self._driver.commits

    @property
    def units(self) -> int:
        return self._driver.units

    def take_slowest(self) -> tuple[float, str]:
        """Tell how long the slowest unit took since this was last asked, and which it was."""
        slowest, self._driver.slowest = self._driver.slowest, (0.0, "")
        return slowest

    @property
    def is_closed(self) -> bool:
        """Whether nothing is written any more: by `close`, or because a commit failed."""
        return self._driver.is_closed

    def _committed(self, facts: Sequence[Fact]) -> None:
        if self._transcripts is not None:
            self._transcripts.committed(facts)
        self.on_facts(facts)

    async def sign_of_life(self) -> None:
        """Write that this process is at work.

        Raises:
            Unavailable: it was refused.
        """
        await self._driver.write(partial(recovery.sign_of_life, number=self.number, now=self._now))

    # Transcript files

    async def rebuild_transcript(self, session_id: str) -> int:
        """Write a transcript's file anew, whatever became of its session; returns the number of its lines.

        Raises:
            Unavailable: the file cannot be written.
            InvalidRequest: there are no transcript files here.
            SessionNotFound: there is no such transcript.
        """
        if self._transcripts is None:
            raise InvalidRequest("transcripts are not kept as files here: set transcripts.files to true")
        entry = await self.session_by_id(session_id)
        if entry is None:
            raise SessionNotFound(f"no transcript {quoted(session_id)} (transcripts.list shows those there are)")
        rebuilt = self._transcripts.rebuild(session_id, self._transcripts.path_of(entry))
        return await asyncio.wrap_future(rebuilt)

    def transcript_file(self, session: Session) -> Path:
        """Tell where a session's transcript file is, or would be if there are any."""
        path = self.folder.transcript(session.agent_id, session.session_id)
        return path if session.archived_at is None else archived_path(path, session.archived_at)
