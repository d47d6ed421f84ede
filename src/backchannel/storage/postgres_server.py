"""A database on a PostgreSQL server: what it must be, how it becomes current, and who may write to it.

One gateway at a time works on a schema of it. It holds an advisory lock on the connection that writes; the server frees
it when that connection ends, however it ends. What is not ours or newer than this program is refused before anything
is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, NamedTuple

import psycopg

from backchannel.errors import DatabaseUnusable, StartupError, StateFolderInUse, Unavailable
from backchannel.storage.migrations import load_versions, refuse_newer
from backchannel.storage.postgres_connection import Connection, connect, in_words, read_url, unavailable

OLDEST_SERVER = 130000
LOCK_LIMIT_S = 5.0
"""How long the lock of a gateway that has just ended may still be held: the server may not have noticed."""
_LOCK_PAUSE_S = 0.05
_LOCK_KEY = "hashtextextended('backchannel ' || current_schema(), 0)"
_HOLDER = (
    f"WITH wanted(key) AS (SELECT {_LOCK_KEY}) "
    "SELECT a.application_name FROM wanted, pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
    "WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database() "
    "AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295"
)
_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
_TEXT = re.compile(r"\bTEXT\b")
VERSION_TABLE = "backchannel_schema"
MOVE_TABLE = "backchannel_move"
"""There while a state is being copied into it."""


class TransactionUnknown(Exception):
    """Nobody can tell whether a transaction was committed."""


class Writer(NamedTuple):
    """The connection that writes and holds the lock, and the line of history that its server is on."""

    connection: Connection
    timeline: str


class Server:
    """A server and one of its databases, as a URL names them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.name = _shown(read_url(url))

    def connect(self, *, readonly: bool = False) -> Connection:
        """Open a connection.

        Raises:
            psycopg.OperationalError: it cannot be reached.
        """
        return connect(self._url, readonly=readonly)

    def hold(self) -> Writer:
        """Open a connection that keeps other gateways away for as long as it lasts.

        Raises:
            StateFolderInUse: another gateway has it.
            StartupError: the database cannot be reached.
        """
        try:
            connection = self.connect()
        except psycopg.Error as error:
            raise self._unreachable(error) from error
        try:
            self._wait_for_lock(connection)
            return Writer(connection, _timeline(connection))
        except psycopg.Error as error:
            connection.close()
            raise self._unreachable(error) from error
        except BaseException:  # whatever stopped it: nothing stays open, and the error goes on
            connection.close()
            raise

    def _wait_for_lock(self, connection: Connection) -> None:
        ends = monotonic() + LOCK_LIMIT_S
        while not _try_lock(connection):
            if monotonic() > ends:
                raise StateFolderInUse(
                    f"another gateway ({_holder(connection)}) uses the database {self.name}: "
                    "stop it first, or name another one in database.url"
                )
            sleep(_LOCK_PAUSE_S)

    def _unreachable(self, error: psycopg.Error) -> StartupError:
        return StartupError(f"the database {self.name} cannot be reached ({in_words(error)})")

    def reconnect(self, number: int) -> Writer:
        """Open another writing connection after one was lost; `number` is this process's start number, if it has one.

        Raises:
            psycopg.OperationalError: it cannot be reached, or the lock is still held.
            TransactionUnknown: another gateway has worked on it meanwhile.
        """
        connection = self.connect()
        try:
            if not _try_lock(connection):
                raise psycopg.OperationalError(f"its lock is held by {_holder(connection)}")
            (newest,) = connection.execute("SELECT coalesce(max(number), 0) FROM processes").fetchone() or (0,)
            if number and newest != number:
                raise TransactionUnknown("another gateway has worked on the database while there was no connection")
            return Writer(connection, _timeline(connection))
        except BaseException:  # whatever stopped it: nothing stays open, and the error goes on
            connection.close()
            raise

    def is_committed(self, writer: Writer, transaction: str, timeline: str) -> bool:
        """Ask what became of a transaction whose connection broke. It has ended: it held the lock that `writer` has.

        Raises:
            TransactionUnknown: another server has taken over, or it was too long ago.
        """
        status = None
        if writer.timeline == timeline:
            (status,) = _required(writer.connection.execute("SELECT pg_xact_status(%s::xid8)", (transaction,)))
        if status not in ("committed", "aborted"):
            raise TransactionUnknown("the database cannot tell whether a commit was made before the connection broke")
        return bool(status == "committed")

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
        """Whether a state is being copied into it, and not all of it is there."""
        return (MOVE_TABLE,) in connection.execute(_TABLES).fetchall()

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
            for statements in versions[current:]:
                for statement in statements:
                    connection.execute(statement.encode())
            connection.execute(f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version INTEGER NOT NULL)")
            connection.execute(f"DELETE FROM {VERSION_TABLE}")
            connection.execute(f"INSERT INTO {VERSION_TABLE} (version) VALUES ({len(versions)})")

    def unusable(self, error: psycopg.Error) -> DatabaseUnusable | Unavailable:
        """Say what stands against starting on it."""
        if isinstance(error, psycopg.OperationalError):
            return unavailable(self.name, error)
        return DatabaseUnusable(f"{self.name} cannot be used ({in_words(error)})")


def schema_versions() -> list[list[str]]:
    """Read the schema; keys are compared byte by byte, whatever the database's own order of letters is."""
    versions = load_versions("postgres", counter="BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY")
    return [[_TEXT.sub('TEXT COLLATE "C"', statement) for statement in version] for version in versions]


def _required(cursor: psycopg.Cursor[Any]) -> Any:
    row = cursor.fetchone()
    assert row is not None
    return row


def _try_lock(connection: Connection) -> bool:
    return bool(_required(connection.execute(f"SELECT pg_try_advisory_lock({_LOCK_KEY})"))[0])


def _timeline(connection: Connection) -> str:
    return str(_required(connection.execute("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"))[0])


def _holder(connection: Connection) -> str:
    row = connection.execute(_HOLDER).fetchone()
    return str(row[0]) if row and row[0] else "its process is not known"


def _shown(parts: dict[str, Any]) -> str:
    """Name a database without its user and password."""
    host, port, database = parts.get("host") or "", parts.get("port"), parts.get("dbname") or ""
    return f"postgresql://{host}{f':{port}' if port else ''}/{database}"
