"""Units that are run side by side on PostgreSQL: what may go on at the same moment, and what never does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from itertools import count, islice
from pathlib import Path
from urllib.parse import urlsplit
from zlib import crc32

import psycopg
import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.runs import RunAccepted
from backchannel.core.sessions import SessionPatch
from backchannel.errors import DatabaseUnusable, IdempotencyConflict, LabelInUse, Unavailable
from backchannel.storage.driver import ProcessKilled
from backchannel.storage.postgres.attempt import is_own
from backchannel.storage.postgres.connection import connect, translated
from backchannel.storage.postgres.driver import WRITER_THREADS
from backchannel.storage.postgres.locks import AdvisoryLocks, RowLocks
from backchannel.storage.tx import Tx
from tests.storage.support import Host, accept, converse, texts
from tests.support.cut import CutLine
from tests.support.postgres import Cluster, new_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.remove()


@pytest.fixture
def url(cluster: Cluster) -> str:
    return new_database(server=cluster.url)


@pytest.fixture
def locks_rows() -> bool:
    """Whether rows are locked; a test that asks for `both_locks` is run in both ways."""
    return False


both_locks = pytest.mark.parametrize("locks_rows", [False, True], ids=["advisory", "rows"])


@pytest.fixture
async def host(url: str, tmp_path: Path, locks_rows: bool) -> AsyncIterator[Host]:
    host = Host(tmp_path / "state", url, locks_rows=locks_rows)
    await host.start()
    yield host
    await host.end()


@pytest.fixture
async def other(url: str, host: Host, tmp_path: Path, locks_rows: bool) -> AsyncIterator[Host]:
    """Another gateway on the same database."""
    other = Host(tmp_path / "other", url, locks_rows=locks_rows)
    await other.start()
    yield other
    await other.end()


def keys_of_lanes() -> list[str]:
    """Name a session for each lane."""
    lanes = {crc32(key.encode()) % WRITER_THREADS: key for key in map(str, range(100))}
    return [lanes[lane] for lane in range(WRITER_THREADS)]


def put(ref: str, key: str = "") -> Callable[[Tx], str]:
    def unit(tx: Tx) -> str:
        tx.run("INSERT INTO inbox (id, session_key, body) VALUES (?, ?, '')", ref, key)
        return ref

    return unit


class Held:
    """A unit that writes a row, and does not end before it may."""

    def __init__(self, ref: str) -> None:
        self._ref = ref
        self._has_begun = threading.Event()
        self._may_end = threading.Event()

    def __call__(self, tx: Tx) -> str:
        put(self._ref)(tx)
        tx.one("SELECT 1")  # by now the row is written
        self._has_begun.set()
        assert self._may_end.wait(PATIENCE_S)
        return self._ref

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._has_begun.wait, PATIENCE_S)

    def let_end(self) -> None:
        self._may_end.set()


async def written(host: Host) -> list[str]:
    rows = await host.store.driver.read(lambda tx: tx.all("SELECT id FROM inbox ORDER BY position"))
    return [ref for (ref,) in rows]


# In one gateway


@both_locks
async def test_units_about_different_sessions_are_run_side_by_side(host: Host) -> None:
    meeting = threading.Barrier(WRITER_THREADS)

    def meet(tx: Tx) -> None:
        put(threading.current_thread().name)(tx)
        meeting.wait(PATIENCE_S)  # all of them are inside their transaction

    await asyncio.gather(*(host.store.driver.write_within(key, meet) for key in keys_of_lanes()))
    assert len(await written(host)) == WRITER_THREADS


async def test_units_about_one_session_are_done_in_the_order_in_which_they_came(host: Host) -> None:
    driver = host.store.driver
    writes = [driver.write_within(f"s{n % 7}", put(f"s{n % 7}-{n:03}")) for n in range(200)]
    await asyncio.gather(*writes)
    found = await written(host)
    for session in (f"s{n}-" for n in range(7)):
        own = [ref for ref in found if ref.startswith(session)]
        assert own == sorted(own)
    assert len(found) == 200


async def test_a_unit_about_everything_is_done_after_all_before_it_and_before_all_after_it(host: Host) -> None:
    driver, (one, two, *_) = host.store.driver, keys_of_lanes()
    held = Held("first")
    first = driver.write_within(one, held)
    await held.begun()
    whole = driver.write(lambda tx: [ref for (ref,) in tx.all("SELECT id FROM inbox")])
    last = driver.write_within(two, put("last"))
    held.let_end()
    assert await asyncio.gather(first, whole, last) == ["first", ["first"], "last"]


async def test_sessions_are_worked_on_side_by_side_again_after_a_unit_about_everything(host: Host) -> None:
    driver, (one, two, *_) = host.store.driver, keys_of_lanes()
    await asyncio.gather(driver.write(put("whole")), *(driver.write_within(one, put(f"{n}")) for n in range(20)))
    held = Held("held")
    slow = driver.write_within(one, held)
    await held.begun()
    assert await asyncio.wait_for(driver.write_within(two, put("beside")), PATIENCE_S) == "beside"
    held.let_end()
    await slow


async def test_a_unit_that_changes_more_than_its_session_is_run_again_with_all_others_away(host: Host) -> None:
    driver, key = host.store.driver, keys_of_lanes()[0]
    runs: list[str] = []

    def wider(tx: Tx) -> str:
        runs.append("")
        put("wider")(tx)
        tx.run("INSERT INTO duties (name, process) VALUES ('a duty', ?)", tx.number)
        return "wider"

    held = Held("before")
    first = driver.write_within(key, held)
    await held.begun()
    others = [driver.write_within(key, unit) for unit in (put("a"), wider, put("b"))]  # they are one group
    held.let_end()
    assert await asyncio.gather(first, *others) == ["before", "a", "wider", "b"]
    assert (await written(host), len(runs)) == (["before", "a", "wider", "b"], 2)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 FROM waits", True),
        ("UPDATE sessions SET queued = 1 WHERE key = ?", True),
        ("INSERT INTO timers (kind) VALUES (?) ON CONFLICT (kind) DO UPDATE SET due_at = 1", True),
        ("INSERT INTO waits (call_id) VALUES (?)", False),
        ("DELETE FROM deliveries WHERE id = ?", False),
        ("UPDATE barriers SET state = ?", False),
        ("WITH gone AS (DELETE FROM duties RETURNING name) SELECT * FROM gone", False),
        ("SET LOCAL statement_timeout = 1", False),
    ],
)
def test_what_a_unit_about_one_session_may_change_is_told_from_its_statements(sql: str, expected: bool) -> None:
    assert is_own(sql) is expected


async def test_a_refused_unit_does_not_take_those_beside_it_along(host: Host) -> None:
    driver, key = host.store.driver, keys_of_lanes()[0]

    def refuses(tx: Tx) -> None:
        put("never")(tx)
        raise ValueError("no")

    refused = [driver.write_within(key, refuses) for _ in range(20)]
    kept = [driver.write_within(key, put(f"{n:02}")) for n in range(20)]
    doubled = driver.write_within(key, put("00"))
    answers = await asyncio.gather(*refused, *kept, doubled, return_exceptions=True)
    assert {type(answer) for answer in answers[:20]} == {ValueError}
    assert answers[20:40] == [f"{n:02}" for n in range(20)]
    assert isinstance(answers[40], Exception)
    assert await written(host) == [f"{n:02}" for n in range(20)]
    await converse(host.store)  # what was prepared before is prepared anew


class KillOnce:
    """Kills the process at the first commit that it is told of."""

    is_on = False

    def before_commit(self, number: int) -> None:
        if self.is_on:
            self.is_on = False
            raise ProcessKilled

    def after_commit(self, number: int) -> None: ...


async def test_when_one_lane_dies_no_other_commits_or_answers_anything(host: Host) -> None:
    await host.die()
    faults = KillOnce()
    await host.start(faults=faults)
    driver, (one, two, *_) = host.store.driver, keys_of_lanes()
    held = Held("too late")
    late = driver.write_within(one, held)
    await held.begun()
    faults.is_on = True
    dies = driver.write_within(two, put("dies"))
    await asyncio.wait([dies], timeout=PATIENCE_S)
    held.let_end()
    await asyncio.wait([late], timeout=PATIENCE_S)
    assert (dies.cancelled(), late.cancelled(), len(host.fatal)) == (True, True, 1)
    await host.restart()
    assert await written(host) == []


async def test_more_changes_than_may_wait_are_refused_until_some_are_done(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backchannel.storage.postgres.driver._MOST_WAITING", 5)
    driver, (one, two, *_) = host.store.driver, keys_of_lanes()
    held = Held("held")
    waiting = [driver.write_within(one, held)]
    await held.begun()
    waiting += [driver.write_within(two, put("beside")), driver.write(put("whole"))]
    waiting += [driver.write_within(key, put(f"after {key}")) for key in (one, two)]
    with pytest.raises(Unavailable) as refused:
        await driver.write_within(two, put("too many"))
    held.let_end()
    await asyncio.gather(*waiting)
    assert refused.value.wire()["retryAfterMs"] > 0
    assert await driver.write(put("again")) == "again"
    assert await written(host) == ["held", "beside", "whole", f"after {one}", f"after {two}", "again"]


# The way to the database is cut


@pytest.fixture
async def line(cluster: Cluster, tmp_path: Path) -> AsyncIterator[CutLine]:
    async with CutLine(tmp_path, cluster.socket) as line:
        yield line


@pytest.fixture
async def cut_off(url: str, line: CutLine, tmp_path: Path) -> AsyncIterator[Host]:
    """A host whose way to its database can be cut."""
    host = Host(tmp_path / "state", f"postgresql://postgres@{urlsplit(url).path}?{line.url_part}")
    await host.start()
    yield host
    await host.end()


async def test_a_commit_in_doubt_holds_up_its_own_lane_alone(cut_off: Host, line: CutLine) -> None:
    driver, (one, two, *_) = cut_off.store.driver, keys_of_lanes()
    await asyncio.gather(*(driver.write_within(key, put(f"warm {key}")) for key in keys_of_lanes()))
    held = Held("other")
    beside = driver.write_within(two, held)
    await held.begun()
    line.loses_next_commit = True
    assert await asyncio.wait_for(driver.write_within(one, put("in doubt")), PATIENCE_S) == "in doubt"
    held.let_end()
    assert (await beside, line.cuts, cut_off.fatal) == ("other", 1, [])
    assert (await written(cut_off))[-2:] == ["other", "in doubt"]  # in the order in which they were begun


# In two gateways


@both_locks
async def test_of_two_gateways_that_decide_about_a_session_at_once_one_sees_what_the_other_did(
    host: Host, other: Host
) -> None:
    def first_only(ref: str) -> Callable[[Tx], bool]:
        def unit(tx: Tx) -> bool:
            if tx.one("SELECT 1 FROM inbox WHERE session_key = ?", ref) is not None:
                return False
            put(f"{ref} {tx.number}", ref)(tx)
            return True

        return unit

    for n in range(50):
        both = [each.store.driver.write_within(f"s{n}", first_only(f"s{n}")) for each in (host, other)]
        assert sorted(await asyncio.gather(*both)) == [False, True]


@both_locks
async def test_what_is_about_everything_sees_nothing_change_while_it_looks(host: Host, other: Host) -> None:
    seen: list[int] = []
    ended = threading.Event()

    def look_twice(tx: Tx) -> None:
        for _ in range(200):
            seen.extend(number for (number,) in tx.all("SELECT count(*) FROM inbox"))

    async def keep_writing() -> None:
        for n in count():
            await other.store.driver.write_within(f"s{n % 8}", put(f"{n}"))
            if ended.is_set():
                return

    writing = [asyncio.create_task(keep_writing())]
    for _ in range(5):
        seen.clear()
        await host.store.driver.write(look_twice)
        assert len(set(seen)) == 1
    ended.set()
    await asyncio.gather(*writing)


@both_locks
async def test_an_idempotency_key_is_taken_once_by_messages_to_different_sessions(host: Host, other: Host) -> None:
    async def send(to: Host, key: str, run_id: str) -> RunAccepted | IdempotencyConflict:
        try:
            return await accept(to.store, "hello", SessionKey.of("main", key), id=run_id, digest=key)
        except IdempotencyConflict as conflict:
            return conflict

    for n in range(30):
        answers = await asyncio.gather(send(host, f"a{n}", f"run {n}"), send(other, f"b{n}", f"run {n}"))
        assert sorted(isinstance(answer, RunAccepted) for answer in answers) == [False, True]


async def test_conversations_on_two_gateways_are_whole(host: Host, other: Host) -> None:
    keys = [SessionKey.of("main", f"s{n}") for n in range(12)]

    async def talk(with_: Host, key: SessionKey) -> None:
        for n in range(5):
            await converse(with_.store, f"{n}", key)

    pairs = zip(keys, islice(iter([host, other] * 6), 12), strict=True)
    await asyncio.gather(*(talk(with_, key) for key, with_ in pairs))
    for key in keys:
        assert await texts(host.store, key) == [text for n in range(5) for text in (f"{n}", f"re: {n}")]


# Databases without advisory locks

_ADVISORY = """
DO $$ DECLARE named TEXT; BEGIN
  FOR named IN SELECT oid::regprocedure FROM pg_proc WHERE proname LIKE 'pg\\_%advisory%' OR proname = 'pg_notify' LOOP
    EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || named || ' FROM PUBLIC';
  END LOOP;
