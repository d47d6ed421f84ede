"""The SQLite driver: group commit, with COMMIT in its own thread.

All waiting units run in one IMMEDIATE transaction. A unit that raises is rolled back alone. Most such units have
written nothing, so no unit has a savepoint at first. After a unit that had written, the group runs again with
savepoints. Units are short and run on the event loop: to hand each statement to a thread costs more than the statement,
because of the interpreter lock. Only the wait for the disk is long, and the commit thread does that, after the long
statements of the units (`Tx.run_long`). Nobody is answered, and no fact is handed on, before COMMIT returns.

- The transaction is gone after a unit failed (full disk). Nothing of the group counts. Its units run again one by one,
  so that only those that cannot be done are refused.
- COMMIT fails because the disk is full: the same.
- A long statement fails: the same, and its unit is refused.
- BEGIN fails (another program holds the file): it is tried again for a while, then the whole group is refused.
- COMMIT fails otherwise: whether it happened is not known here. Nobody is answered (their futures are cancelled),
  the driver stops for good and `on_fatal` ends the process; the next start reads the truth.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter, time_ns
from typing import Any, Concatenate, ParamSpec, TypeVar

from backchannel.core.contracts import Clock
from backchannel.core.facts import Fact
from backchannel.errors import StorageFull, Unavailable
from backchannel.storage.driver import DriverProblem, Faults
from backchannel.storage.full_text import FullText
from backchannel.storage.groups import NO_CONTEXT, UnitTx, WaitingUnit, answer, refused
from backchannel.storage.probing import try_commit
from backchannel.storage.sqlite.full_text import SqliteFullText
from backchannel.storage.tables import Table
from backchannel.storage.tx import Row, Tx, UnitContext

P = ParamSpec("P")
T = TypeVar("T")

LARGEST_GROUP = 512
_LONGEST_GROUP_S = 0.02
"""How long the units of one group may block the event loop. The last unit still runs to its end."""
READERS = 2
COARSE_NS = 1_000_000_000
_BUSY_PAUSE_S = 0.02
_BUSY_LIMIT_S = 10.0
"""How long another program may hold the file before writes are refused."""


class _HalfDone(Exception):
    """A unit raised after it had written, and has no savepoint to return to."""


class _Undone(Exception):
    """A long statement failed before COMMIT, so nothing of the group counts."""


class SqliteTx(UnitTx):
    """A unit's view of one connection."""

    __slots__ = ("_execute", "long")
    full_text: FullText = SqliteFullText()

    def __init__(self, connection: sqlite3.Connection, context: UnitContext = NO_CONTEXT, now: int = 0) -> None:
        super().__init__(context, now)
        self._execute = connection.execute
        self.long: list[tuple[str, Row]] = []
        """Statements for the commit thread."""

    def one(self, sql: str, *values: Any) -> Row | None:
        row: Row | None = self._execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: Any) -> list[Row]:
        return self._execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> None:
        self._execute(sql, values)

    def run_long(self, sql: str, *values: Any) -> None:
        self.long.append((sql, values))

    def insert(self, table: Table[Any], then: str = "", /, **values: Any) -> None:
        self._execute(table.inserts[then, *values], (*values.values(),))

    def insert_one(self, table: Table[Any], then: str, /, **values: Any) -> Row | None:
        row: Row | None = self._execute(table.inserts[then, *values], (*values.values(),)).fetchone()
        return row

    def insert_numbered(self, table: Table[Any], /, **values: Any) -> int:
        # It is the row's own number, which SQLite tells for nothing.
        return self._execute(table.inserts["", *values], (*values.values(),)).lastrowid or 0


