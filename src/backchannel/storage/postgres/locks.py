"""Write locks: exclusive on the schema, or shared plus one per session.

PostgreSQL has advisory locks for this. Distributed databases that speak its protocol often have none, or some without
effect. There, rows are locked instead. All gateways of a database must lock in the same way. Each gateway checks this
when it joins.
"""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic, sleep
from typing import Any, Protocol
from zlib import crc32

import psycopg

from backchannel.errors import DatabaseUnusable
from backchannel.storage.postgres.connection import Connection
from backchannel.storage.tables import WRITE_LOCKS

_WRITES = "hashtextextended('backchannel writes ' || current_schema(), 0)"
_LEDGER = "hashtextextended('backchannel ledger ' || current_schema(), 0)"
_SCHEMA = "hashtextextended('backchannel ' || current_schema(), 0)"
_LOCK_ALL = f"SELECT pg_advisory_xact_lock({_WRITES})"
# The shared lock comes first, and sessions are locked in a fixed order. This prevents deadlocks.
_LOCK_SESSIONS = (
    f"SELECT pg_advisory_xact_lock_shared({_WRITES}), pg_advisory_xact_lock(hash) FROM (SELECT DISTINCT "
    f"hashtextextended(key, {_WRITES}) AS hash FROM unnest(?::text[]) AS key ORDER BY 1 OFFSET 0) AS hashes"
)
_HOLDER = (
    f"WITH wanted(key) AS (SELECT {_SCHEMA}) "
    "SELECT a.application_name FROM wanted, pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
    "WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database() "
    "AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295"
)
LET_IN_S = 1.0
"""How long to wait for a gateway that has just changed the schema, or has just ended."""
_PAUSE_S = 0.05
_ROWS = WRITE_LOCKS.name
SESSION_LOCKS = 256
_HAS_ROWS = f"SELECT EXISTS (SELECT 1 FROM {_ROWS})"
_ARE_OTHERS = (
    "SELECT EXISTS (SELECT 1 FROM processes WHERE ended_at IS NULL "
    "AND lease_until > (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
)
_LEDGER_ROW = SESSION_LOCKS + 1
_MAKE_ROWS = f"INSERT INTO {_ROWS} SELECT generate_series(0, {_LEDGER_ROW}) ON CONFLICT DO NOTHING"
_ROW = f"SELECT number FROM {_ROWS} WHERE number"

Statement = tuple[str, tuple[Any, ...]]


class Locks(Protocol):
    """A way to lock."""

    ledger: tuple[str]
    """The statement that locks the ledger of budgets."""

    def taking(self, keys: Collection[str] | None) -> list[Statement]:
        """Return the statements that lock sessions until the transaction ends; None locks everything."""
        ...

    def join(self, connection: Connection, name: str) -> None:
        """Check that this connection may write to the database beside others. `name` is for the error.

        Raises: psycopg.OperationalError: another process holds the exclusive lock. DatabaseUnusable: its gateways lock
            in another way.
        """
        ...

    def try_alone(self, connection: Connection) -> bool:
        """Try to keep all other writers out, for as long as the connection lasts."""
        ...

    def let_in(self, connection: Connection) -> None:
        """Let other writers in again."""
        ...


class AdvisoryLocks:
    """Advisory locks. The server frees them when their connection ends, for any reason."""

    ledger = (f"SELECT pg_advisory_xact_lock({_LEDGER})",)

    def taking(self, keys: Collection[str] | None) -> list[Statement]:
        return [(_LOCK_ALL, ())] if keys is None else [(_LOCK_SESSIONS, (list(keys),))]

    def join(self, connection: Connection, name: str) -> None:
        ends = monotonic() + LET_IN_S
        while not _is_so(connection, f"SELECT pg_try_advisory_lock_shared({_SCHEMA})"):
            if monotonic() > ends:
                raise psycopg.OperationalError(f"{holder(connection)} holds it exclusively")
            sleep(_PAUSE_S)
        if _is_so(connection, _HAS_ROWS):
            raise DatabaseUnusable(f'the gateways of {name} lock rows: set cluster.locks to "rows" here too')

    def try_alone(self, connection: Connection) -> bool:
        return _is_so(connection, f"SELECT pg_try_advisory_lock({_SCHEMA})")

    def let_in(self, connection: Connection) -> None:
        connection.execute(f"SELECT pg_advisory_unlock({_SCHEMA})".encode())


class RowLocks:
    """Locks on the rows of a table. They do not prevent a schema change or a move of the database."""

    ledger = (f"{_ROW} = {_LEDGER_ROW} FOR UPDATE",)

    def taking(self, keys: Collection[str] | None) -> list[Statement]:
        if keys is None:
            return [(f"{_ROW} = 0 FOR UPDATE", ())]
        numbers = sorted({crc32(key.encode()) % SESSION_LOCKS + 1 for key in keys})
        return [(f"{_ROW} = 0 FOR SHARE", ()), (f"{_ROW} = ANY(?::bigint[]) ORDER BY number FOR UPDATE", (numbers,))]

    def join(self, connection: Connection, name: str) -> None:
        with connection.transaction():
            if not _is_so(connection, _HAS_ROWS) and _is_so(connection, _ARE_OTHERS):
                raise DatabaseUnusable(
                    f"gateways are at work on {name} that do not lock rows: stop them all, then start with "
                    'cluster.locks: "rows"'
                )
            connection.execute(_MAKE_ROWS)  # an older version made fewer

    def try_alone(self, connection: Connection) -> bool:
        return True

    def let_in(self, connection: Connection) -> None: ...


def holder(connection: Connection) -> str:
    """Name the process that keeps others out, or is kept out."""
    row = connection.execute(_HOLDER).fetchone()
    return str(row[0]) if row and row[0] else "its process is not known"


def _is_so(connection: Connection, question: str) -> bool:
    row = connection.execute(question.encode()).fetchone()
    return row is not None and bool(row[0])
