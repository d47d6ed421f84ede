"""PostgreSQL's own cases: broken connections, restarted servers, and databases of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from backchannel.core.cluster.members import GatewayInfo
from backchannel.core.sessions import SessionPatch
from backchannel.errors import DatabaseUnusable, InvalidRequest, StartupError, StateFolderInUse, Unavailable
from backchannel.storage.databases import database_at
from backchannel.storage.postgres import writers
from backchannel.storage.postgres.connection import Connection, PostgresTx, connect
from backchannel.storage.postgres.marks import MARKS_TABLE, NEXT_MARK, CommitMark
from backchannel.storage.postgres.server import VERSION_TABLE, Server
from backchannel.storage.reactions import REACTIONS
from backchannel.storage.tx import Tx, UnitContext
from tests.storage.support import MAIN, SCHEME, Host, begin, note, texts
from tests.storage.test_plans import HOT, ONCE, fill
from tests.support.cut import CutLine
from tests.support.logs import captured_logs
from tests.support.postgres import Cluster, new_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server that may be stopped: the one that others share is not."""
    cluster = Cluster()
    yield cluster
    cluster.remove()


@pytest.fixture
async def line(cluster: Cluster, tmp_path: Path) -> AsyncIterator[CutLine]:
    async with CutLine(tmp_path, cluster.socket) as line:
        yield line


@pytest.fixture
async def host(cluster: Cluster, line: CutLine, tmp_path: Path) -> AsyncIterator[Host]:
    """A host whose way to its database can be cut."""
    name = urlsplit(new_database(server=cluster.url)).path.strip("/")
    host = Host(tmp_path / "state", f"postgresql://postgres@/{name}?{line.url_part}")
    await host.start()
    yield host
    await host.end()


def counted(host: Host, text: str) -> tuple[Callable[[Tx], None], list[str]]:
    """Make a unit that writes one row, and the list of the times when it was run."""
    runs: list[str] = []

    def unit(tx: Tx) -> None:
        runs.append(text)
        tx.run("INSERT INTO inbox (id, session_key, body) VALUES (?, '', '')", text)

    return unit, runs


async def written(host: Host) -> list[str]:
    rows = await host.store.driver.read(lambda tx: tx.all("SELECT id FROM inbox ORDER BY position"))
    return [ref for (ref,) in rows]


class AtCommit:
    """Does something before the next commit."""

    def __init__(self) -> None:
        self.act: Callable[[], Any] | None = None

    def before_commit(self, number: int) -> None:
        if self.act is not None:
            act, self.act = self.act, None
            act()

    def after_commit(self, number: int) -> None: ...


# Connections that break


async def test_a_commit_whose_answer_was_lost_is_found_to_be_made_and_answered_once(host: Host, line: CutLine) -> None:
    unit, runs = counted(host, "a")
    line.loses_next_commit = True
    await host.store.driver.write(unit)
    assert (line.cuts, runs, await written(host), host.fatal) == (1, ["a"], ["a"], [])


async def test_units_of_a_connection_that_broke_before_their_commit_are_run_again_and_one_line_tells_it(
    host: Host, line: CutLine, caplog: pytest.LogCaptureFixture
) -> None:
    await host.die()
    faults, loop = AtCommit(), asyncio.get_running_loop()
    await host.start(faults=faults)
    unit, runs = counted(host, "a")

    def cut() -> None:
        done = asyncio.run_coroutine_threadsafe(_cut(line), loop)
        done.result(5)

    faults.act = cut
    with captured_logs() as logs:
        await host.store.driver.write(unit)
    assert (runs, await written(host), host.fatal) == (["a", "a"], ["a"], [])
    assert [line["event"] for line in logs].count("the connection to the database is lost") == 1
    assert caplog.messages == []  # of psycopg's own


async def _cut(line: CutLine) -> None:
    line.cut()
    await asyncio.sleep(0)


async def test_reads_go_on_after_their_connections_broke(host: Host, line: CutLine) -> None:
    await host.store.add_note(MAIN, note("kept"))
    for _ in range(3):
        line.cut()
        assert await texts(host.store) == ["kept"]


