"""Reading from PostgreSQL beside the writer: a few threads with a connection each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Concatenate, ParamSpec, TypeVar

import psycopg

from backchannel.errors import Unavailable
from backchannel.storage.postgres_connection import RETRY_AFTER_MS, Connection, PostgresTx, is_lost, unavailable
from backchannel.storage.postgres_server import Server
from backchannel.storage.tx import Tx, UnitContext

P = ParamSpec("P")
T = TypeVar("T")


class Readers:
    """Threads that read; a connection that is lost is replaced, and what was read on it read again."""

    def __init__(self, server: Server, count: int, name: str) -> None:
        self.pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self.waiting = 0
        """How many reads are not answered; the event loop counts them."""
        self._server = server
        self._away_until = 0.0
        """Until when nobody tries to connect: a server that does not answer would hold each of those who wait."""
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
        """Run a unit of which each statement sees the newest commit."""
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
                return run(connection)
            except psycopg.OperationalError as error:
                has_gone = is_lost(connection, error)
                if has_gone:
                    self._forget(connection)
                if is_last or not has_gone:
                    raise unavailable(self._server.name, error) from error
        raise AssertionError("unreachable: the last try returns or raises")

    def _connection(self) -> Connection:
        found: Connection | None = getattr(self._local, "connection", None)
        if found is None or found.closed:
            found = self._local.connection = self._connect()
            self._connections.add(found)
        return found

    def _connect(self) -> Connection:
        if monotonic() < self._away_until:
            raise Unavailable(f"the database {self._server.name} cannot be reached", retryAfterMs=RETRY_AFTER_MS)
        began = monotonic()
        try:
            return self._server.connect(readonly=True)
        except psycopg.OperationalError as error:
            self._away_until = 2 * monotonic() - began  # as long again as this one was held
            raise unavailable(self._server.name, error) from error

    def _forget(self, connection: Connection) -> None:
        connection.close()
        self._connections.discard(connection)
        self._local.connection = None

    def close(self) -> None:
        self.pool.shutdown()
        for connection in self._connections:
            connection.close()
