"""Waiting for runs to end, on the server: any number of waiters, any time, also long after."""

from __future__ import annotations

import asyncio

from backchannel.core.facts import RunChanged
from backchannel.core.runs import Run, RunState
from backchannel.errors import RunNotFound, ShuttingDown
from backchannel.storage.store import Store


class Waits:
    """Resolves the futures of those who wait for a run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, set[asyncio.Future[Run]]] = {}
        self._running: set[str] = set()
        """Runs that commits have told of as running, and not as ended: whoever waits for one need not look first."""
        self._is_open = True

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

    def close(self) -> None:
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
        future: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        # Listen before looking: a run that ends in between is not missed.
        waiting = self._waiting.setdefault(run_id, set())
        waiting.add(future)
        try:
            if timeout_s <= 0 or run_id not in self._running:
                run = await self._look(run_id)
                if run.is_finished or timeout_s <= 0:
                    return run
            try:
                async with asyncio.timeout(timeout_s):
                    return await future
            except TimeoutError:
                return await self._look(run_id)
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(run_id) is waiting:
                del self._waiting[run_id]

    async def _look(self, run_id: str) -> Run:
        run = await self._store.run(run_id)
        if run is None:
            raise RunNotFound(f"no run {run_id!r}: pass the run id that accepting the message returned", runId=run_id)
        return run


def _stopping() -> ShuttingDown:
    return ShuttingDown("the gateway is stopping: wait for the run again when it is back, it goes on then")
