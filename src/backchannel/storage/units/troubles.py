"""Units about what is wrong."""

from __future__ import annotations

from functools import partial

from backchannel.storage.ids import new_id
from backchannel.storage.transactions import troubles
from backchannel.storage.transactions.troubles import Troubles
from backchannel.storage.units.base import Units


class TroubleUnits(Units):
    """What needs somebody's attention."""

    async def troubles(self, since: int) -> Troubles:
        """Count what is wrong now, and the runs that failed since a time."""
        return await self._read(partial(troubles.look, since=since))

    async def check_writable(self) -> None:
        """Make a commit of the size that accepting a message takes.

        Raises:
            Unavailable: it was refused, for instance because the disk is full.
        """
        word = new_id()
        await self._driver.write(partial(troubles.probe, body=word * (troubles.PROBE_BYTES // len(word))))

    async def remember_default_model(self, model: str, demo: str) -> str | None:
        """Note the model of agents that name none; returns the last one that was not the demo, at an earlier start."""
        unit = partial(troubles.remember_default_model, number=self.number, model=model, demo=demo)
        return await self._driver.write(unit)
