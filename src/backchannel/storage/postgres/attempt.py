"""One transaction that writes to PostgreSQL: what it locks, how its statements go over, and how it ends.

A transaction is about some sessions, or about everything. The first shares a lock with all of its kind and has one of
its own for each session; the second has the shared one alone. So whatever is about everything sees a database that
nobody else changes, and of two that are about the same session one waits for the other.

Statements go over in a pipeline: one whose result nobody needs is sent with the next whose result somebody does. What
the server says against it comes up there, or at the end. Before that end it is known whether this process may write.
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
    """A unit about one session is about to change what is not its own: it has to be run with everything locked."""


class Attempt:
    """One transaction: how far it is, and what to ask the server for if its end is not known."""

    def __init__(
        self, writer: Writer, mark: CommitMark, context: UnitContext, now: int, keys: Collection[str] | None
    ) -> None:
        """Make one about sessions, or with None about everything."""
        self.writer = writer
        self.mark_number = mark.last + 1
        self._mark = mark
        self.keys = keys
        self.number = context.number
        self.tx = WritingTx(self, context, now)
        self.done = 0
        self.is_over = False
        """Whether there is nothing to commit: the only unit was refused."""
        self.is_in_doubt = False
        self._state: psycopg.Cursor[Row] = psycopg.RawCursor(writer.connection)
        self._end: psycopg.Cursor[Row] = psycopg.RawCursor(writer.connection)
        self._known: Row | None = None
        self._is_group = False

    def begin(self, pipeline: psycopg.Pipeline, locks: Locks, *, is_group: bool, wait_ms: int | None = None) -> None:
        """Begin, when it may; a unit that is alone needs no savepoint. Rows are waited for as long as `wait_ms` says.

        Each statement sees what was committed before it began, and so all that was committed before this transaction
        had its locks.
        """
        self._pipeline = pipeline
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

    @property
    def has_locks(self) -> bool:
        """Whether it has got the locks that gateways keep each other away by."""
        return self._state.pgresult is not None

    @property
    def shared_now(self) -> int:
        return int(self._look()[0])

    @property
    def is_outcast(self) -> bool:
        """Whether other processes have taken this one for dead."""
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
        """Take back the unit that is being run; what came before it in the group stays."""
        if self._is_group and self.done:
            self._roll_back_unit()
        else:
            self.roll_back()

    def _roll_back_unit(self) -> None:
        """Go back to where the unit began, and wait for it.

        When psycopg hears of it, it forgets which statements are prepared; the server is told so after the next
        statement, which must be none that is prepared.
        """
        self._send("ROLLBACK TO SAVEPOINT unit")
        self._pipeline.sync()
        self._end.execute("SAVEPOINT unit", prepare=False)

    def roll_back(self) -> None:
        self.is_over = True
        self._send("ROLLBACK")

    def commit(self) -> None:
        """Send COMMIT; it has come to the server, and been answered, when the pipeline ends."""
        self.is_in_doubt = True
        self._end.execute("COMMIT", prepare=False)

    def ended(self) -> None:
        """Take note that it is committed.

        Raises:
            psycopg.OperationalError: the server has ended it in another way than it was told to.
        """
        if self._end.statusmessage != "COMMIT":
            raise psycopg.OperationalError("the transaction was not committed")
        self._mark.last = self.mark_number

    def _send(self, sql: str, *values: Any) -> None:
        self._end.execute(translated(sql), values, prepare=True)


class WritingTx(PostgresTx):
    """What a unit sees of a transaction that writes."""

    __slots__ = ("_attempt", "_sink")

    def __init__(self, attempt: Attempt, context: UnitContext, now: int) -> None:
        super().__init__(attempt.writer.connection, context, now)
        self._attempt = attempt
        self._sink: psycopg.Cursor[Row] = psycopg.RawCursor(attempt.writer.connection)

    @property
    def shared_now(self) -> int:
        return self._attempt.shared_now

    def run(self, sql: str, *values: Any) -> None:
        self._execute_on(self._sink, sql, values)

    def _execute_on(self, cursor: psycopg.Cursor[Row], sql: str, values: tuple[Any, ...]) -> None:
        if self._attempt.keys is not None and not is_own(sql):
            raise ConcernsOthers(sql)
        super()._execute_on(cursor, sql, values)


@lru_cache(maxsize=4096)
def is_own(sql: str) -> bool:
    """Whether a statement only reads, or writes where a unit about one session may."""
    return _KNOWN.match(sql) is not None and OWN_TABLES.issuperset(_WRITES.findall(sql))
