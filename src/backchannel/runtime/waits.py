"""Waits on the server: for runs to end, and for the reply to a send.

A run may have any number of waiters, also long after its end. All else of an exchange happens in the commits that end
runs.
"""

from __future__ import annotations

import asyncio

from backchannel.core.contracts import Clock
from backchannel.core.facts import RunChanged
from backchannel.core.flows.exchange_values import ExchangeOpened
from backchannel.core.keys import SessionKey
from backchannel.core.runs import Run, RunState
from backchannel.errors import RunNotFound, ShuttingDown
from backchannel.runtime.events import Hub, WaitStarted
from backchannel.runtime.slots import RunSlots
from backchannel.service import Reactions, Service
from backchannel.storage.store import Store


class Waits(Service):
    """Resolves the futures of those who wait for a run."""

    def __init__(self, store: Store, hub: Hub) -> None:
        self._store = store
        self._hub = hub
        self._waiting: dict[str, set[asyncio.Future[Run | None]]] = {}
        self._running: set[str] = set()
        """Runs that commits have told of as running, and not as ended: whoever waits for one need not look first."""
        self._is_open = True

    def reactions(self) -> Reactions:
        return {RunChanged: self.on_run}

    def on_run(self, fact: RunChanged) -> None:
        """React to a commit: whoever waits for a run that has ended is answered."""
        run = fact.run
        if run.state is RunState.RUNNING:
            self._running.add(run.id)
            return
        self._running.discard(run.id)
        if run.is_finished:
            for future in self._waiting.pop(run.id, ()):
                if not future.done():
                    future.set_result(run)

    def waited_for(self) -> list[str]:
        """Name the runs that somebody waits for."""
        return list(self._waiting)

    async def halt(self) -> None:
        """Forget which runs are at work: they may go on, and end, on another gateway."""
        self._running.clear()

    async def close(self) -> None:
        """Fail all waiters: the gateway is shutting down."""
        self._is_open = False
        for future in [future for waiting in self._waiting.values() for future in waiting]:
            if not future.done():
                future.set_exception(_stopping())
                future.exception()  # mark it as retrieved, so that asyncio does not log it

    async def ended(self, run_id: str, timeout_s: float) -> Run:
        """Wait for a run to end, and return it as it is then, or as it is when the wait ends first.

        Raises:
            RunNotFound: there is no such run.
            ShuttingDown: the gateway stopped first; the run goes on at its next start.
        """
        if not self._is_open:
            raise _stopping()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Run | None] = loop.create_future()
        # Listen before looking: a run that ends in between is not missed.
        waiting = self._waiting.setdefault(run_id, set())
        waiting.add(future)
        try:
            if timeout_s <= 0 or run_id not in self._running:
                run = await self._look(run_id)
                if run.is_finished or timeout_s <= 0:
                    return run
                self._hub.want(run_id, streams=False)
            timer = loop.call_later(timeout_s, _end_wait, future)
            try:
                ended = await future
            finally:
                timer.cancel()
            return ended or await self._look(run_id)
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(run_id) is waiting:
                del self._waiting[run_id]

    async def _look(self, run_id: str) -> Run:
        run = await self._store.run(run_id)
        if run is None:
            raise RunNotFound(f"no run {run_id!r}: pass the run id that accepting the message returned", runId=run_id)
        return run


def _end_wait(future: asyncio.Future[Run | None]) -> None:
    if not future.done():
        future.set_result(None)


def _stopping() -> ShuttingDown:
    return ShuttingDown("the gateway is stopping: wait for the run again when it is back, it goes on then")


class Exchanges:
    """What `sessions_send` needs of the runtime."""

    def __init__(
        self,
        store: Store,
        slots: RunSlots,
        waits: Waits,
        hub: Hub,
        clock: Clock,
    ) -> None:
        self._store = store
        self._hub = hub
        self._slots = slots
        self._waits = waits
        self._clock = clock

    async def wait(self, opened: ExchangeOpened, timeout_s: float) -> ExchangeOpened:
        """Wait for the primary run, for a program."""
        if opened.run.is_finished:
            return opened
        return await self._ended(opened, await self._waits.ended(opened.run.id, timeout_s))

    async def wait_in_run(
        self, opened: ExchangeOpened, key: SessionKey, run_id: str, timeout_s: float
    ) -> ExchangeOpened:
        """Wait for the primary run, for a call in this run of this session, which gives its slot back meanwhile.

        The end of its wait is written down. Once it is over, it is over: a call that is repeated after a crash is told
        nothing that the exchange has begun to tell in another way.
        """
        if opened.run.is_finished or opened.exchange.is_left:
            return opened
        remaining_s = max(0.0, ((opened.wait_until or 0) - self._clock.now_ms()) / 1000)
        remaining_s = min(remaining_s, timeout_s)  # the clock may have been set back since the end was written down
        async with self._slots.paused(str(key), run_id):
            self._hub.publish(WaitStarted(run_id))
            run = await self._waits.ended(opened.run.id, remaining_s)
        return await self._ended(opened, run)

    async def _ended(self, opened: ExchangeOpened, run: Run) -> ExchangeOpened:
        if run.is_finished:
            return await self._store.exchange(opened.exchange.id)
        return await self._store.expire_wait(opened.exchange.id)
