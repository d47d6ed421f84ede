"""The SQLite driver: one writer thread with group commit, readers beside it.

The writer takes all units that wait, opens one IMMEDIATE transaction and runs each in a savepoint of its own; a unit
that raises is rolled back alone. Nobody is answered, and no fact handed on, before COMMIT returned.

- The transaction is gone after a unit failed (full disk): nothing of the group counts, and its units run again one
  by one, so that only those that cannot be done are refused.
- COMMIT fails because the disk is full: the same.
- BEGIN fails (another program holds the file): the whole group is refused.
- COMMIT fails otherwise: whether it happened is not known here. Nobody is answered (their futures are cancelled),
  the driver stops for good and `on_fatal` ends the process; the next start reads the truth.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

import structlog

from backchannel.core.facts import Fact
from backchannel.errors import StorageFull, Unavailable
from backchannel.storage.tx import Row, Unit

log = structlog.get_logger(__name__)
T = TypeVar("T")

LARGEST_GROUP = 512
READERS = 2
COUNTER = "INTEGER PRIMARY KEY AUTOINCREMENT"


class Faults(Protocol):
    """Where tests make the disk or the process fail; both are called in the writer thread with the commit's number."""

    def before_commit(self, number: int) -> None: ...

    def after_commit(self, number: int) -> None: ...


class ProcessKilled(BaseException):
    """Raised by faults: from here on this process does nothing any more."""


class SqliteTx:
    """A unit's window on one connection."""

    __slots__ = ("_execute", "facts")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self.facts: list[Fact] = []

    def one(self, sql: str, *values: Any) -> Row | None:
        row: Row | None = self._execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: Any) -> list[Row]:
        return self._execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> int:
        return self._execute(sql, values).rowcount

    def tell(self, fact: Fact) -> None:
        self.facts.append(fact)


class _Entry:
    """A unit that waits for the writer, and what became of it."""

    __slots__ = ("error", "facts", "future", "result", "unit")

    def __init__(self, unit: Unit[Any], future: asyncio.Future[Any]) -> None:
        self.unit = unit
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None
        self.facts: list[Fact] = []

    def refuse(self, error: Exception) -> None:
        self.error, self.facts = error, []


class _GroupLost(Exception):
    """The transaction is gone; nothing of the group counts."""


