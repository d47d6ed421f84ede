"""Waiting for the reply to a send. All else of an exchange happens in the commits that end runs."""

from __future__ import annotations

from backchannel.core.contracts import Clock
from backchannel.core.exchange_values import Opened
from backchannel.core.keys import SessionKey
from backchannel.core.runs import Run
from backchannel.runtime.events import Hub, WaitStarted
from backchannel.runtime.lanes import Lanes
from backchannel.runtime.waits import Waits
from backchannel.storage.store import Store


class Exchanges:
    """What `sessions_send` needs of the runtime."""

    def __init__(
        self,
        store: Store,
        lanes: Lanes,
        waits: Waits,
        hub: Hub,
        clock: Clock,
    ) -> None:
        self._store = store
        self._hub = hub
        self._lanes = lanes
        self._waits = waits
        self._clock = clock

    async def wait(self, opened: Opened, timeout_s: float) -> Opened:
        """Wait for the primary run, for a program."""
        if opened.run.is_finished:
            return opened
        return await self._ended(opened, await self._waits.ended(opened.run.id, timeout_s))

    async def wait_in_run(self, opened: Opened, key: SessionKey, run_id: str, timeout_s: float) -> Opened:
        """Wait for the primary run, for a call in this run of this session, which gives its slot back meanwhile.

        The end of its wait is written down. Once it is over, it is over: a call that is repeated after a crash is told
        nothing that the exchange has begun to tell in another way.
        """
        if opened.run.is_finished or opened.exchange.is_left:
            return opened
        remaining_s = max(0.0, ((opened.wait_until or 0) - self._clock.now_ms()) / 1000)
        remaining_s = min(remaining_s, timeout_s)  # the clock may have been set back since the end was written down
        async with self._lanes.paused(str(key), run_id):
            self._hub.publish(WaitStarted(run_id))
            run = await self._waits.ended(opened.run.id, remaining_s)
        return await self._ended(opened, run)

    async def _ended(self, opened: Opened, run: Run) -> Opened:
        if run.is_finished:
            return await self._store.exchange(opened.exchange.id)
        return await self._store.expire_wait(opened.exchange.id)
