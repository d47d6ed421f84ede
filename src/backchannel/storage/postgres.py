"""The PostgreSQL driver: one thread that writes in groups, and a few that read beside it.

All units that wait are run in one transaction on one connection, each in a savepoint of its own; a unit that raises is
rolled back alone. So units see each other's work in the order in which they came, exactly as on SQLite, and a round
trip to the disk is shared by all that wait for it. Nobody is answered, and no fact handed on, before COMMIT returned.

The writing connection holds the lock that keeps other gateways away, so what is committed on it was committed under
the lock. When it breaks, another is opened that has the lock again, and only then does anything go on:

- Broken before COMMIT was sent: nothing of the group counts, and it is run again.
- Broken while COMMIT was under way: the mark that the transaction would have left tells whether it was committed, on
  whichever server answers now (`postgres_marks.py`). It was: all are answered. It was not: the group is run again.
- Commits that were answered are not there (a standby has taken over that did not have them): this process's memory is
  ahead of the database. Its units are refused until it has dropped all its work and entered once more.
- No connection for a while: what waits and what comes is refused as unavailable, until there is one again.
- A full disk, or units that got in each other's way: the units of the group are run again one by one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
import structlog

from backchannel.core.contracts import Clock
from backchannel.core.facts import Fact
from backchannel.errors import StorageFull, Unavailable
from backchannel.storage.driver import Faults
from backchannel.storage.groups import WaitingUnit, answer, refused
from backchannel.storage.postgres_connection import (
    RETRY_AFTER_MS,
    PostgresTx,
    as_refusal,
    in_words,
    is_full,
    is_in_transaction,
    is_lost,
    runs_again,
    unavailable,
)
from backchannel.storage.postgres_marks import CommitMark
from backchannel.storage.postgres_readers import Readers
from backchannel.storage.postgres_server import WRITE_LOCK, Server, Writer
from backchannel.storage.tx import Tx, UnitContext, required

log = structlog.get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

LARGEST_GROUP = 512
LONGEST_GROUP_S = 0.1
"""How long units are added to a group; the last one is run to its end."""
MOST_WAITING = 10_000
"""How many changes may wait, and how many reads; more are refused."""
READERS, LOOKERS = 3, 2
GONE_LIMIT_S = 5.0
"""How long units wait for a connection before they are refused."""
RECONNECT_PAUSE_S = 0.2
MOST_TRIES = 5
"""How often a unit that others got in the way of is run."""
TAKEN_FOR_DEAD = "the other gateways have taken this one for dead: it stops its work and begins anew in a moment"
AHEAD = "the database has gone back behind what this gateway knew: it stops its work and begins anew in a moment"


class PostgresDriver:
    """Runs units on one database."""

    def __init__(
        self,
        server: Server,
        mark: CommitMark,
        writer: Writer,
        clock: Clock,
        *,
        on_facts: Callable[[Sequence[Fact]], None],
        on_fatal: Callable[[BaseException], None],
        context: UnitContext,
        faults: Faults | None = None,
    ) -> None:
        self.context = context
        self._server = server
        self._now_ms = clock.now_ms
        self._loop = asyncio.get_running_loop()
        self._on_facts = on_facts
        self._on_fatal = on_fatal
        self._faults = faults
        self.commits = 0
        self.units = 0
        self.is_full = False
        self.is_closed = False
        self.on_ended: Callable[[], None] = lambda: None
        self.slowest: tuple[float, str] = (0.0, "")
        self._mark = mark
        self._is_ahead = False
        """Whether commits that were answered are not in the database any more."""
        self._writer: Writer | None = writer
        self._gone_since: float | None = None
        self._is_ending = threading.Event()
        self._waiting: SimpleQueue[WaitingUnit | None] = SimpleQueue()
        self._open = 0
        """How many units were taken and are not answered yet."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._reads = Readers(server, READERS, "postgres-read")
        self._looks = Readers(server, LOOKERS, "postgres-look")
        self._thread = threading.Thread(target=self._work, name="postgres-write", daemon=True)
        self._thread.start()

    def write(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Hand a unit over. Cancelling the future does not cancel the unit."""
        return self._hand_over(WaitingUnit(unit, args, kwargs, self._loop.create_future()))

    def _hand_over(self, entry: WaitingUnit) -> asyncio.Future[Any]:
        future = entry.future
        if self.is_closed:
            return refused(future, Unavailable("the database is closed"))
        if self._open >= MOST_WAITING:
            busy = f"{self._open} changes wait for the database already"
            return refused(future, Unavailable(busy, retryAfterMs=RETRY_AFTER_MS))
        self._open += 1
        self._is_idle.clear()
        self._waiting.put(entry)
        return future

    async def enter(self, unit: Callable[Concatenate[Tx, P], int], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Run the unit that gives this process its number, also when it had one that was ended."""
        entry = WaitingUnit(unit, args, kwargs, self._loop.create_future())
        entry.is_entry = True
        return int(await self._hand_over(entry))

    async def read(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a unit that only reads, in a thread; it sees one state, with every commit that was answered before."""
        return await self._read_in(self._reads, self._reads.in_snapshot, unit, *args, **kwargs)

    async def look(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a unit that reads a row or a few, in a thread for such: long reads do not hold it up."""
        return await self._read_in(self._looks, self._looks.newest, unit, *args, **kwargs)

    async def _read_in(self, readers: Readers, how: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        if self.is_closed:
            raise Unavailable("the database is closed")
        if readers.waiting >= MOST_WAITING:
            raise Unavailable(f"{readers.waiting} reads wait for the database already", retryAfterMs=RETRY_AFTER_MS)
        run = partial(how, self.context, self._now_ms(), *args, **kwargs)
        readers.waiting += 1
        try:
            return await self._loop.run_in_executor(readers.pool, run)
        finally:
            readers.waiting -= 1

    async def close(self) -> None:
        """Finish what waits, then close; while there is no connection nothing is waited for."""
        self.is_closed = True
        self._is_ending.set()
        await self._is_idle.wait()
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)
        for readers in (self._reads, self._looks):
            await asyncio.to_thread(readers.close)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.connection.close)

    # In the thread that writes

    def _work(self) -> None:
        while (group := self._take_group()) is not None:
            try:
                self._settle(group)
            except BaseException as cause:  # noqa: BLE001 - whatever it was: with a transaction left open nothing goes on
                self._to_loop(self._die, group, cause)
                return

    def _take_group(self) -> list[WaitingUnit] | None:
        """Wait for a unit, and take those that wait behind it; None when there will be none."""
        group: list[WaitingUnit] = []
        entry = self._waiting.get()
        while entry is not None:
            group.append(entry)
            if len(group) == LARGEST_GROUP:
                return group
            try:
                entry = self._waiting.get_nowait()
            except Empty:
                return group
        return None

    def _settle(self, group: list[WaitingUnit]) -> None:
        """Commit all of a group, in one transaction or in several, and have it answered; what is settled leaves it."""
        largest = len(group)
        while group:
            part = group[:largest]
            try:
                done = self._committed(part)
            except _Gone as error:
                _refuse(group, unavailable(self._server.name, error))
                done = len(group)
            except psycopg.Error as error:
                if len(part) > 1:
                    largest = 1  # only those that cannot be done are refused
                    continue
                _refuse(part, unavailable(self._server.name, error))
                done = 1
            self._to_loop(self._answer, group[:done])
            del group[:done]

    def _committed(self, group: list[WaitingUnit]) -> int:
        """Commit as many units of the group as one transaction takes; returns how many.

        Raises:
            psycopg.Error: none was committed.
        """
        tries = 0
        while True:
            writer = self._take_writer()
            attempt = _Attempt(writer, PostgresTx(writer.connection, self.context, self._now_ms()), self._mark)
            try:
                self._run_units(attempt, group)
                self._commit(attempt)
                self._take_number(group[: attempt.done])
                return attempt.done
            except psycopg.Error as error:
                if self._is_committed(attempt, error):
                    self.commits += 1
                    self._take_number(group[: attempt.done])
                    return attempt.done
                tries += 1
                goes_on = is_lost(writer.connection, error) or (len(group) == 1 and runs_again(error))
                if not goes_on or tries == MOST_TRIES:
                    raise

    def _run_units(self, attempt: _Attempt, group: list[WaitingUnit]) -> None:
        attempt.begin(self.context.number, is_group=len(group) > 1)
        if attempt.is_outcast or self._is_ahead:
            self._to_loop(self._tell_ended)
        ends = perf_counter() + LONGEST_GROUP_S
        for entry in group:
            began = perf_counter()
            self._run_unit(attempt, entry)
            took = perf_counter() - began
            if took > self.slowest[0]:
                self.slowest = (took, entry.name)
            if began + took > ends:
                return

    def _run_unit(self, attempt: _Attempt, entry: WaitingUnit) -> None:
        entry.error, entry.facts = None, []
        attempt.tx.facts = entry.facts
        if (attempt.is_outcast or self._is_ahead) and not entry.is_entry:
            entry.refuse(Unavailable(AHEAD if self._is_ahead else TAKEN_FOR_DEAD, retryAfterMs=RETRY_AFTER_MS))
            attempt.unit_ended(is_kept=False)
            return
        try:
            entry.result = entry.unit(attempt.tx, *entry.args, **entry.kwargs)
        except Exception as error:  # the edge of a unit: its caller is told, and the rest of the group goes on
            if is_full(error) or runs_again(error) or is_lost(attempt.writer.connection, error):
                raise psycopg.OperationalError(in_words(error)) from error
            entry.refuse(as_refusal(self._server.name, error))
        attempt.unit_ended(is_kept=entry.error is None)

    def _commit(self, attempt: _Attempt) -> None:
        if attempt.is_over:
            return
        if self._faults:
            self._faults.before_commit(self.commits + 1)
        attempt.commit()
        self.commits += 1
        if self._faults:
            self._faults.after_commit(self.commits)

    def _take_number(self, group: Sequence[WaitingUnit]) -> None:
        """Take the number that a unit has given this process, before any other unit is run."""
        for entry in group:
            if entry.is_entry and entry.error is None:
                self.context = replace(self.context, number=entry.result)
                self._is_ahead = False

    def _is_committed(self, attempt: _Attempt, error: psycopg.Error) -> bool:
        """Find out whether an attempt that failed was committed all the same; none is left open."""
        connection = attempt.writer.connection
        if not is_lost(connection, error):
            if is_in_transaction(connection):
                connection.execute("ROLLBACK")
            return False
        log.warning("the connection to the database is lost", database=self._server.name, error=in_words(error))
        self._drop()
        if not attempt.is_in_doubt:
            return False
        while (writer := self._reconnected()) is None:
            if self._is_ending.wait(RECONNECT_PAUSE_S):
                raise CommitUnknown("the gateway ends before the database told what became of a commit")
        return writer.found == attempt.number

    def _take_writer(self) -> Writer:
        """Return the connection that writes, opening another when it is gone.

        Raises:
            _Gone: there is none for so long that whoever waits is told.
        """
        while self._writer is None:
            if self._reconnected() is None:
                is_over = self._gone_since is not None and monotonic() > self._gone_since + GONE_LIMIT_S
                if is_over or self._is_ending.wait(RECONNECT_PAUSE_S):
                    raise _Gone("there is no connection")
        return self._writer

    def _reconnected(self) -> Writer | None:
        """Try once to open another connection."""
        try:
            self._writer = self._server.join(self._mark)
        except psycopg.OperationalError as error:
            log.warning("the database cannot be reached", database=self._server.name, error=in_words(error))
            return None
        log.info("the database is back", database=self._server.name)
        self._gone_since = None
        if self._writer.found < self._mark.last:
            log.warning(
                "commits are missing: a server has taken over that did not have them", database=self._server.name
            )
            self._is_ahead = True
        self._mark.last = self._writer.found
        return self._writer

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.connection.close()
        self._writer = None
        self._gone_since = self._gone_since or monotonic()

    def _to_loop(self, what: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is nothing to report to
            self._loop.call_soon_threadsafe(what, *args)

    # On the event loop

    def _answer(self, group: list[WaitingUnit]) -> None:
        self.is_full = any(isinstance(entry.error, StorageFull) for entry in group)
        self.units += len(group)
        answer(group, self._on_facts)
        self._open -= len(group)
        if not self._open:
            self._is_idle.set()

    def _tell_ended(self) -> None:
        self.on_ended()

    def _die(self, group: list[WaitingUnit], cause: BaseException) -> None:
        """Stop for good and cancel all waiting futures: whether the group was committed is not known here."""
        self.is_closed = True
        for entry in group:
            entry.future.cancel()
        with suppress(Empty):
            while True:
                if (waiting := self._waiting.get_nowait()) is not None:
                    waiting.future.cancel()
        self._open = 0
        self._is_idle.set()
        self._on_fatal(cause)


class CommitUnknown(Exception):
    """Nobody has told yet whether a commit was made."""


class _Gone(psycopg.OperationalError):
    """There has been no connection for a while; nothing was changed."""


def _refuse(group: Sequence[WaitingUnit], error: Exception) -> None:
    for entry in group:
        entry.refuse(error)


class _Attempt:
    """One transaction of the writer: how far it is, and what to ask the server for if its end is not known."""

    def __init__(self, writer: Writer, tx: PostgresTx, mark: CommitMark) -> None:
        self.writer = writer
        self.tx = tx
        self.number = mark.last + 1
        self._mark = mark
        self.done = 0
        self.is_over = False
        """Whether there is nothing to commit: the only unit was refused."""
        self.is_in_doubt = False
        self.is_outcast = False
        """Whether other processes have taken this one for dead."""
        self._is_group = False

    def begin(self, number: int, *, is_group: bool) -> None:
        """Begin, when no other process writes; a unit that is alone needs no savepoint.

        It is one round trip. Each statement sees what was committed before it began, and so all that was committed
        before it was this transaction's turn.
        """
        self._is_group = is_group
        alive = f"(SELECT ended_at IS NULL FROM processes WHERE number = {int(number)})" if number else "true"
        words = (
            f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT pg_advisory_xact_lock({WRITE_LOCK}); "
            f"{self._mark.statement(self.number)}; "
            f"SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, {alive}"
        )
        cursor = self.writer.connection.execute((words + ("; SAVEPOINT unit" if is_group else "")).encode())
        for _ in range(3):
            cursor.nextset()
        self.tx.shared_now, is_alive = required(cursor.fetchone())
        self.is_outcast = not is_alive

    def unit_ended(self, *, is_kept: bool) -> None:
        self.done += 1
        if not self._is_group:
            self.is_over = not is_kept
        if self.is_over:
            self.writer.connection.execute("ROLLBACK")
        elif self._is_group:
            self.writer.connection.execute("RELEASE unit; SAVEPOINT unit" if is_kept else "ROLLBACK TO unit")

    def commit(self) -> None:
        self.is_in_doubt = True
        self.writer.connection.execute("COMMIT")
        self._mark.last = self.number