class SqliteDriver:
    """Runs units on one database file."""

    def __init__(
        self,
        path: Path,
        *,
        on_facts: Callable[[Sequence[Fact]], None],
        on_fatal: Callable[[BaseException], None],
        faults: Faults | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_facts = on_facts
        self._on_fatal = on_fatal
        self._faults = faults
        self._queue: SimpleQueue[_Entry | None] = SimpleQueue()
        self._is_closed = False
        self.commits = 0
        self.units = 0
        self.is_full = False
        self._writer = connect(path)
        self._local = threading.local()
        self._path = path
        self._reading: list[sqlite3.Connection] = []
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-reader")
        self._thread = threading.Thread(target=self._write_groups, name="sqlite-writer", daemon=True)
        self._thread.start()

    def write(self, unit: Unit[T]) -> asyncio.Future[T]:
        """Hand a unit to the writer. Cancelling the future does not cancel the unit."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._is_closed:
            future.set_exception(Unavailable("the database is closed"))
            future.exception()  # whoever was cancelled meanwhile need not hear it
        else:
            self._queue.put(_Entry(unit, future))
        return future

    async def read(self, unit: Unit[T]) -> T:
        """Run a unit that only reads, beside the writer; it sees every commit that was answered before."""
        if self._is_closed:
            raise Unavailable("the database is closed")
        return await self._loop.run_in_executor(self._readers, self._read, unit)

    async def close(self) -> None:
        """Finish what waits, then close."""
        self._is_closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.shutdown)
        for connection in self._reading:
            connection.close()
        self._writer.close()

    def _read(self, unit: Unit[T]) -> T:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect(self._path, readonly=True)
            self._reading.append(connection)
        # One transaction, so that a unit of several statements sees one state.
        connection.execute("BEGIN")
        try:
            return unit(SqliteTx(connection))
        finally:
            connection.execute("ROLLBACK")

    def _write_groups(self) -> None:
        group: list[_Entry] = []
        try:
            while group := self._next_group():
                self._commit(group)
                self._loop.call_soon_threadsafe(self._answer, group)
        except BaseException as cause:  # noqa: BLE001 - whatever it was: without its writer the process only waits
            self._is_closed = True
            with suppress(RuntimeError):  # the loop is gone already: nobody is left to tell
                self._loop.call_soon_threadsafe(self._die, group, cause)

    def _die(self, group: list[_Entry], cause: BaseException) -> None:
        """Let go of everybody who waits, without an answer: what became of the group is not known here."""
        waiting = list(group)
        with suppress(Empty):
            while (entry := self._queue.get_nowait()) is not None:
                waiting.append(entry)
        for entry in waiting:
            entry.future.cancel()
        self._on_fatal(cause)

    def _next_group(self) -> list[_Entry]:
        first = self._queue.get()
        if first is None:
            return []
        group = [first]
        with suppress(Empty):
            while len(group) < LARGEST_GROUP:
                entry = self._queue.get_nowait()
                if entry is None:
                    self._queue.put(None)  # finish this group first, then stop
                    break
                group.append(entry)
        return group

    def _commit(self, group: list[_Entry]) -> None:
        try:
            self._attempt(group)
        except _GroupLost:
            for entry in group:
                try:
                    self._attempt([entry])
                except _GroupLost as lost:
                    entry.refuse(_refusal(lost.__cause__))
        self.is_full = any(isinstance(entry.error, StorageFull) for entry in group)

    def _attempt(self, group: list[_Entry]) -> None:
        """Run a group in one transaction.

        Raises:
            _GroupLost: nothing of it counts.
        """
        execute = self._writer.execute
        try:
            execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            for entry in group:  # alone, each would wait as long and fail alike
                entry.refuse(_refusal(error))
            return
        try:
            for entry in group:
                self._run_unit(entry)
        except sqlite3.Error as error:
            self._roll_back()
            raise _GroupLost from error
        number = self.commits + 1
        try:
            if self._faults:
                self._faults.before_commit(number)
            execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if not _is_full(error):
                raise
            raise _GroupLost from error
        self.commits = number
        self.units += len(group)
        if self._faults:
            self._faults.after_commit(number)

    def _run_unit(self, entry: _Entry) -> None:
        execute = self._writer.execute
        tx = SqliteTx(self._writer)
        entry.error, entry.facts = None, tx.facts
        execute("SAVEPOINT unit")
        try:
            entry.result = entry.unit(tx)
        except Exception as error:
            if _is_full(error) or not self._writer.in_transaction:
                raise sqlite3.OperationalError("the transaction is gone") from error
            entry.refuse(error)
            execute("ROLLBACK TO unit")
        execute("RELEASE unit")

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def _answer(self, group: list[_Entry]) -> None:
        for entry in group:
            if entry.facts:
                self._tell(entry.facts)
            if entry.future.done():
                continue
            if entry.error is not None:
                entry.future.set_exception(entry.error)
            else:
                entry.future.set_result(entry.result)

    def _tell(self, facts: Sequence[Fact]) -> None:
        try:
            self._on_facts(facts)
        except Exception:
            # The change is durable: whoever made it, and the rest of the group, must hear so.
            log.exception("facts of a commit were not taken")


def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open a connection as all of them are: autocommit, WAL, every commit on the disk before it returns."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -16000")
    connection.execute("PRAGMA temp_store = MEMORY")
    if readonly:
        connection.execute("PRAGMA query_only = ON")
    return connection


def _is_full(error: BaseException | None) -> bool:
    while error is not None:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return True
        error = error.__cause__
    return False


def _refusal(cause: BaseException | None) -> Exception:
    if _is_full(cause):
        return StorageFull("the disk is full: nothing was changed; free some space and try again")
    return Unavailable(f"the database refused the change ({cause}): nothing was changed")
