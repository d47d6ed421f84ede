"""Units about exchanges and the waits for them."""

from __future__ import annotations

from functools import partial

from backchannel.core.exchange import SendLimits
from backchannel.core.exchange_values import Refused
from backchannel.storage.transactions import exchanges, sends
from backchannel.storage.transactions.exchanges import Opened, Story
from backchannel.storage.transactions.sends import Ask
from backchannel.storage.tx import Check
from backchannel.storage.units.base import Units


class ExchangeUnits(Units):
    """What `sessions_send` started."""

    async def open_exchange(self, ask: Ask, limits: SendLimits, check: Check) -> Opened | Refused:
        """Accept a send with its primary run, its receipt and its wait; the same call again finds the first."""
        unit = partial(sends.open_, ask=ask, scheme=self.scheme, limits=limits, check=check, now=self._now)
        return await self._driver.write(unit)

    async def repeat_send(self, call_id: str) -> Opened | None:
        """Take up a tool call again that has sent something before a crash; None for one that has not."""
        if self._driver.look(partial(exchanges.sent_by, call_id=call_id)) is None:
            return None
        return await self._driver.write(partial(exchanges.repeat, call_id=call_id))

    async def exchange(self, exchange_id: str) -> Opened:
        return self._driver.look(partial(exchanges.look, exchange_id=exchange_id))

    async def exchange_story(self, exchange_id: str | None = None, run_id: str | None = None) -> Story:
        """Load an exchange, by its id or by one of its runs, with all that became of it.

        Raises:
            ExchangeNotFound: there is none.
        """
        return self._driver.look(partial(exchanges.story, exchange_id=exchange_id, run_id=run_id))

    async def expire_wait(self, exchange_id: str) -> Opened:
        """End a caller's wait whose time ran out, unless the run has ended by now."""
        return await self._driver.write(partial(exchanges.expire_wait, exchange_id=exchange_id, now=self._now))