class SqliteDriver:
    """Runs units on one database file."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        on_facts: Callable[[Sequence[Fact]], None],
        on_fatal: Callable[[BaseException], None],
        context: UnitContext = NO_CONTEXT,
        faults: Faults | None = None,
        busy_limit_s: float = _BUSY_LIMIT_S,
    ) -> None:
        self.context = context
        self._now_ms = clock.now_ms
        self._loop = asyncio.get_running_loop()
        self._on_facts = on_facts
        self._on_fatal = on_fatal
        self._faults = faults
        self._busy_limit_s = busy_limit_s
        self.commits = 0
        self.units = 0
        self._on_ended: Callable[[], None] = lambda: None
        self.slowest: tuple[float, str] = (0.0, "")
        self._waiting: deque[WaitingUnit] = deque()
        self._alone: deque[WaitingUnit] = deque()
        """Units of a lost group: they run again, one by one, before all others."""
        self.is_closed = False
        self._files = _Files(path)
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._writer = connect(path, wait_s=0)
        self._here = connect(path, readonly=True)
        self._readers = _Readers(path)
        self._commits: SimpleQueue[tuple[list[WaitingUnit], list[tuple[str, Row]]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._commit_groups, name="sqlite-commit", daemon=True)
        self._thread.start()

    def write(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Hand a unit over. Cancelling the future does not cancel the unit."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self.is_closed:
            return refused(future, Unavailable("the database is closed"))
        self._waiting.append(WaitingUnit(unit, args, kwargs, future))
        if self._is_idle.is_set():
            self._is_idle.clear()
            self._loop.call_soon(self._next_group)
        return future

    def write_within(
        self, key: str | None, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Hand over a unit about one session: SQLite runs all units one after the other."""
        return self.write(unit, *args, **kwargs)

    def write_beside(
        self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Hand over a unit that need not wait for others: in SQLite it does."""
        return self.write(unit, *args, **kwargs)

    def listen_for_end(self, on_ended: Callable[[], None]) -> None:
        self._on_ended = on_ended

    async def enter(self, unit: Callable[Concatenate[Tx, P], int], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Run the unit that gives this process its number, before any other write."""
        number = await self.write(unit, *args, **kwargs)
        self.context = replace(self.context, number=number)
        return number

    async def check_writable(self) -> None:
        """Make a commit, after all waiting units."""
        await try_commit(self.write)

    def problems(self) -> Sequence[DriverProblem]:
        return ()

    async def read(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a unit that only reads, in a thread. It sees every commit that was answered before."""
        if self.is_closed:
            raise Unavailable("the database is closed")
        readers = self._readers
        # Not as a `partial`: the loop would look long at one to find out that it is no coroutine.
        return await self._loop.run_in_executor(
            readers.pool, readers.run, self.context, self._now_ms(), unit, args, kwargs
        )

    async def look(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a unit that reads few rows, on the event loop: a thread would take longer.

        Each of its statements sees the newest commit.
        """
        if self.is_closed:
            raise Unavailable("the database is closed")
        return unit(SqliteTx(self._here, self.context, self._now_ms()), *args, **kwargs)

    async def close(self) -> None:
        """Finish the waiting units, then close."""
        self.is_closed = True
        await self._is_idle.wait()
        self._commits.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.close)
        self._here.close()
        self._writer.close()

    def _next_group(self, give_up_at: float | None = None, *, has_savepoints: bool = False) -> None:
        """Run the waiting units, and hand them to the commit thread."""
        if not self._waiting and not self._alone:
            self._is_idle.set()
            return
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._try_later(error, give_up_at or self._loop.time() + self._busy_limit_s)
            return
        group: list[WaitingUnit] = []
        tx = SqliteTx(self._writer, self.context, self._now_ms())
        run = self._run_with_savepoint if has_savepoints else self._run_unit
        try:
            for entry in self._take_group():
                group.append(entry)
                run(entry, tx)
        except _HalfDone:
            self._begin_again(group)
        except sqlite3.Error as error:
            self._lost(group, error)
        except BaseException as cause:  # noqa: BLE001 - whatever it was: with a transaction left open nothing goes on
            self._die(group, cause)
        else:
            self._commits.put((group, tx.long))

    def _take_group(self) -> Iterator[WaitingUnit]:
        """Take waiting units, until the event loop was blocked for too long."""
        if self._alone:
            yield self._alone.popleft()
            return
        ends = perf_counter() + _LONGEST_GROUP_S
        for _ in range(min(len(self._waiting), LARGEST_GROUP)):
            yield self._waiting.popleft()
            if perf_counter() > ends:
                return

    def _try_later(self, error: sqlite3.Error, give_up_at: float) -> None:
        if self._loop.time() < give_up_at:
            self._loop.call_later(_BUSY_PAUSE_S, self._next_group, give_up_at)
            return
        group = [*self._alone, *self._waiting]
        self._alone.clear()
        self._waiting.clear()
        for entry in group:
            entry.refuse(_refusal(error))
        answer(group, self._on_facts)
        self._next_group()

    def _run_unit(self, entry: WaitingUnit, tx: SqliteTx) -> None:
        entry.error, entry.facts = None, []
        tx.facts = entry.facts
        changes, long, began = self._writer.total_changes, len(tx.long), perf_counter()
        try:
            entry.result = entry.unit(tx, *entry.args, **entry.kwargs)
        except Exception as error:  # the edge of a unit: its caller is told, and the rest of the group goes on
            if _is_full(error) or not self._writer.in_transaction:
                raise sqlite3.OperationalError("the transaction is gone") from error
            entry.refuse(error)
            del tx.long[long:]
            if self._writer.total_changes != changes:
                raise _HalfDone from error
        if (took := perf_counter() - began) > self.slowest[0]:
            self.slowest = (took, entry.name)

    def _run_with_savepoint(self, entry: WaitingUnit, tx: SqliteTx) -> None:
        self._writer.execute("SAVEPOINT unit")
        with suppress(_HalfDone):
            self._run_unit(entry, tx)
        if entry.error is not None:
            self._writer.execute("ROLLBACK TO unit")
        self._writer.execute("RELEASE unit")

    def _begin_again(self, group: list[WaitingUnit]) -> None:
        """Undo a group whose last unit raised after it had written. The units before it run again, with savepoints."""
        try:
            self._writer.execute("ROLLBACK")
        except sqlite3.Error as cause:
            self._die(group, cause)
            return
        if len(group) > 1:
            self._waiting.extendleft(reversed(group))
        else:
            answer(group, self._on_facts)  # nothing of it is in the database
        self._loop.call_soon(partial(self._next_group, has_savepoints=len(group) > 1))

    def _lost(self, group: list[WaitingUnit], error: BaseException) -> None:
        """Run the units of a lost group again one by one. A unit that was alone is refused."""
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error as cause:
            self._die(group, cause)
            return
        if len(group) > 1:
            self._alone.extend(group)
        else:
            group[0].refuse(_refusal(error))
            answer(group, self._on_facts)
        self._loop.call_soon(self._next_group)  # not called from here: hundreds may be refused one after the other

    def _commit_groups(self) -> None:
        while (work := self._commits.get()) is not None:
            group, long = work
            error: BaseException | None = None
            try:
                self._run_long(long)
                self._commit()
            except BaseException as raised:  # noqa: BLE001 - whatever it was, the loop decides what follows
                error = raised
            with suppress(RuntimeError):  # the loop is closed: there is nothing to report to
                self._loop.call_soon_threadsafe(self._committed, group, error)

    def _run_long(self, statements: list[tuple[str, Row]]) -> None:
        try:
            for sql, values in statements:
                self._writer.execute(sql, values)
        except sqlite3.Error as error:
            raise _Undone from error

    def _commit(self) -> None:
        number = self.commits + 1
        if self._faults:
            self._faults.before_commit(number)
        self._writer.execute("COMMIT")
        self.commits = number
        if self._faults:
            self._faults.after_commit(number)

    def _committed(self, group: list[WaitingUnit], error: BaseException | None) -> None:
        error = error or self._files.trouble()
        if error is None:
            self.units += len(group)
            answer(group, self._on_facts)
            self._next_group()
        elif isinstance(error, _Undone) or _is_full(error):
            self._lost(group, error.__cause__ or error)
        else:
            self._die(group, error)

    def _die(self, group: list[WaitingUnit], cause: BaseException) -> None:
        """Stop for good and cancel all waiting futures: the outcome of the group's commit is unknown."""
        self.is_closed = True
        for entry in (*group, *self._alone, *self._waiting):
            entry.future.cancel()
        self._alone.clear()
        self._waiting.clear()
        self._is_idle.set()
        self._on_fatal(cause)


class _Files:
    """The database's two files. A commit into a deleted or moved file is lost at the next start."""

    def __init__(self, path: Path) -> None:
        self._folder = str(path.parent)
        self._paths = (str(path), f"{path}-wal")
        self._known: list[tuple[int, int]] | None = None
        self._unchanged_since = 0
        """The folder's last change when both files were found, if that was long enough before."""

    def trouble(self) -> OSError | None:
        """Check that both files are still in their place.

        It runs on the event loop: the commit thread would wait for the interpreter after each call. If nothing in the
        folder has changed, one call is enough.
        """
        try:
            changed_at = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - a Path would take twice as long
            if changed_at == self._unchanged_since:
                return None
            found = [(at.st_dev, at.st_ino) for at in map(os.stat, self._paths)]
        except OSError as gone:
            return gone
        if self._known is None:
            self._known = found  # the first commit has made the log, and from then on it stays
        if found != self._known:
            return OSError(f"{self._paths[0]} was replaced while the gateway used it")
        # A change right after this one could bear the same time: clocks of file systems are coarse.
        self._unchanged_since = changed_at if time_ns() - changed_at > COARSE_NS else 0
        return None


class _Readers:
    """Threads with a connection each, for long reads."""

    def __init__(self, path: Path) -> None:
        self.pool = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-reader")
        self._path = path
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    def run(
        self, context: UnitContext, now: int, unit: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        """Run a unit in one transaction, so that all its statements see one state."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect(self._path, readonly=True)
            self._connections.append(connection)
        connection.execute("BEGIN")
        try:
            return unit(SqliteTx(connection, context, now), *args, **kwargs)
        finally:
            connection.execute("ROLLBACK")

    def close(self) -> None:
        self.pool.shutdown()
        for connection in self._connections:
            connection.close()


def connect(path: Path, *, readonly: bool = False, wait_s: float = 10) -> sqlite3.Connection:
    """Open a connection with the settings that all share: autocommit, WAL, a commit on the disk before it returns."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -16000")
    connection.execute("PRAGMA temp_store = MEMORY")
    if readonly:
        connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
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
