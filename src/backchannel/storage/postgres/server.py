"""A database on a PostgreSQL server: its checks, its schema and who may write.

Several gateways work on one schema. Each transaction that writes takes locks until its commit (`locks.py`). Each
connection that writes also shares a second lock for as long as it lasts. A move, or a change of the schema that older
programs cannot work with, takes that lock alone. A database that is not ours, or newer than this program, is refused
before anything is written.

The database also stores the oldest version that a program must know to work on it. Every new connection that writes
checks it: a newer program may have changed the schema while the connection was broken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import zip_longest
from time import monotonic, sleep
from typing import Any, NamedTuple
from urllib.parse import quote

import psycopg
import structlog
from psycopg import errors

from backchannel.errors import DatabaseUnusable, StartupError, StateFolderInUse, Unavailable
from backchannel.storage.migrations import load_oldest_beside, load_versions, refuse_newer
from backchannel.storage.postgres.connection import PROGRAM, Connection, connect, describe_error, read_url, unavailable
from backchannel.storage.postgres.locks import AdvisoryLocks, Locks, RowLocks, holder
from backchannel.storage.postgres.marks import CommitMark

log = structlog.get_logger(__name__)

OLDEST_SERVER = 130000
ALONE_LIMIT_S = 5.0
"""How long the lock of an ended gateway may still be held: the server may not have noticed."""
_LOCK_PAUSE_S = 0.05
POOLER_TRIES = 3
LONGEST_HOLD_MS, HOLD_PAUSE_S = 200, 2.0
"""How long a change of the schema waits for a table, while all others wait behind it; and the pause before the next
try.
"""
BESIDE_LIMIT_S = 60.0
"""How long to try to change the schema beside other gateways."""
LONGEST_PAUSE_MS = 2000
"""How long a transaction that writes may stand still, while all others wait for it."""
_PAUSED = f"""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE '{PROGRAM} %'
    AND state = 'active' AND wait_event = 'ClientRead'
    AND query_start < clock_timestamp() - interval '{LONGEST_PAUSE_MS} milliseconds'
"""
"""Ends connections that sent half of a pipeline and then nothing: the server's own limit does not cover them."""
# No statement limit: it would end the wait for a synchronous standby, and return a commit that the standby lacks.
_WRITES = (
    f"SET idle_in_transaction_session_timeout = {LONGEST_PAUSE_MS}; SET lock_timeout = {LONGEST_PAUSE_MS}; "
    "SET statement_timeout = 0"
)
_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
_TEXT = re.compile(r"\bTEXT\b")
VERSION_TABLE = "backchannel_schema"
MOVE_TABLE = "backchannel_move"
"""The table that is there while a state is being copied into the database."""
MOVE_ORIGIN = "(origin)"
"""The name in that table for the machine and folder that the state comes from."""


class Writer(NamedTuple):
    """A connection that writes, and the commit mark that it found when it was opened."""

    connection: Connection
    found: int
    pid: int
    """The server's process of the connection."""


