"""What every theme of the store stands on: the driver, the clock, and the way keys are written."""

from __future__ import annotations

from typing import TypeVar

from backchannel.core.contracts import Clock
from backchannel.core.keys import KeyScheme
from backchannel.storage.folder import StateFolder
from backchannel.storage.sqlite import SqliteDriver
from backchannel.storage.transactions.deliveries import Outlets
from backchannel.storage.transcripts import Transcripts
from backchannel.storage.tx import Unit

T = TypeVar("T")


class Units:
    """One theme of the store; `Store` is all of them together."""

    folder: StateFolder
    scheme: KeyScheme
    number: int
    """This process's start number: the fence of every run it holds."""
    outlets: Outlets
    """Where deliveries can go; the runtime says so before anything is accepted."""
    tells_failures: bool
    """Whether somebody whose message could not be answered is told so."""
    _driver: SqliteDriver
    _clock: Clock
    _transcripts: Transcripts | None

    def _transcript(self, agent_id: str, session_id: str) -> str | None:
        """Tell where a transcript is kept as a file; None where there are no files."""
        return None if self._transcripts is None else str(self.folder.transcript(agent_id, session_id))

    @property
    def _now(self) -> int:
        return self._clock.now_ms()

    async def _read(self, unit: Unit[T]) -> T:
        return await self._driver.read(unit)
