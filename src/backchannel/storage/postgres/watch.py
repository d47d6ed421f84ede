"""The watch: a connection for the lease, the `/readyz` probe and lock holders.

The watch waits for no writer thread and takes no lock of `locks.py`. So a gateway whose writer threads are all blocked
keeps its lease, and can say what blocks them. A unit on this connection may run twice. It must not depend on anything
else staying as it is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import psycopg
import structlog

from backchannel.errors import DatabaseUnusable, Unavailable
from backchannel.storage.postgres.connection import (
    Connection,
    PostgresTx,
    describe_error,
    is_in_transaction,
    is_lost,
    unavailable,
)
from backchannel.storage.postgres.obstacles import Obstacles, find_at_work, find_holders
from backchannel.storage.postgres.server import Server
from backchannel.storage.postgres.writers import SHORT_PAUSE_S, NoConnection, Writers
from backchannel.storage.tx import Tx, UnitContext, required

log = structlog.get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

LOOK_S, STANDING_S = 0.5, 0.3
"""How often the watch looks for a blocked writer thread, and when one counts as blocked."""
WAIT_MS = 1000
"""How long a statement of the watch waits for a lock: the next renewal of the lease must not wait behind it."""
_STATE = (
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, "
    "EXISTS (SELECT 1 FROM processes WHERE number = ? AND ended_at IS NULL)"
)


class WatchHost(Protocol):
    """The driver as the watch sees it, in the watch's thread."""

    is_ending: threading.Event
    writers: Writers
    obstacles: Obstacles

    def context_and_time(self) -> tuple[UnitContext, int]: ...

    def note_clock(self, shown_ms: int, asked: float, answered: float) -> None:
        """Take a reading of the server's clock, made between two readings of the monotonic clock."""
        ...

    def refusal(self) -> Unavailable | None:
        """Return the reason that this process commits nothing before it enters again, if there is one."""
        ...

    def found_outcast(self) -> Unavailable:
        """Record that others have declared this process dead; returns the error for callers."""
        ...


class WatchTx(PostgresTx):
    """A unit's view of the watch's connection. The shared clock is the server's."""

    __slots__ = ("_shared_now",)

    def __init__(self, connection: Connection, context: UnitContext, now: int, shared_now: int) -> None:
        super().__init__(connection, context, now)
        self._shared_now = shared_now

    @property
    def shared_now(self) -> int:
        return self._shared_now


_Job = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], "asyncio.Future[Any]"]


class Watch:
    """The thread of the watch."""

    def __init__(self, server: Server, host: WatchHost) -> None:
        self._server = server
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._connection: Connection | None = None
        self._next_try = 0.0
        self._thread = threading.Thread(target=self._work, name="postgres-watch", daemon=True)
        self._thread.start()

    def run(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a unit in its own transaction. It may run, and commit, twice."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((unit, args, kwargs, future))
        return future

    def close(self) -> None:
        """Wait for the thread to end, and close the connection."""
        self._jobs.put(None)
        self._thread.join()
        self._drop()

    def _work(self) -> None:
        while True:
            with suppress(DatabaseUnusable):  # the driver has heard of it
                self._look_around()
            try:
                job = self._jobs.get(timeout=LOOK_S)
            except Empty:
                continue
            if job is None:
                return
            self._carry_out(*job)

    def _look_around(self) -> None:
        """Find who blocks writer threads and who no longer does; try to open missing connections."""
        if self._host.is_ending.is_set():
            return
        self._host.writers.fill()
        obstacles, pids = self._host.obstacles, self._host.writers.standing(STANDING_S)
        known = obstacles.standing
        if not pids and not known:
            return
        at_work: dict[int, datetime | None] | None = None
        try:
            with self._borrowed() as connection:
                obstacles.saw(find_holders(connection, pids))
                at_work = find_at_work(connection, known)
        except psycopg.Error as error:
            log.debug("who holds locks is not known", error=describe_error(error))
        obstacles.forget_ended(at_work)

    def _carry_out(
        self, unit: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], future: asyncio.Future[Any]
    ) -> None:
        try:
            result = self._retried(lambda tx: unit(tx, *args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the edge of a unit: its caller is told
            self._to_loop(_refuse, future, error)
        else:
            self._to_loop(_answer, future, result)

    def _retried(self, unit: Callable[[Tx], T]) -> T:
        """Run a unit, on a new connection if this one is lost."""
        for is_last in (False, True):
            try:
                with self._borrowed() as connection:
                    return self._in_transaction(connection, unit)
            except psycopg.Error as error:
                if is_last or isinstance(error, NoConnection) or not is_lost(connection, error):
                    raise unavailable(self._server.name, error) from error
        raise AssertionError("unreachable: the last try returns or raises")

    def _in_transaction(self, connection: Connection, unit: Callable[[Tx], T]) -> T:
        context, now = self._host.context_and_time()
        if (refusal := self._host.refusal()) is not None:
            raise refusal
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        try:
            asked = monotonic()
            shared_now, is_alive = required(PostgresTx(connection).one(_STATE, context.number))
            self._host.note_clock(shared_now, asked, monotonic())
            if not is_alive:
                raise self._host.found_outcast()
            result = unit(WatchTx(connection, context, now, shared_now))
            connection.execute("COMMIT")
            return result
        finally:
            if not connection.closed and is_in_transaction(connection):
                connection.execute("ROLLBACK")

    @contextmanager
    def _borrowed(self) -> Iterator[Connection]:
        """Use the watch's connection, or one that writes if the server has no room.

        While none that writes is open, give this one up: a server with little room needs that one most.
        """
        if self._host.writers.are_none:
            self._drop()
        elif self._connection is None:
            self._connection = self._connected()
        if self._connection is None:
            with self._host.writers.lent() as lent:
                yield lent
            return
        try:
            yield self._connection
        except psycopg.Error as error:
            if is_lost(self._connection, error):
                log.info("the connection of the lease is lost", database=self._server.name, error=describe_error(error))
                self._drop()
            raise

    def _connected(self) -> Connection | None:
        if monotonic() < self._next_try:
            return None
        try:
            connection = self._server.connect()
            connection.execute(f"SET lock_timeout = {WAIT_MS}; SET statement_timeout = 0".encode())
            return connection
        except psycopg.OperationalError as error:
            log.debug("the lease has no connection of its own", error=describe_error(error))
            self._next_try = monotonic() + SHORT_PAUSE_S
            return None

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _to_loop(self, what: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is nobody to tell
            self._loop.call_soon_threadsafe(what, *args)


def _answer(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _refuse(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