class Server:
    """One database on a server, as a URL names it."""

    def __init__(self, url: str, *, locks_rows: bool = False) -> None:
        self._url = url
        self.locks: Locks = RowLocks() if locks_rows else AdvisoryLocks()
        self.name = _shown(read_url(url))

    def connect(self, *, readonly: bool = False) -> Connection:
        """Open a connection.

        Raises:
            psycopg.OperationalError: it cannot be reached.
        """
        return connect(self._url, readonly=readonly)

    def hold(self) -> Connection:
        """Open a connection that keeps all gateways out for as long as it lasts.

        Raises:
            StateFolderInUse: a gateway works on it.
            StartupError: the database cannot be reached.
        """
        try:
            connection = self.connect()
        except psycopg.Error as error:
            raise self._unreachable(error) from error
        try:
            self.refuse_pooler(connection)
            self._wait_for_lock(connection)
            return connection
        except psycopg.Error as error:
            connection.close()
            raise self._unreachable(error) from error
        except BaseException:  # whatever stopped it: nothing stays open, and the error goes on
            connection.close()
            raise

    def refuse_pooler(self, connection: Connection) -> None:
        """Refuse a pooler that gives each transaction another connection.

        A pooler invents the number that cancels a connection, so no process of the server has it. A pooler in session
        mode gives each open connection its own process, and keeps it.

        Raises:
            DatabaseUnusable
        """
        own = _process(connection)
        if own == connection.info.backend_pid:
            return
        with closing(self.connect()) as other:
            for _ in range(POOLER_TRIES):
                try:
                    with other.transaction():
                        processes = (_process(other), _process(connection))
                except psycopg.OperationalError:
                    processes = (own, own)  # it does not even take a transaction
                if processes[0] == own or processes[1] != own:
                    raise DatabaseUnusable(
                        f"{self.name} is a pooler that gives each transaction another connection, such as PgBouncer "
                        "with pool_mode = transaction: set it to pool_mode = session, or name the server's own address "
                        "in database.url"
                    )

    def _wait_for_lock(self, connection: Connection) -> None:
        ends = monotonic() + ALONE_LIMIT_S
        while not self.locks.try_alone(connection):
            if monotonic() > ends:
                raise StateFolderInUse(
                    f"another process ({holder(connection)}) uses the database {self.name}: "
                    "stop it first, or name another one in database.url"
                )
            sleep(_LOCK_PAUSE_S)

    def _unreachable(self, error: psycopg.Error) -> StartupError:
        return StartupError(f"the database {self.name} cannot be reached ({describe_error(error)})")

    def join(self, mark: CommitMark) -> Writer:
        """Open a connection that writes, beside those of other gateways. It keeps out whoever needs the database alone.

        The outcome of the last commit with this mark is known when it returns. The server ends a transaction that
        stands still, because others wait for it.

        Raises:
            psycopg.OperationalError: it cannot be reached, or somebody has it alone.
            DatabaseUnusable: a newer program has changed it since so that this one cannot go on, or its gateways lock
                in another way.
        """
        connection = self.connect()
        try:
            connection.execute(_WRITES.encode())
            self.locks.join(connection, self.name)
            self.check_oldest(connection)
            return Writer(connection, mark.load(connection), _process(connection))
        except BaseException:  # whatever stopped it: nothing stays open, and the error goes on
            connection.close()
            raise

    def end_paused(self, connection: Connection) -> bool:
        """End transactions of our own processes that stand still while others wait."""
        try:
            if ended := connection.execute(_PAUSED.encode()).fetchall():
                log.warning("transactions of processes that stand still were ended", count=len(ended))
            return bool(ended)
        except (errors.UndefinedFunction, errors.UndefinedTable, errors.FeatureNotSupported) as error:
            log.debug("who stands still is not known", error=describe_error(error))
            return False

    def check_oldest(self, connection: Connection) -> None:
        """Refuse a schema that this program is too old for.

        Raises:
            DatabaseUnusable
        """
        (oldest,) = _required(connection.execute(f"SELECT oldest FROM {VERSION_TABLE}"))
        refuse_newer(self.name, oldest, len(schema_versions()))

    def version(self, connection: Connection) -> int:
        """Read the version of the schema; 0 means that it is empty.

        Raises:
            DatabaseUnusable: there is something else in it, or it cannot be used.
        """
        (encoding, number, schema) = _required(
            connection.execute(
                "SELECT current_setting('server_encoding'), current_setting('server_version_num')::int, "
                "current_schema()"
            )
        )
        if encoding != "UTF8" or number < OLDEST_SERVER or schema is None:
            raise DatabaseUnusable(
                f"{self.name} cannot be used: PostgreSQL 13 or newer is needed (it has {number // 10000}), "
                f"a database in UTF8 (it is in {encoding}) and a schema that may be written (it is {schema})"
            )
        tables = {name for (name,) in connection.execute(_TABLES).fetchall()}
        if VERSION_TABLE in tables:
            return int(_required(connection.execute(f"SELECT version FROM {VERSION_TABLE}"))[0])
        if tables:
            raise DatabaseUnusable(
                f"{self.name} has tables of another program (such as {min(tables)}): nothing was changed; "
                "use a database or a schema of its own"
            )
        return 0

    def is_being_filled(self, connection: Connection) -> bool:
        """Whether a state is being copied into it, and is not complete."""
        return (MOVE_TABLE,) in connection.execute(_TABLES).fetchall()

    def refuse_half(self, connection: Connection) -> None:
        """Refuse a database with an incomplete move, and say how to continue it.

        Raises:
            DatabaseUnusable
        """
        if not self.is_being_filled(connection):
            return
        found = connection.execute(f"SELECT last FROM {MOVE_TABLE} WHERE name = '{MOVE_ORIGIN}'".encode()).fetchone()
        machine, _, folder = (found[0] if found else "").partition(" ")
        begun = f" (on {machine})" if machine else ""
        raise DatabaseUnusable(
            f"a state is being copied into {self.name}, and not all of it is there: where that was begun{begun}, run "
            f"`backchannel --state {folder or 'FOLDER'} migrate --to {_as_url(read_url(self._url))}` again"
        )

    def make_current(self, connection: Connection, *, refuse_empty: Callable[[], bool]) -> None:
        """Bring the schema up to date, in one transaction.

        Raises:
            DatabaseUnusable: it is not ours, emptied, or newer than this program.
        """
        versions = schema_versions()
        current = self.version(connection)
        refuse_newer(self.name, current, len(versions))
        if not current and refuse_empty():
            raise DatabaseUnusable(
                f"{self.name} is empty, but the state folder tells of earlier sessions: nothing was changed; bring "
                "them over with `backchannel migrate`, restore a backup, or move the folder `agents` away to start anew"
            )
        if current == len(versions):
            return
        with connection.transaction():
            connection.execute(f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version INTEGER NOT NULL)")
            connection.execute(f"ALTER TABLE {VERSION_TABLE} ADD COLUMN IF NOT EXISTS oldest INTEGER")
            if not current:
                connection.execute(f"INSERT INTO {VERSION_TABLE} (version) VALUES (0)")
            _take_steps(connection, versions[current:])

    def bring_up_to_date(self, connection: Connection, *, refuse_empty: Callable[[], bool]) -> None:
        """Bring the schema up to date alone, or beside gateways that can work with the result.

        If several programs start at once, one of them does it.

        Raises:
            DatabaseUnusable: it is not ours, emptied, or newer than this program.
            StateFolderInUse: a gateway works on it that cannot go on beside this program.
        """
        known, began = len(schema_versions()), monotonic()
        while (current := self.version(connection)) != known:
            refuse_newer(self.name, current, known)
            if load_oldest_beside() <= current:
                _take_steps_beside(connection, current, is_last=monotonic() > began + BESIDE_LIMIT_S)
            elif self.locks.try_alone(connection):
                # Without an exclusive lock another program may be creating the same tables.
                with suppress(errors.UniqueViolation, errors.DuplicateTable):
                    self.make_current(connection, refuse_empty=refuse_empty)
                self.locks.let_in(connection)
            elif monotonic() > began + ALONE_LIMIT_S:
                raise StateFolderInUse(
                    f"the database {self.name} cannot be brought up to date while a gateway of an older version works "
                    f"on it ({holder(connection)}): its schema is {current}, and what leads to {known} does not only "
                    "add to it; stop all gateways of the older version first"
                )
            else:
                sleep(_LOCK_PAUSE_S)

    def unusable(self, error: psycopg.Error) -> DatabaseUnusable | Unavailable:
        """Make the error for a database that cannot be used."""
        if isinstance(error, psycopg.OperationalError):
            return unavailable(self.name, error)
        return DatabaseUnusable(f"{self.name} cannot be used ({describe_error(error)})")


