"""One transaction that writes to PostgreSQL: its locks, statements and end.

A transaction is about some sessions, or about everything. The first kind shares one lock and has a lock for each of its
sessions. The second kind has the shared lock alone. So a transaction about everything runs alone, and two about the
same session run one after the other.

Statements go over in a pipeline: one without a result is sent with the next that has one. Its error comes up there, or
at the end. Before the end it is known whether this process may still write.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import psycopg

from backchannel.storage.postgres.connection import PostgresTx, translated
from backchannel.storage.postgres.locks import Locks
from backchannel.storage.postgres.marks import NEXT_MARK, CommitMark
from backchannel.storage.postgres.server import Writer
from backchannel.storage.tables import TABLES
from backchannel.storage.tx import Row, UnitContext, required

OWN_TABLES = frozenset(table.name for table in TABLES if table.of != "all")
"""The tables that a unit may write under the lock of one session."""

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_STATE = (
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, "
    "? = 0 OR EXISTS (SELECT 1 FROM processes WHERE number = ? AND ended_at IS NULL)"
)
_WRITES = re.compile(r"\b(?:INSERT\s+INTO|DELETE\s+FROM|UPDATE(?!\s+SET\b))\s+(\w+)")
_KNOWN = re.compile(r"(?:SELECT|WITH|INSERT|UPDATE|DELETE)\b")


class ConcernsOthers(Exception):
    """A unit about one session is about to write another's rows. It runs again with everything locked."""


class Attempt:
    """One transaction, and the mark that tells its outcome."""

    def __init__(
        self, writer: Writer, mark: CommitMark, context: UnitContext, now: int, keys: Collection[str] | None
    ) -> None:
        """Begin one about sessions; None means everything."""
        self.writer = writer
        self.mark_number = mark.last + 1
        self._mark = mark
        self.keys = keys
        self.number = context.number
        self.tx = WritingTx(self, context, now)
        self.done = 0
        self.is_over = False
        """Whether there is nothing to commit, because the only unit was refused."""
        self.is_in_doubt = False
        self._state: psycopg.Cursor[Row] = psycopg.RawCursor(writer.connection)
        self._end: psycopg.Cursor[Row] = psycopg.RawCursor(writer.connection)
        self._known: Row | None = None
        self._is_group = False

    def begin(self, pipeline: psycopg.Pipeline, locks: Locks, *, is_group: bool, wait_ms: int | None = None) -> None:
        """Begin, once the locks are free. A single unit needs no savepoint. `wait_ms` limits the wait for a row.

        Each statement sees all commits before it began, and so all before this transaction got its locks.
        """
        self._pipeline = pipeline
        self._locks = locks
        self._is_group = is_group
        self._end.execute(_BEGIN, prepare=False)  # as after a unit that was rolled back
        for sql, values in locks.taking(self.keys):
            self._send(sql, *values)
        self._send(NEXT_MARK, self._mark.writer, self.mark_number)
        self._state.execute(translated(_STATE), (self.number, self.number), prepare=True)
        if wait_ms is not None:
            self._end.execute(f"SET LOCAL lock_timeout = {wait_ms}".encode(), prepare=False)
        if is_group:
            self._send("SAVEPOINT unit")

    def lock_ledger(self) -> None:
        """Lock the ledger. A rollback to a savepoint frees it, so each unit asks for it."""
        self._send(*self._locks.ledger)

    @property
    def has_locks(self) -> bool:
        """Whether it has the locks of `locks.py`."""
        return self._state.pgresult is not None

    @property
    def shared_now(self) -> int:
        return int(self._look()[0])

    @property
    def is_outcast(self) -> bool:
        """Whether other processes have declared this one dead."""
        return not self._look()[1]

    def _look(self) -> Row:
        if self._known is None:
            self._known = required(self._state.fetchone())
        return self._known

    def unit_ended(self, *, is_kept: bool) -> None:
        self.done += 1
        if not self._is_group:
            self.is_over = not is_kept
        if self.is_over:
            self.roll_back()
        elif self._is_group and is_kept:
            self._send("RELEASE SAVEPOINT unit")
            self._send("SAVEPOINT unit")
        elif self._is_group:
            self._roll_back_unit()

    def leave(self) -> None:
        """Roll back the running unit. Earlier units of the group stay."""
        if self._is_group and self.done:
            self._roll_back_unit()
        else:
            self.roll_back()

    def _roll_back_unit(self) -> None:
        """Roll back to the start of the unit, and wait for it.

        After a rollback psycopg forgets its prepared statements, and tells the server so after the next statement. So
        that one must not be prepared.
        """
        self._send("ROLLBACK TO SAVEPOINT unit")
        self._pipeline.sync()
        self._end.execute("SAVEPOINT unit", prepare=False)

    def roll_back(self) -> None:
        self.is_over = True
        self._send("ROLLBACK")

    def commit(self) -> None:
        """Send COMMIT. It is answered when the pipeline ends."""
        self.is_in_doubt = True
        self._end.execute("COMMIT", prepare=False)

    def ended(self) -> None:
        """Record that it is committed.

        Raises:
            psycopg.OperationalError: the server has ended it in another way than it was told to.
        """
        if self._end.statusmessage != "COMMIT":
            raise psycopg.OperationalError("the transaction was not committed")
        self._mark.last = self.mark_number

    def _send(self, sql: str, *values: Any) -> None:
        self._end.execute(translated(sql), values, prepare=True)


class WritingTx(PostgresTx):
    """A unit's view of a transaction that writes."""

    __slots__ = ("_attempt", "_sink")

    def __init__(self, attempt: Attempt, context: UnitContext, now: int) -> None:
        super().__init__(attempt.writer.connection, context, now)
        self._attempt = attempt
        self._sink: psycopg.Cursor[Row] = psycopg.RawCursor(attempt.writer.connection)

    @property
    def shared_now(self) -> int:
        return self._attempt.shared_now

    def lock_ledger(self) -> None:
        self._attempt.lock_ledger()

    def run(self, sql: str, *values: Any) -> None:
        self._execute_on(self._sink, sql, values)

    def _execute_on(self, cursor: psycopg.Cursor[Row], sql: str, values: tuple[Any, ...]) -> None:
        if self._attempt.keys is not None and not is_own(sql):
            raise ConcernsOthers(sql)
        super()._execute_on(cursor, sql, values)


@lru_cache(maxsize=4096)
def is_own(sql: str) -> bool:
    """Whether a statement only reads, or writes tables that a unit about one session may."""
    return _KNOWN.match(sql) is not None and OWN_TABLES.issuperset(_WRITES.findall(sql))
