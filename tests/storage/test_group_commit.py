"""Group commit on real databases, with disks and processes that fail at the worst moment."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from backchannel.core.facts import Fact, TimerSet
from backchannel.errors import StorageFull, Unavailable
from backchannel.storage.databases import database_at
from backchannel.storage.driver import Driver, DriverContext, ProcessKilled
from backchannel.storage.files.folder import StateFolder
from backchannel.storage.groups import NO_CONTEXT
from backchannel.storage.sqlite.driver import LARGEST_GROUP, SqliteDriver
from backchannel.storage.sqlite.file import SqliteDatabase
from backchannel.storage.tx import Tx
from tests.storage.support import START_MS
from tests.support.clocks import StageClock
from tests.support.databases import broken_constraint, database_url, full_disk, is_postgres, open_database

pytestmark = pytest.mark.anyio
both = pytest.mark.both_databases
sqlite_only = pytest.mark.sqlite_only

T = TypeVar("T")
Unit = Callable[[Tx], T]


class Disk:
    """Fails before or after the n-th attempt to commit, counted from when it was told to."""

    def __init__(self) -> None:
        self.before: dict[int, BaseException] = {}
        self.after: dict[int, BaseException] = {}
        self.hold: Callable[[], None] | None = None
        """Called before the next commit, which waits for it."""
        self._attempts = 0

    def before_commit(self, number: int) -> None:
        if self.hold is not None:
            hold, self.hold = self.hold, None
            hold()
        if self.before or self.after:
            self._attempts += 1
            self._fail(self.before)

    def after_commit(self, number: int) -> None:
        self._fail(self.after)

    def _fail(self, errors: dict[int, BaseException]) -> None:
        if error := errors.get(self._attempts):
            raise error


class Bench:
    """A driver on a database of its own, and everything that it said."""

    driver: Driver

    def __init__(self, state: Path) -> None:
        self.state = state
        self.disk = Disk()
        self.facts: list[Fact] = []
        self.fatal: list[BaseException] = []
        self.died = asyncio.Event()
        self.listener: Callable[[Sequence[Fact]], None] = self.facts.extend

    @classmethod
    async def start(cls, state: Path) -> Self:
        """Start the driver of the kind of database that the test is for."""
        bench = cls(state)
        database = database_at(database_url(state))
        database.hold(StateFolder(state))
        database.prepare(has_past=lambda: False)
        if isinstance(database, SqliteDatabase):
            bench.driver = SqliteDriver(
                bench.path,
                StageClock.still(START_MS),
                on_facts=bench._on_facts,
                on_fatal=bench._on_fatal,
                faults=bench.disk,
                busy_limit_s=0.2,
            )
        else:
            bench.driver = await database.connect(
                StageClock.still(START_MS), DriverContext(bench._on_facts, bench._on_fatal, NO_CONTEXT, bench.disk)
            )
        return bench

    @property
    def path(self) -> Path:
        return self.state / "backchannel.db"

    def _on_facts(self, facts: Sequence[Fact]) -> None:
        self.listener(facts)

    def _on_fatal(self, cause: BaseException) -> None:
        self.fatal.append(cause)
        self.died.set()

    def in_file(self) -> list[str]:
        """Read the refs that are in the database, through another connection, in the order they were written."""
        with closing(open_database(self.state)) as database:
            return [ref for (ref,) in database.execute("SELECT id FROM inbox ORDER BY position").fetchall()]

    @asynccontextmanager
    async def one_group(self) -> AsyncIterator[None]:
        """Keep a commit going meanwhile, so that everything written in here is one group."""
        begun, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            assert go_on.wait(5)

        self.disk.hold = hold
        held = self.driver.write(lambda tx: None)
        assert await asyncio.to_thread(begun.wait, 5)
        try:
            yield
        finally:
            go_on.set()
        await asyncio.wait([held])
        assert not held.cancelled(), "it was committed before anything in here, and is answered"
        held.result()


def put(ref: str, size: int = 1) -> Unit[str]:
    """Make a unit that writes one row and tells one fact."""

    def unit(tx: Tx) -> str:
        tx.run("INSERT INTO inbox (id, session_key, body) VALUES (?, '', ?)", ref, "x" * size)
        tx.tell(TimerSet(len(ref)))
        return ref

    return unit


def put_then_fail(ref: str, error: Exception) -> Unit[str]:
    def unit(tx: Tx) -> str:
        put(ref)(tx)
        raise error

    return unit


def disk_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("made by a test")
    error.sqlite_errorcode = code
    return error


async def outcomes(futures: Sequence[asyncio.Future[Any]]) -> list[Any]:
    async with asyncio.timeout(20):
        return await asyncio.gather(*futures, return_exceptions=True)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the kernel refuse to make any file larger than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
async def bench(tmp_path: Path, database_kind: None) -> AsyncIterator[Bench]:
    bench = await Bench.start(tmp_path)
    yield bench
    await bench.driver.close()


# Groups


@both
async def test_units_that_wait_together_share_one_commit(bench: Bench) -> None:
    async with bench.one_group():
        futures = [bench.driver.write(put(str(n))) for n in range(20)]
    assert await outcomes(futures) == [str(n) for n in range(20)]
    most = 5 if is_postgres() else 2  # the one that held the writer, and the group; one that takes long is parted
    assert bench.driver.commits <= most
    assert bench.driver.units == 21


@both
async def test_units_are_done_in_the_order_in_which_they_came(bench: Bench) -> None:
    async with bench.one_group():
        futures = [bench.driver.write(put(f"{n:04}")) for n in range(LARGEST_GROUP + 50)]
    await outcomes(futures)
    assert bench.in_file() == [f"{n:04}" for n in range(LARGEST_GROUP + 50)]
    assert bench.driver.commits == 3 or is_postgres()  # which ends a group when it has taken long


@both
async def test_a_unit_sees_what_units_before_it_in_the_group_wrote(bench: Bench) -> None:
    async with bench.one_group():
        first = bench.driver.write(put("a"))
        second = bench.driver.write(lambda tx: tx.one("SELECT count(*) FROM inbox"))
    assert await outcomes([first, second]) == ["a", (1,)]


@both
@pytest.mark.parametrize("position", [0, 1, 2])
async def test_a_failing_unit_is_rolled_back_alone_and_its_neighbours_commit(bench: Bench, position: int) -> None:
    units = [put("a"), put("b")]
    units.insert(position, put_then_fail("bad", ValueError("no")))
    async with bench.one_group():
        futures = [bench.driver.write(unit) for unit in units]
    answered = await outcomes(futures)
    assert isinstance(answered.pop(position), ValueError)
    assert answered == ["a", "b"]
    assert bench.in_file() == ["a", "b"]
    assert bench.driver.commits == 2


@sqlite_only
async def test_a_unit_that_raises_before_it_writes_does_not_make_its_group_run_again(bench: Bench) -> None:
    ran: list[str] = []

    def noted(name: str, unit: Unit[str]) -> Unit[str]:
        def run(tx: Tx) -> str:
            ran.append(name)
            return unit(tx)

        return run

    def refuse(tx: Tx) -> str:
        raise ValueError("before it wrote")

    async with bench.one_group():
        futures = [bench.driver.write(noted(name, put(name))) for name in "ab"]
        futures += [bench.driver.write(noted("refused", refuse)), bench.driver.write(noted("c", put("c")))]
    a, b, refused, c = await outcomes(futures)
    assert ([a, b, c], str(refused)) == (["a", "b", "c"], "before it wrote")
    assert ran == ["a", "b", "refused", "c"]
    assert bench.in_file() == ["a", "b", "c"]


@both
async def test_a_long_statement_that_fails_refuses_its_unit_alone(bench: Bench) -> None:
    def put_long(ref: str, sql: str) -> Unit[str]:
        def unit(tx: Tx) -> str:
            tx.run_long(sql, ref)
            return ref

        return unit

    row = "INSERT INTO inbox (id, session_key, body) VALUES (?, '', '')"
    async with bench.one_group():
        futures = [bench.driver.write(put("a")), bench.driver.write(put_long("long", row))]
        futures += [bench.driver.write(put_long("twice", row.replace("?", "coalesce(?, '')") + ", ('a', '', '')"))]
        futures += [bench.driver.write(put("b"))]
    a, long, twice, b = await outcomes(futures)
    assert [a, long, b] == ["a", "long", "b"]
    assert isinstance(twice, Exception)
    assert sorted(bench.in_file()) == ["a", "b", "long"]
    assert not bench.fatal


@sqlite_only
async def test_after_a_unit_that_raised_when_it_had_written_its_group_still_shares_one_commit(bench: Bench) -> None:
    def give_back_and_fail(tx: Tx) -> str:
        tx.one("INSERT INTO inbox (id, session_key, body) VALUES ('lost', '', '') RETURNING id")
        raise ValueError("after it wrote")

    async with bench.one_group():
        futures = [bench.driver.write(put("a")), bench.driver.write(give_back_and_fail), bench.driver.write(put("b"))]
        futures += [bench.driver.write(put_then_fail("half", ValueError("too"))), bench.driver.write(put("c"))]
    a, lost, b, half, c = await outcomes(futures)
    assert ([a, b, c], str(lost), str(half)) == (["a", "b", "c"], "after it wrote", "too")
    assert bench.in_file() == ["a", "b", "c"]
    assert bench.facts == [TimerSet(1)] * 3
    assert bench.driver.commits == 2  # the one that held the writer, and the group


@sqlite_only
async def test_a_unit_alone_that_raises_after_it_wrote_commits_nothing(bench: Bench) -> None:
    (failed,) = await outcomes([bench.driver.write(put_then_fail("half", ValueError("alone")))])
    assert (str(failed), bench.driver.commits, bench.in_file()) == ("alone", 0, [])
    assert await bench.driver.write(put("next")) == "next"


@both
async def test_a_broken_constraint_is_the_fault_of_its_unit_alone(bench: Bench) -> None:
    async with bench.one_group():
        futures = [bench.driver.write(put(ref)) for ref in ("a", "a", "b")]
    first, second, third = await outcomes(futures)
    assert (first, third) == ("a", "b")
    assert isinstance(second, broken_constraint())
    assert bench.in_file() == ["a", "b"]


@both
async def test_a_group_of_only_failing_units_changes_nothing(bench: Bench) -> None:
    async with bench.one_group():
        futures = [bench.driver.write(put_then_fail(str(n), KeyError(n))) for n in range(3)]
    assert all(isinstance(answer, KeyError) for answer in await outcomes(futures))
    assert bench.in_file() == []
    assert bench.facts == []


# Facts


@both
async def test_facts_are_told_after_the_commit_in_order_and_before_anyone_is_answered(bench: Bench) -> None:
    said: list[tuple[str, Any]] = []

    def heard(facts: Sequence[Fact]) -> None:
        said.append(("facts", [fact.due_at for fact in facts if isinstance(fact, TimerSet)]))
        assert bench.in_file() == ["1", "22", "333"]  # durable by now, and not only ours

    bench.listener = heard
    async with bench.one_group():
        units = [put("1"), put("22"), put_then_fail("4444", ValueError()), put("333")]
        futures = [bench.driver.write(unit) for unit in units]
        for future in futures:
            future.add_done_callback(lambda done: said.append(("answered", done.exception() or done.result())))
    await outcomes(futures)
    assert [entry for entry in said if entry[0] == "facts"] == [("facts", [1]), ("facts", [2]), ("facts", [3])]
    for ref, length in (("1", 1), ("22", 2), ("333", 3)):
        assert said.index(("facts", [length])) < said.index(("answered", ref))


@both
async def test_the_facts_of_a_failed_unit_are_never_told(bench: Bench) -> None:
    async with bench.one_group():
        futures = [bench.driver.write(unit) for unit in (put("a"), put_then_fail("bad", ValueError()))]
    await outcomes(futures)
    assert bench.facts == [TimerSet(1)]


@both
async def test_a_listener_that_fails_does_not_keep_the_answer_from_anyone(bench: Bench) -> None:
    def heard(facts: Sequence[Fact]) -> None:
        raise RuntimeError("a broken listener")

    bench.listener = heard
    async with bench.one_group():
        futures = [bench.driver.write(put(ref)) for ref in ("a", "b")]
    assert await outcomes(futures) == ["a", "b"]
    assert await outcomes([bench.driver.write(put("c"))]) == ["c"]


# Callers


@both
async def test_a_cancelled_caller_does_not_cancel_its_unit(bench: Bench) -> None:
    async with bench.one_group():
        cancelled = bench.driver.write(put("a"))
        other = bench.driver.write(put("bb"))
        cancelled.cancel()
    assert await outcomes([other]) == ["bb"]
    assert bench.in_file() == ["a", "bb"]
    assert bench.facts == [TimerSet(1), TimerSet(2)]


@both
async def test_a_cancelled_caller_of_a_failing_unit_disturbs_nobody(bench: Bench) -> None:
    async with bench.one_group():
        cancelled = bench.driver.write(put_then_fail("bad", ValueError()))
        other = bench.driver.write(put("b"))
        cancelled.cancel()
    assert await outcomes([other]) == ["b"]


@both
async def test_a_read_sees_every_commit_that_was_answered(bench: Bench) -> None:
    for n in range(50):
        await bench.driver.write(put(str(n)))
        assert await bench.driver.read(lambda tx: tx.one("SELECT count(*) FROM inbox")) == (n + 1,)


@both
async def test_reads_go_on_while_the_writer_is_busy_and_see_nothing_of_it(bench: Bench) -> None:
    async with bench.one_group():
        bench.driver.write(put("a"))
        assert await bench.driver.read(lambda tx: tx.one("SELECT count(*) FROM inbox")) == (0,)


@both
async def test_a_unit_that_reads_cannot_write(bench: Bench) -> None:
    with pytest.raises(Exception, match=r"read-?only"):  # in the words of the database
        await bench.driver.read(put("a"))
    assert await bench.driver.read(lambda tx: tx.one("SELECT count(*) FROM inbox")) == (0,)


# A full disk


async def pages_left(bench: Bench, count: int) -> None:
    """Let the file grow by so many pages only: SQLite itself says that it is full then."""

    def unit(tx: Tx) -> None:
        (used,) = tx.one("PRAGMA page_count") or (0,)
        tx.one(f"PRAGMA max_page_count = {used + count}")

    await bench.driver.write(unit)


@sqlite_only
async def test_on_a_full_disk_only_what_does_not_fit_is_refused(bench: Bench) -> None:
    await pages_left(bench, 4)
    async with bench.one_group():
        units = [put("a"), put("too large", 200_000), put("bb"), put("too large as well", 300_000), put("ccc")]
        futures = [bench.driver.write(unit) for unit in units]
    first, large, second, larger, third = await outcomes(futures)
    assert (first, second, third) == ("a", "bb", "ccc")
    assert isinstance(large, StorageFull)
    assert isinstance(larger, StorageFull)
    assert bench.in_file() == ["a", "bb", "ccc"]
    assert bench.facts == [TimerSet(1), TimerSet(2), TimerSet(3)]
    assert bench.fatal == []


@sqlite_only
async def test_a_full_disk_that_refuses_hundreds_at_once_refuses_each_of_them_and_goes_on(bench: Bench) -> None:
    await pages_left(bench, 1)
    async with bench.one_group():
        futures = [bench.driver.write(put(f"too large {n}", 50_000)) for n in range(LARGEST_GROUP)]
    assert {type(answer) for answer in await outcomes(futures)} == {StorageFull}
    await pages_left(bench, 1000)
    assert await outcomes([bench.driver.write(put("fits"))]) == ["fits"]
    assert bench.in_file() == ["fits"]


@sqlite_only
async def test_on_a_full_disk_reads_go_on_and_writes_work_again_when_there_is_room(bench: Bench) -> None:
    await bench.driver.write(put("before"))
    await pages_left(bench, 1)
    with pytest.raises(StorageFull, match="free some space"):
        await bench.driver.write(put("too large", 200_000))
    assert await bench.driver.read(lambda tx: tx.one("SELECT id FROM inbox")) == ("before",)
    await pages_left(bench, 1000)
    await bench.driver.write(put("now it fits", 200_000))
    assert bench.in_file() == ["before", "now it fits"]


@sqlite_only
async def test_a_unit_that_fills_the_disk_halfway_leaves_nothing_of_itself(bench: Bench) -> None:
    def many(tx: Tx) -> None:
        for n in range(100):
            put(f"part {n}", 4000)(tx)

    await pages_left(bench, 20)
    with pytest.raises(StorageFull):
        await bench.driver.write(many)
    assert bench.in_file() == []
    assert bench.facts == []


@sqlite_only
async def test_a_full_disk_that_a_unit_reports_in_its_own_words_is_still_a_full_disk(bench: Bench) -> None:
    def unit(tx: Tx) -> None:
        try:
            put("too large", 200_000)(tx)
        except sqlite3.Error as error:
            raise ValueError("could not") from error

    await pages_left(bench, 1)
    with pytest.raises(StorageFull):
        await bench.driver.write(unit)


@sqlite_only
async def test_when_the_transaction_is_gone_the_units_of_the_group_run_again_one_by_one(bench: Bench) -> None:
    runs: list[str] = []

    def counted(unit: Unit[str]) -> Unit[str]:
        def run(tx: Tx) -> str:
            ref = unit(tx)
            runs.append(ref)
            return ref

        return run

    def lose(tx: Tx) -> None:
        tx.run("ROLLBACK")  # as SQLite itself does on some errors
        raise sqlite3.OperationalError("disk I/O error")

    async with bench.one_group():
        units: list[Unit[Any]] = [counted(put("a")), lose, counted(put("b"))]
        futures = [bench.driver.write(unit) for unit in units]
    first, lost, second = await outcomes(futures)
    assert (first, second) == ("a", "b")
    assert isinstance(lost, Unavailable)
    assert runs == ["a", "a", "b"]  # `a` ran twice and has one effect
    assert bench.in_file() == ["a", "b"]
    assert bench.facts == [TimerSet(1), TimerSet(1)]


@both
async def test_a_commit_that_finds_the_disk_full_is_tried_unit_by_unit(bench: Bench) -> None:
    async with bench.one_group():
        futures = [bench.driver.write(put(ref)) for ref in ("a", "bb", "ccc")]
        # The first attempt is the one that holds the writer, the second the group, the others each unit alone.
        bench.disk.before = {2: full_disk(), 4: full_disk()}
    first, refused, third = await outcomes(futures)
    assert (first, third) == ("a", "ccc")
    assert isinstance(refused, StorageFull)
    assert bench.in_file() == ["a", "ccc"]
    assert bench.facts == [TimerSet(1), TimerSet(3)]
    assert bench.fatal == []


@sqlite_only
async def test_while_another_program_holds_the_file_writes_are_refused_together_and_soon(bench: Bench) -> None:
    with closing(sqlite3.connect(bench.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = await outcomes([bench.driver.write(put(f"refused {n}")) for n in range(200)])
        other.execute("ROLLBACK")
    assert all(isinstance(answer, Unavailable) for answer in refused)
    assert await bench.driver.write(put("done")) == "done"
    assert bench.in_file() == ["done"]
    assert bench.facts == [TimerSet(len("done"))]
    assert bench.fatal == []


# A commit of which nobody knows


@sqlite_only
@pytest.mark.parametrize("ending", ["", "-wal"])
@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
async def test_a_commit_into_a_file_that_is_gone_answers_nobody(bench: Bench, ending: str, is_replaced: bool) -> None:
    assert await bench.driver.write(put("kept")) == "kept"
    file = bench.path.with_name(bench.path.name + ending)
    move_away(file, leave_another=is_replaced)
    lost = bench.driver.write(put("lost"))
    async with asyncio.timeout(20):
        await bench.died.wait()
    assert lost.cancelled() and isinstance(bench.fatal[0], OSError)


def move_away(file: Path, *, leave_another: bool) -> None:
    file.rename(file.with_name("elsewhere"))
    if leave_another:
        file.touch()


@sqlite_only
async def test_a_commit_that_fails_otherwise_answers_nobody_and_stops_the_driver(bench: Bench) -> None:
    async with bench.one_group():
        futures = [bench.driver.write(put(ref)) for ref in ("a", "b")]
        bench.disk.before = {2: disk_error(sqlite3.SQLITE_IOERR)}
    async with asyncio.timeout(20):
        await bench.died.wait()
    assert [type(cause) for cause in bench.fatal] == [sqlite3.OperationalError]
    assert all(future.cancelled() for future in futures)
    assert bench.facts == []
    with pytest.raises(Unavailable):
        await bench.driver.write(put("later"))
    with pytest.raises(Unavailable):
        await bench.driver.read(lambda tx: None)
    await bench.driver.close()
    assert bench.in_file() == []


@sqlite_only
async def test_a_commit_that_the_real_disk_does_not_take_stops_the_driver(bench: Bench) -> None:
    await bench.driver.write(put("before"))
    with largest_file(bench.path.with_name("backchannel.db-wal").stat().st_size + 100):
        future = bench.driver.write(put("lost", 100_000))
        async with asyncio.timeout(20):
            await bench.died.wait()
    assert future.cancelled()
    await bench.driver.close()
    assert bench.in_file() == ["before"]


@sqlite_only
async def test_units_that_wait_behind_a_lost_commit_do_not_wait_for_ever(bench: Bench) -> None:
    async with bench.one_group():
        bench.disk.before = {2: disk_error(sqlite3.SQLITE_IOERR)}
        futures = [bench.driver.write(put(f"{n:04}")) for n in range(LARGEST_GROUP + 10)]
    with suppress(asyncio.CancelledError):
        await outcomes(futures)
    assert all(future.done() for future in futures)
    assert bench.in_file() == []


@both
async def test_a_writer_that_ends_in_any_way_is_reported(bench: Bench) -> None:
    def leave(tx: Tx) -> None:
        raise SystemExit(1)

    future = bench.driver.write(leave)
    async with asyncio.timeout(20):
        await bench.died.wait()
    assert future.cancelled()
    assert isinstance(bench.fatal[0], SystemExit)


@both
@pytest.mark.parametrize(("moment", "kept"), [("before", []), ("after", ["a", "b"])])
async def test_a_process_killed_around_a_commit_answers_nobody(bench: Bench, moment: str, kept: list[str]) -> None:
    async with bench.one_group():
        futures = [bench.driver.write(put(ref)) for ref in ("a", "b")]
        setattr(bench.disk, moment, {2: ProcessKilled()})
    async with asyncio.timeout(20):
        await bench.died.wait()
    assert isinstance(bench.fatal[0], ProcessKilled)
    assert not any(future.done() and not future.cancelled() for future in futures)
    assert bench.facts == []
    await bench.driver.close()
    assert bench.in_file() == kept


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
async def test_what_was_committed_before_a_death_is_answered_also_when_the_loop_hears_of_both_at_once(
    bench: Bench,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    writer = next(thread for thread in threading.enumerate() if thread.name == "postgres-write-0")

    def hold() -> None:
        begun.set()
        assert go_on.wait(5)

    bench.disk.hold = hold
    first = bench.driver.write(put("a"))
    assert await asyncio.to_thread(begun.wait, 5)
    bench.disk.before = {2: ProcessKilled()}
    second = bench.driver.write(put("b"))
    go_on.set()
    writer.join(5)  # and the loop waits meanwhile

    assert not writer.is_alive()
    assert await first == "a"
    await asyncio.wait([second])
    assert second.cancelled()
    assert bench.in_file() == ["a"]


# The end


@both
async def test_closing_finishes_what_waits_and_answers_it(bench: Bench) -> None:
    async with bench.one_group():
        futures = [bench.driver.write(put(str(n))) for n in range(10)]
        closing_ = asyncio.create_task(bench.driver.close())
        await asyncio.to_thread(lambda: None)
    async with asyncio.timeout(20):
        await closing_
    assert [future.result() for future in futures] == [str(n) for n in range(10)]
    assert bench.in_file() == [str(n) for n in range(10)]


@both
async def test_after_closing_everything_is_refused(bench: Bench) -> None:
    await bench.driver.close()
    with pytest.raises(Unavailable):
        await bench.driver.write(put("a"))
    with pytest.raises(Unavailable):
        await bench.driver.read(lambda tx: None)
    await bench.driver.close()  # once more changes nothing


@both
async def test_many_callers_at_once_lose_nothing(bench: Bench) -> None:
    async def caller(name: int) -> None:
        for n in range(25):
            fails = n % 5 == 4
            ref = f"{name}-{n}"
            unit: Callable[[Tx], str] = put_then_fail(ref, ValueError()) if fails else put(ref)
            with suppress(ValueError):
                assert await bench.driver.write(unit) == ref

    async with asyncio.timeout(20):
        await asyncio.gather(*(caller(name) for name in range(40)))
    written = bench.in_file()
    for name in range(40):
        own = [ref for ref in written if ref.startswith(f"{name}-")]
        assert own == [f"{name}-{n}" for n in range(25) if n % 5 != 4]
    assert bench.driver.commits < 40 * 25