END $$
"""


@pytest.fixture
def plain_url(cluster: Cluster) -> str:
    """A database of somebody who may ask for no advisory lock."""
    url = new_database(server=cluster.url, is_prepared=False)
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(_ADVISORY.encode())
        connection.execute("CREATE ROLE plain LOGIN")
        connection.execute(f"ALTER DATABASE {urlsplit(url).path.strip('/')} OWNER TO plain".encode())
    return url.replace("postgres@", "plain@")


async def test_gateways_that_lock_rows_ask_for_nothing_else(plain_url: str, tmp_path: Path) -> None:
    hosts = [Host(tmp_path / name, plain_url, locks_rows=True) for name in "ab"]
    for host in hosts:
        await host.start()
    keys = [SessionKey.of("main", f"s{n}") for n in range(6)]
    await asyncio.gather(*(converse(hosts[n % 2].store, "hello", key) for n, key in enumerate(keys)))
    label = SessionPatch(label="mine")
    labelled = [host.store.patch_session(key, label) for host, key in zip(hosts, keys, strict=False)]
    answers = await asyncio.gather(*labelled, return_exceptions=True)
    assert sorted(isinstance(answer, LabelInUse) for answer in answers) == [False, True]
    for host in hosts:
        await host.end()


async def test_a_gateway_that_locks_otherwise_than_those_at_work_is_refused(
    url: str, host: Host, tmp_path: Path
) -> None:
    rows = Host(tmp_path / "rows", url, locks_rows=True)
    with pytest.raises(DatabaseUnusable, match=r"gateways are at work on .* that do not lock rows"):
        await rows.start()
    await host.stop()
    await rows.start()
    with pytest.raises(DatabaseUnusable, match=r'lock rows: set cluster.locks to "rows"'):
        await host.start()
    await rows.end()


@both_locks
async def test_a_process_that_stands_still_in_the_middle_of_a_transaction_is_not_waited_for(
    host: Host, url: str, locks_rows: bool
) -> None:
    locks = RowLocks() if locks_rows else AdvisoryLocks()
    with closing(connect(url)) as paused, suppress(psycopg.OperationalError), paused.pipeline():
        paused.execute("BEGIN")
        for sql, values in locks.taking(None):
            psycopg.RawCursor(paused).execute(translated(sql), values)
        # Half of a pipeline: the server takes it for one that goes on.
        accepted = await asyncio.wait_for(accept(host.store, "hi"), PATIENCE_S)
    assert accepted.started is not None


@both_locks
async def test_gateways_that_start_together_on_an_empty_database_all_come_up(
    url: str, tmp_path: Path, locks_rows: bool
) -> None:
    hosts = [Host(tmp_path / f"state-{n}", url, locks_rows=locks_rows) for n in range(3)]
    started = await asyncio.gather(*(host.start() for host in hosts), return_exceptions=True)
    for host in hosts:
        await host.end()
    assert [error for error in started if isinstance(error, BaseException)] == []