async def test_a_database_that_is_gone_is_unavailable_and_work_goes_on_when_it_is_back(
    host: Host, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "GONE_LIMIT_S", 0.3)
    await host.store.add_note(MAIN, note("before"))
    cluster.stop()
    try:
        with pytest.raises(Unavailable) as refused:
            await host.store.add_note(MAIN, note("refused"))
        with pytest.raises(Unavailable):
            await host.store.session(str(MAIN))
        many = [host.store.check_writable() for _ in range(20)]
        answers = await asyncio.gather(*many, return_exceptions=True)
    finally:
        cluster.start()
    assert refused.value.wire()["retryAfterMs"] > 0
    assert {type(answer) for answer in answers} == {Unavailable}
    await host.store.add_note(MAIN, note("after"))
    assert (await texts(host.store), host.fatal) == (["before", "after"], [])


async def test_a_restart_of_the_server_under_load_loses_and_doubles_nothing(host: Host, cluster: Cluster) -> None:
    answered: list[str] = []
    progress = asyncio.Event()

    async def caller(name: int) -> None:
        for n in range(20):
            unit, _ = counted(host, f"{name}-{n}")
            while True:
                try:
                    await host.store.driver.write(unit)
                    break
                except Unavailable:
                    continue
            answered.append(f"{name}-{n}")
            progress.set()

    callers = [asyncio.create_task(caller(name)) for name in range(10)]
    for _ in range(2):
        before = len(answered)
        while len(answered) < before + 20:
            progress.clear()
            await progress.wait()
        await asyncio.to_thread(cluster.stop)
        cluster.start()
    await asyncio.gather(*callers)
    found = await written(host)
    assert sorted(found) == sorted(answered)
    assert len(set(found)) == 200
    for name in range(10):
        assert [ref for ref in found if ref.startswith(f"{name}-")] == [f"{name}-{n}" for n in range(20)]


async def test_a_unit_that_another_program_got_in_the_way_of_is_run_again(host: Host) -> None:
    unit, runs = counted(host, "a")

    def in_the_way(tx: Tx) -> None:
        unit(tx)
        if len(runs) < 3:
            raise psycopg.errors.DeadlockDetected

    await host.store.driver.write(in_the_way)
    assert (runs, await written(host)) == (["a"] * 3, ["a"])


async def test_what_the_server_cancels_is_refused_as_unavailable_and_leaves_nothing(host: Host) -> None:
    def too_long(tx: Tx) -> None:
        counted(host, "a")[0](tx)
        tx.run("SET LOCAL statement_timeout = 10")
        tx.one("SELECT pg_sleep(5)")

    with pytest.raises(Unavailable, match="statement timeout"):
        await host.store.driver.write(too_long)
    assert await written(host) == []


async def test_a_gateway_whose_commits_are_missing_after_a_failover_refuses_work_until_it_has_entered_again(
    host: Host, line: CutLine, cluster: Cluster
) -> None:
    """A standby that was behind is played by taking back the mark that a commit has left."""
    told = asyncio.Event()
    host.store.driver.listen_for_end(told.set)
    before = host.store.number
    await host.store.add_note(MAIN, note("answered"))
    direct = host.url.replace(line.url_part, f"host={cluster.socket.parent}")
    execute(direct, f"UPDATE {MARKS_TABLE} SET number = number - 1")
    line.cut()
    with pytest.raises(Unavailable, match="gone back behind what this gateway knew"):
        await host.store.add_note(MAIN, note("too soon"))
    await told.wait()
    await host.store.enter(GatewayInfo(), 15)
    await host.store.add_note(MAIN, note("in time"))
    assert (host.store.number > before, host.fatal) == (True, [])
    assert await texts(host.store) == ["answered", "in time"]


def test_a_mark_waits_for_a_transaction_whose_connection_broke_and_tells_how_it_ended(cluster: Cluster) -> None:
    server, mark = Server(new_database(server=cluster.url)), CommitMark()
    with closing(server.connect()) as broken, closing(server.connect()) as other:
        for end, found in (("ROLLBACK", 0), ("COMMIT", 1)):
            broken.execute("BEGIN")
            PostgresTx(broken).run(NEXT_MARK, mark.writer, 1)
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(mark.load, other)
                with pytest.raises(TimeoutError):
                    asked.result(0.1)
                broken.execute(end.encode())
                assert asked.result(5) == found


