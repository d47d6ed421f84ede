"""Exchanges at run time: opening them, and waiting for the reply. The rest happens in the commits that end runs."""

from __future__ import annotations

from backchannel.core.contracts import Clock
from backchannel.core.exchange import SendLimits
from backchannel.core.exchange_values import Refused
from backchannel.runtime.events import Hub, WaitStarted
from backchannel.runtime.lanes import Lanes
from backchannel.runtime.policing import SendGuard
from backchannel.runtime.waits import Waits
from backchannel.storage.store import Store
from backchannel.storage.transactions.exchanges import Ask, Opened


class Exchanges:
    """What `sessions_send` needs of the runtime."""

    def __init__(
        self,
        store: Store,
        lanes: Lanes,
        waits: Waits,
        guard: SendGuard,
        limits: SendLimits,
        hub: Hub,
        clock: Clock,
    ) -> None:
        self._store = store
        self._hub = hub
        self._lanes = lanes
        self._waits = waits
        self._guard = guard
        self._limits = limits
        self._clock = clock

    async def open(self, ask: Ask) -> Opened | Refused:
        """Accept a send; it is durable when this returns.

        Raises:
            PolicyDenied, IdempotencyConflict, Unavailable
        """
        return await self._store.open_exchange(ask, self._limits, self._guard.check)

    async def wait(self, opened: Opened, ask: Ask) -> Opened:
        """Wait for the primary run, as long as the caller's own wait lasts; a call in a run gives its slot back."""
        if opened.run.is_finished:
            return opened
        remaining_s = self._remaining_s(opened, ask)
        if ask.calling_run is not None and ask.requester is not None:
            async with self._lanes.paused(str(ask.requester), ask.calling_run):
                self._hub.publish(WaitStarted(ask.calling_run))
                run = await self._waits.ended(opened.run.id, remaining_s)
        else:
            run = await self._waits.ended(opened.run.id, remaining_s)
        if run.is_finished:
            return await self._store.exchange(opened.exchange.id)
        return await self._store.expire_wait(opened.exchange.id)

    def _remaining_s(self, opened: Opened, ask: Ask) -> float:
        """Tell how long is left: a call in a run keeps the end that was written down, also after a crash."""
        if ask.call_id is None:
            return ask.wait_ms / 1000
        if opened.wait_until is None:
            return 0.0
        return max(0.0, (opened.wait_until - self._clock.now_ms()) / 1000)
