"""What every theme of the store stands on: the driver, the clock, and the way keys are written."""

from __future__ import annotations

from typing import TypeVar

from backchannel.core.contracts import Clock
from backchannel.core.keys import KeyScheme
from backchannel.storage.sqlite import SqliteDriver
from backchannel.storage.transactions.deliveries import Outlets
from backchannel.storage.tx import Unit

T = TypeVar("T")


class Units:
    """One theme of the store; `Store` is all of them together."""

    scheme: KeyScheme
    number: int
    """This process's start number: the fence of every run it holds."""
    outlets: Outlets
    """Where deliveries can go; the runtime says so before anything is accepted."""
    _driver: SqliteDriver
    _clock: Clock

    @property
    def _now(self) -> int:
        return self._clock.now_ms()

    async def _read(self, unit: Unit[T]) -> T:
        return await self._driver.read(unit)
