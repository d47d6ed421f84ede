"""Units about sub-agents."""

from __future__ import annotations

from functools import partial

from backchannel.core.limits import ChainLimits
from backchannel.core.runs import FlowCall
from backchannel.core.spawn_values import Refused, Spawn
from backchannel.storage.transactions import families, spawns
from backchannel.storage.transactions.families import Family, SpawnStory
from backchannel.storage.transactions.spawns import SpawnAsk
from backchannel.storage.units.base import Units


class SpawnUnits(Units):
    """What `sessions_spawn` started."""

    async def repeat_spawn(self, call: FlowCall) -> Spawn | None:
        """Find what the same call has started before; None for one that is made for the first time.

        Raises:
            IdempotencyConflict: its key stands for something else.
        """
        return self._driver.look(partial(spawns.repeat, call=call))

    async def open_spawn(self, ask: SpawnAsk, limits: ChainLimits) -> Spawn | Refused:
        """Accept a spawn with its session, its run and its receipt; the same call again finds the first.

        Raises:
            LabelInUse, IdempotencyConflict, SessionNotFound, Unavailable
        """
        unit = partial(
            spawns.open_, ask=ask, scheme=self.scheme, limits=limits, transcript=self._transcript, now=self._now
        )
        return await self._driver.write(unit)

    async def family(self, key: str, limit: int) -> Family:
        """Load the children of a session, and what all that descend from it have used."""
        return await self._read(partial(families.family, key=key, limit=limit))

    async def spawn_story(self, child_key: str) -> SpawnStory | None:
        """Load what started a sub-agent, and what became of it."""
        return self._driver.look(partial(families.story, child_key=child_key))