def test_marks_of_connections_that_are_long_gone_are_removed(cluster: Cluster) -> None:
    url = new_database(server=cluster.url)
    old, new = CommitMark(), CommitMark()
    with closing(Server(url).connect()) as connection:
        old.load(connection)
        execute(url, f"UPDATE {MARKS_TABLE} SET marked_at = now() - interval '31 days'")
        new.load(connection)
    database_at(url).prepare(has_past=lambda: False)
    assert execute(url, f"SELECT writer FROM {MARKS_TABLE}") == [(new.writer,)]


async def test_a_limit_of_the_server_for_statements_ends_no_commit_that_waits_for_a_standby(
    host: Host, line: CutLine, cluster: Cluster
) -> None:
    direct = host.url.replace(line.url_part, f"host={cluster.socket.parent}")
    name = urlsplit(direct).path.strip("/")
    execute(direct, f"ALTER DATABASE {name} SET statement_timeout = '10ms'")
    line.cut()
    assert await host.store.driver.write(lambda tx: tx.one("SHOW statement_timeout")) == ("0",)
    assert await host.store.driver.read(lambda tx: tx.one("SHOW statement_timeout")) == ("10ms",)


# Other gateways


async def test_a_second_gateway_works_beside_the_first(host: Host, tmp_path: Path) -> None:
    other = Host(tmp_path / "other", host.url)
    await other.start()
    await asyncio.gather(host.store.add_note(MAIN, note("a")), other.store.add_note(MAIN, note("b")))
    assert sorted(await texts(host.store)) == sorted(await texts(other.store)) == ["a", "b"]
    await other.end()