def _take_steps(connection: Connection, steps: Sequence[Sequence[str]]) -> None:
    for statements in steps:
        for statement in statements:
            connection.execute(statement.encode())
    connection.execute(
        f"UPDATE {VERSION_TABLE} SET version = {len(schema_versions())}, oldest = {load_oldest_beside()}".encode()
    )


def _take_steps_beside(connection: Connection, current: int, *, is_last: bool) -> None:
    """Try to take steps while others work. A table that stays locked is given up for now: others wait for it.

    Raises:
        psycopg.OperationalError: this was the last try.
    """
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {LONGEST_HOLD_MS}".encode())
            (found,) = _required(connection.execute(f"SELECT version FROM {VERSION_TABLE} FOR UPDATE"))
            if found == current:
                _take_steps(connection, schema_versions()[current:])
    except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
        if is_last:
            raise
        log.info("the schema is brought up to date as soon as its tables are free", error=describe_error(error))
        sleep(HOLD_PAUSE_S)


def schema_versions() -> list[list[str]]:
    """Read the schema; keys are compared byte by byte, whatever the database's own order of letters is."""
    versions = load_versions("postgres", counter="BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY")
    return [[_TEXT.sub('TEXT COLLATE "C"', statement) for statement in version] for version in versions]


def _process(connection: Connection) -> int:
    return int(_required(connection.execute("SELECT pg_backend_pid()"))[0])


def _required(cursor: psycopg.Cursor[Any]) -> Any:
    row = cursor.fetchone()
    assert row is not None
    return row


def _as_url(parts: dict[str, Any]) -> str:
    """Write a URL as it may be used and shown: without a password, which comes from elsewhere."""
    user = f"{quote(parts['user'])}@" if parts.get("user") else ""
    host, port = parts.get("host") or "", f":{parts['port']}" if parts.get("port") else ""
    if host.startswith("/"):
        return f"postgresql://{user}{port}/{parts.get('dbname') or ''}?host={host}"
    return f"postgresql://{user}{host}{port}/{parts.get('dbname') or ''}"


def _shown(parts: dict[str, Any]) -> str:
    """Name a database without its user and password; there may be several hosts, and a port for all or for each."""
    hosts, ports = (parts.get("host") or "").split(","), str(parts.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = [f"{host}:{port}" if port else host for host, port in zip_longest(hosts, ports, fillvalue="")]
    return f"postgresql://{','.join(places)}/{parts.get('dbname') or ''}"
