"""Threads that read from PostgreSQL, with a connection each if the server has room."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Concatenate, ParamSpec, TypeVar

import psycopg

from backchannel.storage.postgres.connection import Connection, PostgresTx, is_lost, unavailable
from backchannel.storage.postgres.server import Server
from backchannel.storage.postgres.writers import SHORT_PAUSE_S, Writers
from backchannel.storage.tx import Tx, UnitContext

P = ParamSpec("P")
T = TypeVar("T")


class Readers:
    """Threads that read. A lost connection is replaced, and its read runs again."""

    def __init__(self, server: Server, writers: Writers, count: int, name: str) -> None:
        self.pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self.waiting = 0
        """The number of reads not answered yet, counted on the event loop."""
        self._server = server
        self._writers = writers
        self._away_until = 0.0
        """When to try to connect again: a server that does not answer would block every reader."""
        self._local = threading.local()
        self._connections: set[Connection] = set()

    def newest(
        self,
        context: UnitContext,
        now: int,
        unit: Callable[Concatenate[Tx, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a unit whose statements each see the newest commit."""
        return self._retried(lambda connection: unit(PostgresTx(connection, context, now), *args, **kwargs))

    def in_snapshot(
        self,
        context: UnitContext,
        now: int,
        unit: Callable[Concatenate[Tx, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a unit in one transaction, so that all its statements see one state."""

        def run(connection: Connection) -> T:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                return unit(PostgresTx(connection, context, now), *args, **kwargs)
            finally:
                if not connection.closed:
                    connection.execute("COMMIT")  # after ROLLBACK psycopg would prepare all statements anew

        return self._retried(run)

    def _retried(self, run: Callable[[Connection], T]) -> T:
        for is_last in (False, True):
            connection = self._connection()
            try:
                if connection is None:
                    with self._writers.lent() as connection:
                        return run(connection)
                return run(connection)
            except psycopg.OperationalError as error:
                has_gone = connection is not None and is_lost(connection, error)
                if has_gone:
                    self._forget()
                if is_last or not has_gone:
                    raise unavailable(self._server.name, error) from error
        raise AssertionError("unreachable: the last try returns or raises")

    def _connection(self) -> Connection | None:
        """Return this thread's connection; None if it has to use one that writes.

        No connection is opened before one that writes: a server with little room needs that one most.
        """
        found: Connection | None = getattr(self._local, "connection", None)
        if found is None or found.closed:
            found = self._local.connection = None if self._writers.are_none else self._connected()
            if found is not None:
                self._connections.add(found)
        return found

    def _connected(self) -> Connection | None:
        if monotonic() < self._away_until:
            return None
        try:
            return self._server.connect(readonly=True)
        except psycopg.OperationalError:
            self._away_until = monotonic() + SHORT_PAUSE_S
            return None

    def _forget(self) -> None:
        """Forget this thread's connection, unless it is borrowed."""
        own: Connection | None = getattr(self._local, "connection", None)
        if own is not None:
            own.close()
            self._connections.discard(own)
        self._local.connection = None

    def close(self) -> None:
        self.pool.shutdown()
        for connection in self._connections:
            connection.close()
