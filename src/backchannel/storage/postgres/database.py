"""A PostgreSQL database as the store sees it, before a driver works on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg

from backchannel.core.contracts import Clock, FollowingClock
from backchannel.errors import StartupError, StateFolderInUse
from backchannel.storage.driver import DriverContext, Wakeups
from backchannel.storage.files.folder import StateFolder
from backchannel.storage.migrations import refuse_other
from backchannel.storage.postgres.connection import Connection, PostgresTx, describe_error, is_lost, unavailable
from backchannel.storage.postgres.driver import PostgresDriver
from backchannel.storage.postgres.marks import CommitMark, forget_old
from backchannel.storage.postgres.polled import PostgresPolledWakeups
from backchannel.storage.postgres.server import Server, Writer, schema_versions
from backchannel.storage.postgres.wakeups import PostgresWakeups
from backchannel.storage.tx import Row, Tx, required

CLOCK_READINGS = 3
"""How often the server's clock is read at a start. The quickest answer counts."""
_SERVER_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class PostgresDatabase:
    """One schema of a PostgreSQL database. Several gateways may work on it."""

    is_shared = True

    def __init__(self, server: Server) -> None:
        self.server = server

    @classmethod
    def at(cls, url: str, *, locks_rows: bool = False) -> Self:
        """Name the database of a URL. Passwords and certificates may also come from libpq's variables and files.

        With `locks_rows`, nothing is used that only PostgreSQL itself has.

        Raises:
            StartupError: it is no URL of PostgreSQL.
        """
        return cls(Server(url, locks_rows=locks_rows))

    @property
    def name(self) -> str:
        return self.server.name

    def exists(self) -> bool:
        with self._looking() as connection:
            return self.server.version(connection) > 0

    def is_whole(self) -> bool:
        with self._looking() as connection:
            return not self.server.is_being_filled(connection)

    @contextmanager
    def _looking(self) -> Iterator[Connection]:
        try:
            with closing(self.server.connect(readonly=True)) as connection:
                yield connection
        except psycopg.Error as error:
            raise self.server.unusable(error) from error

    def hold(self, folder: StateFolder) -> None:
        """Do nothing: `connect` locks, once the schema is current."""

    def prepare(self, *, has_past: Callable[[], bool] = lambda: False) -> None:
        try:
            connection = self.server.connect()
        except psycopg.Error as error:
            raise StartupError(f"the database {self.name} cannot be reached ({describe_error(error)})") from error
        with closing(connection):
            try:
                self.server.refuse_pooler(connection)
                self.server.refuse_half(connection)
                self.server.bring_up_to_date(connection, refuse_empty=has_past)
                self.server.refuse_half(connection)
                forget_old(connection)
            except psycopg.Error as error:
                raise self.server.unusable(error) from error

    async def connect(self, clock: Clock, around: DriverContext) -> PostgresDriver:
        mark = CommitMark()
        try:
            writer = await asyncio.to_thread(self._join, mark, clock)
        except psycopg.Error as error:
            raise StateFolderInUse(f"the database {self.name} cannot be used now ({describe_error(error)})") from error
        return PostgresDriver(
            self.server,
            mark,
            writer,
            clock,
            on_facts=around.on_facts,
            on_fatal=around.on_fatal,
            context=around.context,
            faults=around.faults,
        )

    def _join(self, mark: CommitMark, clock: Clock) -> Writer:
        writer = self.server.join(mark)
        if isinstance(clock, FollowingClock):  # before anything is written by it
            for _ in range(CLOCK_READINGS):
                asked = clock.monotonic()
                (shown_ms,) = required(writer.connection.execute(_SERVER_CLOCK).fetchone())
                clock.follow(shown_ms, asked, clock.monotonic())
        return writer

    def open_wakeups(self, on_text: Callable[[str], None], *, polls: bool) -> Wakeups:
        return PostgresPolledWakeups(self.server, on_text) if polls else PostgresWakeups(self.server, on_text)

    @contextmanager
    def open_reader(self, *, is_at_work: bool = False) -> Iterator[PostgresReader]:
        try:
            connection = self.server.connect(readonly=True)
        except psycopg.OperationalError as error:
            raise unavailable(self.name, error) from error
        with closing(PostgresReader(self.server, connection)) as reader:
            try:
                if is_at_work:
                    self.server.check_oldest(connection)
                else:
                    refuse_other(self.name, self.server.version(connection), len(schema_versions()))
            except psycopg.Error as error:
                raise self.server.unusable(error) from error
            yield reader

    def file_beside(self, folder: StateFolder, ending: str) -> Path:
        return folder.path / f"postgres{ending}"


class PostgresReader:
    """A connection that only reads. A lost one is reopened between snapshots."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self._reading = _ReadingTx(server, connection)
        self.newest: Tx = self._reading

    @contextmanager
    def snapshot(self) -> Iterator[Tx]:
        self._reading.begin()
        try:
            yield self._reading
        finally:
            self._reading.end()

    def close(self) -> None:
        self._reading.connection.close()


class _ReadingTx(PostgresTx):
    """Reads whose failures are raised as `Unavailable`."""

    __slots__ = ("_is_in_snapshot", "_server", "connection")

    def __init__(self, server: Server, connection: Connection) -> None:
        super().__init__(connection)
        self._server = server
        self._is_in_snapshot = False
        self.connection = connection

    def begin(self) -> None:
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._is_in_snapshot = True

    def end(self) -> None:
        self._is_in_snapshot = False
        if not self.connection.closed:
            self.run("ROLLBACK")

    def _execute_on(self, cursor: psycopg.Cursor[Row], sql: str, values: tuple[Any, ...]) -> None:
        try:
            super()._execute_on(cursor, sql, values)
            return
        except psycopg.Error as error:
            if self._is_in_snapshot or not is_lost(self.connection, error):
                raise unavailable(self._server.name, error) from error
        try:
            self._reopen()
            super()._execute_on(self._cursor, sql, values)
        except psycopg.Error as error:
            raise unavailable(self._server.name, error) from error

    def _reopen(self) -> None:
        self.connection.close()
        self.connection = self._server.connect(readonly=True)
        self._cursor = psycopg.RawCursor(self.connection)
