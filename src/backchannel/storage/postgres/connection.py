"""Connections to PostgreSQL: their settings, types and errors.

Units have one SQL for all databases. Here `?` becomes `$1`, `$2` and so on. Integers and booleans are sent as 64-bit
integers, so that a statement is prepared once. Sums come back as Python numbers. Text cannot contain NUL: its symbol is
stored and searched instead.
"""

from __future__ import annotations

import logging
import os
import socket
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias

import psycopg
from psycopg import errors, pq
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from backchannel.errors import InvalidRequest, StartupError, StorageFull, Unavailable
from backchannel.storage.full_text import FullText
from backchannel.storage.groups import NO_CONTEXT, UnitTx
from backchannel.storage.postgres.full_text import PostgresFullText
from backchannel.storage.tx import Row, UnitContext

Connection: TypeAlias = "psycopg.Connection[Row]"

RETRY_AFTER_MS = 1000
DISK_FULL = "the disk of the database is full: nothing was changed; free some space and try again"
PROGRAM = "backchannel"
"""The prefix of this program's names in the server's list of connections."""
_STATEMENTS_KEPT = 512
_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "client_encoding": "UTF8",
}
"""A server that vanishes is noticed within seconds. The URL may say otherwise."""
# The same for the server, which holds the locks of a vanished gateway until it notices. Not as options of the
# connection: PgBouncer refuses them.
_KEEPALIVES = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
# Not an option of the connection: libpq would take the server for a standby if the URL asks for a primary.
_READ_ONLY = "SET default_transaction_read_only = on"
_LOST = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.ReadOnlySqlTransaction,  # it was the primary until a moment ago
    errors.IdleInTransactionSessionTimeout,
)
_AGAIN = (errors.SerializationFailure, errors.DeadlockDetected)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop psycopg's notes on broken pipelines and transactions: the first error is logged here."""
    return not record.getMessage().startswith("error ignored")


logging.getLogger("psycopg").addFilter(_is_news)


class PostgresTx(UnitTx):
    """A unit's view of one connection."""

    __slots__ = ("_cursor",)
    free_rows = " FOR UPDATE SKIP LOCKED"
    full_text: FullText = PostgresFullText()

    def __init__(self, connection: Connection, context: UnitContext = NO_CONTEXT, now: int = 0) -> None:
        super().__init__(context, now)
        self._cursor: psycopg.Cursor[Row] = psycopg.RawCursor(connection)

    def one(self, sql: str, *values: Any) -> Row | None:
        self._execute_on(self._cursor, sql, values)
        return self._cursor.fetchone()

    def all(self, sql: str, *values: Any) -> list[Row]:
        self._execute_on(self._cursor, sql, values)
        return self._cursor.fetchall()

    def run(self, sql: str, *values: Any) -> None:
        self._execute_on(self._cursor, sql, values)

    def _execute_on(self, cursor: psycopg.Cursor[Row], sql: str, values: tuple[Any, ...]) -> None:
        try:
            cursor.execute(translated(sql), values, prepare=True)
            return
        except psycopg.DataError:
            if not any(isinstance(value, str) and "\0" in value for value in values):
                raise
        shown = [value.replace("\0", "␀") if isinstance(value, str) else value for value in values]
        cursor.execute(translated(sql), shown, prepare=True)


@lru_cache(maxsize=4096)
def translated(sql: str) -> bytes:
    """Number the placeholders; no statement of ours has another question mark."""
    first, *others = sql.split("?")
    numbers = count(1)
    return "".join([first, *(f"${next(numbers)}{other}" for other in others)]).encode()


class _IntegerDumper(Dumper):
    oid = 20  # BIGINT

    def dump(self, obj: Any) -> bytes:
        return str(int(obj)).encode()


class _NumberLoader(Loader):
    """Loads sums and averages of whole numbers."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data).decode()
        return int(text) if text.lstrip("-").isdigit() else float(text)


def _adapters() -> AdaptContext:
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(int, _IntegerDumper)
    adapters.register_dumper(bool, _IntegerDumper)
    adapters.register_loader("numeric", _NumberLoader)
    return _Adapted(adapters)


class _Adapted:
    """A psycopg context: adapters without a connection."""

    connection = None

    def __init__(self, adapters: AdaptersMap) -> None:
        self.adapters = adapters


_ADAPTED = _adapters()


def read_url(url: str) -> dict[str, Any]:
    """Read the parts of a URL.

    Raises:
        StartupError: it is none; what it says is not repeated, as it may have a password.
    """
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        raise StartupError(
            "database.url cannot be read as a URL of PostgreSQL "
            "(expected postgresql://user@host:5432/database, with % escapes for special characters)"
        ) from None


def process_name() -> str:
    """Name this process for the server's list of connections."""
    return f"{PROGRAM} {socket.gethostname()[:40]}:{os.getpid()}"


def connect(url: str, *, readonly: bool = False) -> Connection:
    """Open a connection with the settings that all share: a commit is on the disk before it returns.

    Raises:
        psycopg.OperationalError: it cannot be reached, or refuses.
    """
    given = read_url(url)
    settings: dict[str, Any] = {**_DEFAULTS, "application_name": process_name(), **given}
    connection: Connection = psycopg.connect(make_conninfo("", **settings), autocommit=True, context=_ADAPTED)
    connection.prepared_max = _STATEMENTS_KEPT
    connection.execute(f"{_KEEPALIVES}; {_READ_ONLY if readonly else _DURABLE}".encode())
    return connection


def is_lost(connection: Connection, error: BaseException) -> bool:
    """Whether an error means that the connection is lost."""
    return connection.closed or _has(error, _LOST)


def is_kept_waiting(error: BaseException) -> bool:
    """Whether the error is a timeout of a lock."""
    return _has(error, (errors.LockNotAvailable,))


def runs_again(error: BaseException) -> bool:
    """Whether the same units may succeed if they run again."""
    return _has(error, _AGAIN)


def is_full(error: BaseException) -> bool:
    return _has(error, (errors.DiskFull,))


def is_in_transaction(connection: Connection) -> bool:
    return connection.info.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)


def _has(error: BaseException | None, kinds: tuple[type[BaseException], ...]) -> bool:
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__
    return False


def unavailable(name: str, error: BaseException) -> Unavailable:
    """Make the error for a database that cannot be used now."""
    if is_full(error):
        return StorageFull(DISK_FULL)
    return Unavailable(f"the database {name} cannot be used now ({describe_error(error)})", retryAfterMs=RETRY_AFTER_MS)


def as_refusal(name: str, error: Exception) -> Exception:
    """Turn an error of a unit into one for its caller.

    A name too long for an index is an invalid request. A cancelled statement and a full server may be retried.
    """
    if _has(error, (errors.ProgramLimitExceeded,)):
        return InvalidRequest("a name or an id is too long for this database: use at most 2,000 bytes")
    return unavailable(name, error) if _has(error, (psycopg.OperationalError,)) else error


def describe_error(error: BaseException) -> str:
    """Describe an error in one line; libpq never includes a password."""
    return " ".join(str(error).split()) or type(error).__name__
