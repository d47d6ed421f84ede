"""Units about sessions that come from elsewhere."""

from __future__ import annotations

from functools import partial

from backchannel.core.sessions import Session
from backchannel.storage.transactions import imports
from backchannel.storage.transactions.imports import Batch, Taken
from backchannel.storage.units.base import Units


class ImportUnits(Units):
    """Taking sessions from another program."""

    async def take_session(self, session: Session, batch: Batch) -> Taken:
        """Write what is missing of a batch of a session's messages, and with the last one the session itself."""
        return await self._driver.write(partial(imports.take, session=session, batch=batch, now=self._now))
