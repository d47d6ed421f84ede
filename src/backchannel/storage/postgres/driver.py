"""The PostgreSQL driver: threads that write, and threads that read.

The hash of a unit's session picks its thread, so the units of one session run in order (`writer.py`). A unit about
everything waits until all units before it are done. Units that come meanwhile wait behind it, or run in its group
(`attempt.py`). So units run in the order of their arrival, except those of different sessions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar
from zlib import crc32

from backchannel.core.contracts import Clock, FollowingClock
from backchannel.core.facts import Fact
from backchannel.errors import StorageFull, Unavailable
from backchannel.storage.driver import DriverProblem, Faults
from backchannel.storage.groups import WaitingUnit, answer, refused
from backchannel.storage.postgres.connection import RETRY_AFTER_MS
from backchannel.storage.postgres.marks import CommitMark
from backchannel.storage.postgres.obstacles import Obstacles
from backchannel.storage.postgres.readers import Readers
from backchannel.storage.postgres.readiness import Readiness
from backchannel.storage.postgres.server import Server, Writer
from backchannel.storage.postgres.watch import Watch
from backchannel.storage.postgres.writer import AHEAD, WriterThread
from backchannel.storage.postgres.writers import Writers
from backchannel.storage.tx import Tx, UnitContext
from backchannel.storage.units.cluster.members import TAKEN_FOR_DEAD

P = ParamSpec("P")
T = TypeVar("T")

WRITER_THREADS = 4
"""The number of threads that write, each with a connection."""
_MOST_WAITING = 10_000
"""The most changes that may wait, and the most reads. More are refused."""
READERS, LOOKERS = 3, 2


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
        self.is_ending = threading.Event()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._on_facts = on_facts
        self._on_fatal = on_fatal
        self._faults = faults
        self._counting = threading.Lock()
        self.commits = 0
        self.units = 0
        self.is_closed = False
        self._is_stopped = False
        """Set by a thread that cannot know the outcome of a commit. No thread commits after that."""
        self._is_dead = False
        """Set when the event loop knows of it. What was committed before is answered."""
        self._on_ended: Callable[[], None] = lambda: None
        self.slowest: tuple[float, str] = (0.0, "")
        self._line: list[WaitingUnit] = []
        """The units that wait until the writer threads are done."""
        self._at_work = 0
        """The number of units that the writer threads have."""
        self._wide = 0
        """The number of those that may be about everything. The first thread has them, and all that came with them."""
        self._is_together = False
        """Whether the first thread has all units."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.is_ahead = False
        self.obstacles = Obstacles()
        self.writers = Writers(server, self, WRITER_THREADS, mark, writer)
        self._reads = Readers(server, self.writers, READERS, "postgres-read")
        self._looks = Readers(server, self.writers, LOOKERS, "postgres-look")
        self._watch = Watch(server, self)
        self._readiness = Readiness(server.name, self.writers, self.obstacles, self._watch)
        self._threads = [WriterThread(number, self, server) for number in range(WRITER_THREADS)]

    def write(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Hand a unit over. Cancelling the future does not cancel the unit."""
        return self._take(WaitingUnit(unit, args, kwargs, self._loop.create_future()))

    def write_within(
        self, key: str | None, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Hand over a unit that is about one session."""
        entry = WaitingUnit(unit, args, kwargs, self._loop.create_future())
        entry.key = key
        return self._take(entry)

    def write_beside(
        self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run a unit on a connection of its own, beside the writer threads."""
        if self.is_closed:
            return refused(self._loop.create_future(), Unavailable("the database is closed"))
        return self._watch.run(unit, *args, **kwargs)

    async def check_writable(self) -> None:
        if self.is_closed:
            raise Unavailable("the database is closed")
        await self._readiness.check()

    def problems(self) -> Sequence[DriverProblem]:
        return list(self._readiness.problems())

    def listen_for_end(self, on_ended: Callable[[], None]) -> None:
        self._on_ended = on_ended

    async def enter(self, unit: Callable[Concatenate[Tx, P], int], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Run the unit that gives this process its number, also again after others ended it."""
        entry = WaitingUnit(unit, args, kwargs, self._loop.create_future())
        entry.is_entry = True
        return int(await self._take(entry))

    def _take(self, entry: WaitingUnit) -> asyncio.Future[Any]:
        future = entry.future
        if self.is_closed:
            return refused(future, Unavailable("the database is closed"))
        waiting = self._at_work + len(self._line)
        if waiting >= _MOST_WAITING:
            busy = f"{waiting} changes wait for the database already"
            return refused(future, Unavailable(busy, retryAfterMs=RETRY_AFTER_MS))
        self._is_idle.clear()
        if not self._at_work:
            self._is_together = entry.key is None
        if self._goes_with_others(entry):
            self._hand_over(entry)
        else:
            self._line.append(entry)
        return future

    def _goes_with_others(self, entry: WaitingUnit) -> bool:
        """Decide whether a unit may join the units that the threads have.

        Once the first thread has no unit about everything any more, units of sessions wait until it is done. Then all
        threads get units again.
        """
        if self._line:
            return False
        if self._is_together:
            return entry.key is None or self._wide > 0
        return entry.key is not None

    def _hand_over(self, entry: WaitingUnit) -> None:
        self._at_work += 1
        if entry.key is None:
            self._wide += 1
        number = 0 if self._is_together or entry.key is None else crc32(entry.key.encode()) % WRITER_THREADS
        self._threads[number].waiting.put(entry)

    def _take_from_line(self) -> None:
        """Hand over all waiting units: to the first thread if one of them may be about everything."""
        line, self._line = self._line, []
        self._is_together = any(entry.key is None for entry in line)
        for entry in line:
            self._hand_over(entry)

    async def read(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a unit that only reads, in a thread. It sees one snapshot, with every commit that was answered before."""
        return await self._read_in(self._reads, self._reads.in_snapshot, unit, *args, **kwargs)

    async def look(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a unit that reads few rows, in a thread that long reads do not use."""
        return await self._read_in(self._looks, self._looks.newest, unit, *args, **kwargs)

    async def _read_in(self, readers: Readers, how: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        if self.is_closed:
            raise Unavailable("the database is closed")
        if readers.waiting >= _MOST_WAITING:
            raise Unavailable(f"{readers.waiting} reads wait for the database already", retryAfterMs=RETRY_AFTER_MS)
        run = partial(how, self.context, self._clock.now_ms(), *args, **kwargs)
        readers.waiting += 1
        try:
            return await self._loop.run_in_executor(readers.pool, run)
        finally:
            readers.waiting -= 1

    async def close(self) -> None:
        """Finish the waiting units, then close. Without a connection, do not wait."""
        self.is_closed = True
        self.is_ending.set()
        await self._is_idle.wait()
        for thread in self._threads:
            await asyncio.to_thread(thread.close)
        await asyncio.to_thread(self._watch.close)
        for readers in (self._reads, self._looks):
            await asyncio.to_thread(readers.close)
        await asyncio.to_thread(self.writers.close)

    def _answer(self, group: Sequence[WaitingUnit]) -> None:
        if self._is_dead:
            _cancel(group)
            return
        if any(isinstance(entry.error, StorageFull) for entry in group):
            self._readiness.was_full()
        self.units += len(group)
        answer(group, self._on_facts)
        self._at_work -= len(group)
        self._wide -= sum(entry.key is None for entry in group)
        if not self._at_work and self._line:
            self._take_from_line()
        if not self._at_work:
            self._is_idle.set()

    def _tell_ended(self) -> None:
        self._on_ended()

    def _die(self, group: Sequence[WaitingUnit], cause: BaseException) -> None:
        """Stop for good and cancel all waiting futures: the outcome of the group's commit is unknown.

        Other threads finish their groups, but nobody is answered.
        """
        self.is_closed = self._is_dead = True
        self.is_ending.set()
        waiting = [entry for thread in self._threads for entry in thread.take_all()]
        _cancel([*group, *self._line, *waiting])
        self._line, self._at_work = [], 0
        self._is_idle.set()
        if not isinstance(cause, DriverStopped):
            self._on_fatal(cause)

    # In the threads that write

    def context_and_time(self) -> tuple[UnitContext, int]:
        return self.context, self._clock.now_ms()

    def note_clock(self, shown_ms: int, asked: float, answered: float) -> None:
        if isinstance(self._clock, FollowingClock):
            self._clock.follow(shown_ms, asked, answered)

    def refusal(self) -> Unavailable | None:
        return Unavailable(AHEAD, retryAfterMs=RETRY_AFTER_MS) if self.is_ahead else None

    def found_outcast(self) -> Unavailable:
        self.cast_out()
        return Unavailable(TAKEN_FOR_DEAD, retryAfterMs=RETRY_AFTER_MS)

    def connection_lost(self) -> None:
        self._readiness.connection_lost()

    def before_commit(self) -> None:
        if self._faults:
            self._faults.before_commit(self.commits + 1)
        if self._is_stopped:
            raise DriverStopped

    def after_commit(self) -> None:
        with self._counting:
            self.commits += 1
            number = self.commits
        self._readiness.committed()
        if self._faults:
            self._faults.after_commit(number)

    def take_number(self, number: int) -> None:
        self.context = replace(self.context, number=number)
        self.is_ahead = False

    def note_time(self, took: float, name: str) -> None:
        if took > self.slowest[0]:
            self.slowest = (took, name)

    def settled(self, group: Sequence[WaitingUnit]) -> None:
        self._to_loop(self._answer, group)

    def cast_out(self) -> None:
        self._to_loop(self._tell_ended)

    def died(self, group: Sequence[WaitingUnit], cause: BaseException) -> None:
        self._is_stopped = True
        self._to_loop(self._die, group, cause)

    def _to_loop(self, what: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is nothing to report to
            self._loop.call_soon_threadsafe(what, *args)


class DriverStopped(Exception):
    """Another thread cannot know the outcome of a commit, so no more commits are made."""


def _cancel(group: Sequence[WaitingUnit]) -> None:
    for entry in group:
        entry.future.cancel()