async def test_whoever_needs_the_database_alone_is_told_who_has_it_and_keeps_gateways_away(
    host: Host, line: CutLine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backchannel.storage.postgres.server.ALONE_LIMIT_S", 0.1)
    server = Server(host.url.replace(line.url_part, f"host={cluster.socket.parent}"))
    with pytest.raises(StateFolderInUse, match=r"another process \(backchannel .*:\d+\) uses the database"):
        server.hold()
    await host.stop()
    alone = server.hold()
    with closing(alone), pytest.raises(StateFolderInUse, match="holds it exclusively"):
        await host.start()
    await host.start()


async def test_a_gateway_that_starts_while_another_brings_the_schema_up_to_date_waits_for_that(
    host: Host, line: CutLine, cluster: Cluster
) -> None:
    await host.stop()
    alone = Server(host.url.replace(line.url_part, f"host={cluster.socket.parent}")).hold()
    asyncio.get_running_loop().call_later(0.2, alone.close)
    await host.start()
    assert alone.closed


async def test_a_gateway_that_others_have_taken_for_dead_commits_nothing_until_it_has_entered_again(
    host: Host, line: CutLine, cluster: Cluster, tmp_path: Path
) -> None:
    told = asyncio.Event()
    host.store.driver.listen_for_end(told.set)
    before = host.store.number
    direct = host.url.replace(line.url_part, f"host={cluster.socket.parent}")
    execute(direct, f"UPDATE processes SET lease_until = 0 WHERE number = {before}")
    other = Host(tmp_path / "other", direct)
    await other.start()
    with pytest.raises(Unavailable, match="taken this one for dead"):
        await host.store.add_note(MAIN, note("too late"))
    await told.wait()
    await host.store.enter(GatewayInfo(), 15)
    await host.store.add_note(MAIN, note("in time"))
    assert (host.store.number > other.store.number, await texts(other.store), host.fatal) == (True, ["in time"], [])
    await other.end()


async def test_several_gateways_that_start_on_an_empty_database_make_it_current_once(tmp_path: Path) -> None:
    url = new_database(is_prepared=False)
    hosts = [Host(tmp_path / f"h{n}", url) for n in range(3)]
    await asyncio.gather(*(host.start() for host in hosts))
    assert len({host.store.number for host in hosts}) == 3
    for host in hosts:
        await host.end()


# Databases of others


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_a_database_of_another_program_is_refused_and_left_alone() -> None:
    url = new_database(is_prepared=False)
    execute(url, "CREATE TABLE customers (id INTEGER)")
    with pytest.raises(DatabaseUnusable, match=r"tables of another program \(such as customers\)"):
        database_at(url).prepare(has_past=lambda: False)
    assert execute(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == [("customers",)]


def test_a_database_of_a_newer_program_is_refused() -> None:
    url = new_database()
    execute(url, f"UPDATE {VERSION_TABLE} SET version = 999")
    with pytest.raises(DatabaseUnusable, match="newer Backchannel"):
        database_at(url).prepare(has_past=lambda: False)
    with pytest.raises(DatabaseUnusable, match="newer Backchannel"), database_at(url).open_reader():
        pass


def test_an_empty_database_is_refused_where_there_were_sessions() -> None:
    url = new_database(is_prepared=False)
    assert not database_at(url).exists()
    with pytest.raises(DatabaseUnusable, match=r"is empty, but .* `backchannel migrate`"):
        database_at(url).prepare(has_past=lambda: True)
    database_at(url).prepare(has_past=lambda: False)
    assert database_at(url).exists()


def test_a_schema_of_ones_own_is_used_beside_other_programs() -> None:
    url = new_database(is_prepared=False)
    execute(url, "CREATE TABLE customers (id INTEGER)")
    execute(url, "CREATE SCHEMA ours")
    database_at(f"{url}&options=-csearch_path%3Dours").prepare(has_past=lambda: False)
    assert execute(url, "SELECT count(*) FROM ours.sessions") == [(0,)]


def test_keys_are_compared_byte_by_byte_whatever_the_order_of_the_database() -> None:
    others = execute(
        new_database(),
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = 'public' AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C' "
        "AND table_name IN (SELECT tablename FROM pg_tables)",
    )
    assert others == []


# The units


@pytest.mark.parametrize("unit", [*HOT.values(), *ONCE.values()], ids=[*HOT, *ONCE])
def test_what_is_planned_for_sqlite_is_understood_too(prepared: PostgresTx, unit: Callable[[Any], Any]) -> None:
    unit(prepared)


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    with closing(connect(new_database())) as connection:
        yield connection


@pytest.fixture
def prepared(connection: Connection) -> Iterator[PostgresTx]:
    """The same rows that the plans are looked at with; nothing is kept."""
    connection.execute("BEGIN")
    tx = PostgresTx(connection, UnitContext(scheme=SCHEME, number=1, reactions=REACTIONS), 1)
    fill(tx)
    yield tx
    connection.execute("ROLLBACK")


# What is told


def test_a_password_is_in_no_name_and_no_error() -> None:
    database = database_at("postgresql://me:hush-hush@127.0.0.1:1/things")
    with pytest.raises(StartupError) as refused:
        database.prepare(has_past=lambda: False)
    assert "hush" not in database.name + str(refused.value)
    assert "127.0.0.1:1/things" in str(refused.value)
    with pytest.raises(StartupError) as unread:
        database_at("postgresql://me:hush-hush@[broken/x")
    assert "hush" not in str(unread.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://me@one:5433/things", "postgresql://one:5433/things"),
        ("postgresql://one,other/things", "postgresql://one,other/things"),
        ("postgresql://one:1,other:2/things?target_session_attrs=read-write", "postgresql://one:1,other:2/things"),
        ("postgresql:///things?host=one,other&port=5433", "postgresql://one:5433,other:5433/things"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_a_database_is_named_by_all_its_hosts(url: str, name: str) -> None:
    assert database_at(url).name == name


async def test_a_name_that_is_too_long_for_an_index_is_a_wrong_request(host: Host) -> None:
    with pytest.raises(InvalidRequest, match=r"at most 2,000 bytes"):
        await host.store.patch_session(MAIN, SessionPatch(label="".join(map(chr, range(300, 20_000)))))
    assert await host.store.session(str(MAIN)) is None
    assert (await begin(host.store)).run.id
