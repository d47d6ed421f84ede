"""The supervisor of services: one order of start and close, one wait for the database.

A list of services is the order of their start; they close in reverse. Facts reach their reactions in the same order.
After a lost lease the runtime is halted and started again: `start` recovers from rows, whatever was before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from backchannel.core.contracts import Clock
from backchannel.core.seldom import Seldom
from backchannel.core.supervision import Backoff, ServiceHealth
from backchannel.errors import DatabaseLocked, FenceLost, Unavailable
from backchannel.service import Service, SupervisedLoop
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)
T = TypeVar("T")

CLOSE_LIMIT_S = 5.0
"""How long work that is under way is waited for when the gateway stops."""
DATABASE_PAUSE_S = 1.0
RESTART = Backoff(1.0, 10.0, steady_s=10.0)
"""Pauses before a loop of the runtime is started again."""
_FAULTS = Backoff(1.0, 60.0)


class Supervisor:
    """Starts, halts and closes services, and knows how they are."""

    def __init__(self, services: Sequence[Service], clock: Clock) -> None:
        self._services = services
        self._clock = clock
        self._is_closed = False
        self._starting = asyncio.Lock()
        self._states = {service.name: self._state(is_up=False) for service in services}
        self.is_open = False
        self.is_halted = False
        """True between `halt` and the next start."""

    def _state(self, *, is_up: bool, error: str | None = None) -> ServiceHealth:
        now = self._clock.now_ms()
        return ServiceHealth(is_up=is_up, since_ms=now, error=error, error_at_ms=now if error else None)

    async def start(self) -> None:
        """Start all services, in order; nothing after `close`."""
        async with self._starting:  # the lease may be lost, and all started again, while they start
            if self._is_closed:
                return
            self.is_open, self.is_halted = True, False
            for service in self._services:
                if not self.is_open:
                    return
                await service.start()
                if not self._states[service.name].is_up:
                    self._states[service.name] = self._state(is_up=True)

    async def halt(self) -> None:
        """Drop the work of all services at once."""
        self.is_open, self.is_halted = False, not self._is_closed
        for service in self._services:
            if _halts(service):
                self._states[service.name] = self._state(is_up=False, error="the lease of this gateway is over")
        await asyncio.gather(*(service.halt() for service in self._services))

    async def close(self) -> None:
        """Close all services, the last first."""
        self.is_open, self.is_halted, self._is_closed = False, False, True
        for service in reversed(self._services):
            await service.close()
            self._states[service.name] = self._state(is_up=False)

    def reactions(self) -> Mapping[type, Sequence[Callable[[Any], None]]]:
        """Make the table of what is called for each type of fact, in the order of the services."""
        table: dict[type, list[Callable[[Any], None]]] = {}
        for service in self._services:
            for kind, react in service.reactions().items():
                table.setdefault(kind, []).append(react)
        return table

    def health(self) -> dict[str, ServiceHealth]:
        """Describe every service, and what each keeps going."""
        known: dict[str, ServiceHealth] = {}
        for service in self._services:
            own, state = service.health(), self._states[service.name]
            if self.is_halted and _halts(service):  # its loops were dropped, and tell nothing of it
                own = dict.fromkeys(own, state)
            known |= own or {service.name: state}
        known.pop("", None)
        return known


def _halts(service: Service) -> bool:
    return type(service).halt is not Service.halt


class DatabaseWait(Service):
    """The one wait for the database, while it is away, full or locked."""

    name = "database"

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._told = Seldom()
        self._state = SupervisedLoop(self.name, clock, Backoff(DATABASE_PAUSE_S, DATABASE_PAUSE_S))
        self.kept = (self._state,)

    async def durably(self, unit: Callable[[], Awaitable[T]], on_fault: Callable[[Exception], None] | None = None) -> T:
        """Commit or read, and wait while that is not possible. What was done is not thrown away for that.

        With `on_fault` any other failure is told to it and tried again too, after pauses that grow.

        Raises:
            FenceLost: the store is closed; the next start goes on from the last commit.
        """
        faults = 0
        while True:
            try:
                done = await unit()
            except Unavailable as refused:
                await self.pause(refused)
            except Exception as error:
                if on_fault is None or isinstance(error, FenceLost):
                    raise
                on_fault(error)
                faults += 1
                await self._clock.sleep(_FAULTS.pause_s(faults))
            else:
                if not self._state.health.is_up:
                    self._state.recovered()
                return done

    async def pause(self, refused: Unavailable) -> None:
        """Wait a moment after a refusal, and log it, once a minute.

        Raises:
            FenceLost: the store is closed.
        """
        if self._store.is_closed:
            raise FenceLost("the store is closed") from refused
        if self._told.lets(refused.message, self._clock.monotonic()):
            log.warning("waiting for the database", error=refused.message)
        if not isinstance(refused, DatabaseLocked):  # by another program: the database works
            self._state.fell(refused.message)
        await self._clock.sleep(DATABASE_PAUSE_S)


class Tasks:
    """Tasks that nobody waits for, until they end or are cancelled together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(list(self._tasks))

    async def cancel(self) -> None:
        """Cancel all, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
