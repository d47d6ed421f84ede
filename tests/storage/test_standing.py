"""A PostgreSQL that keeps a gateway waiting: what stands, what goes on, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.runs import RunAccepted
from backchannel.core.sessions import Session, SessionPatch
from backchannel.errors import DatabaseLocked
from backchannel.storage.postgres.obstacles import SHOWN_QUERY, without_literals
from tests.cluster.gateways import until
from tests.storage.support import Host, accept, answer, begin, converse, texts
from tests.storage.test_writer_threads import Held
from tests.support.postgres import Cluster, new_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

PATIENCE_S = 20.0
LEASE_MS = 15_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.remove()


@pytest.fixture
def url(cluster: Cluster) -> str:
    return new_database(server=cluster.url)


@pytest.fixture
async def host(url: str, tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path / "state", url)
    await host.start()
    yield host
    await host.end()


# The lease and the probe wait for nobody


async def test_a_lease_is_renewed_and_readiness_told_while_a_change_about_everything_stands(host: Host) -> None:
    held = Held("whole")
    standing = host.store.driver.write(held)
    await held.begun()
    renewed = await asyncio.wait_for(host.store.renew_lease([], [], LEASE_MS), PATIENCE_S)
    await asyncio.wait_for(host.store.check_writable(), PATIENCE_S)
    assert ([peer.number for peer in renewed.peers], standing.done()) == ([host.store.number], False)
    held.let_end()
    assert await standing == "whole"


# Another program holds a lock


@contextmanager
def locking(url: str, statement: str) -> Iterator[psycopg.Connection[Any]]:
    """Hold what a statement locks, as somebody does in a console who is called away."""
    with closing(psycopg.connect(url, application_name="psql")) as console:
        console.execute(statement.encode())
        yield console


def key(name: str) -> SessionKey:
    return SessionKey.of("main", name)


def row_of(name: str) -> str:
    return f"SELECT key FROM sessions WHERE key = 'agent:main:{name}' FOR UPDATE"


async def talk_to(host: Host, names: Iterable[str], text: str) -> list[RunAccepted | BaseException]:
    async with asyncio.timeout(PATIENCE_S):
        said = (accept(host.store, text, key(name)) for name in names)
        return await asyncio.gather(*said, return_exceptions=True)


async def test_a_row_that_another_program_has_locked_is_refused_and_all_other_sessions_go_on(
    host: Host, url: str
) -> None:
    names = [f"s{n}" for n in range(24)]
    await asyncio.gather(*(converse(host.store, "hello", key(name)) for name in names))
    with locking(url, row_of("s0")) as console:
        first = await talk_to(host, names, "during")
        problems = host.store.driver.problems()
        again = await talk_to(host, names[:1], "once more")
        wide = await asyncio.gather(
            host.store.patch_session(key("s0"), SessionPatch(label="no")),
            host.store.patch_session(key("s1"), SessionPatch(label="yes")),
            return_exceptions=True,
        )
        await host.store.check_writable()
        pid = console.info.backend_pid
    assert [type(answer) for answer in first] == [DatabaseLocked, *[RunAccepted] * 23]
    words = str(first[0])
    assert f"a row is locked by psql (process {pid}, user postgres, idle in transaction since " in words
    assert words.endswith("SELECT key FROM sessions WHERE key = … FOR UPDATE")
    assert [str(answer) for answer in again] == [words]
    assert (type(wide[0]), type(wide[1])) == (DatabaseLocked, Session)
    assert [problem.code for problem in problems] == ["database_locked"]
    assert f"pg_terminate_backend({pid})" in problems[0].hint
    assert isinstance((await talk_to(host, ["s0"], "after"))[0], RunAccepted)
    await until(lambda: not host.store.driver.problems())
    assert (await texts(host.store, key("s0")), host.fatal) == (["hello", "re: hello", "after"], [])


async def test_a_reply_that_a_lock_keeps_from_being_committed_is_committed_once_when_it_is_gone(
    host: Host, url: str
) -> None:
    started = await begin(host.store, "hello", key("s0"))
    with locking(url, row_of("s0")):
        for _ in range(2):
            with pytest.raises(DatabaseLocked):
                await answer(host.store, started)
        assert await texts(host.store, key("s0")) == ["hello"]
    await answer(host.store, started)
    assert await texts(host.store, key("s0")) == ["hello", "hi"]


@pytest.mark.parametrize("statement", ["LOCK TABLE sessions IN SHARE MODE", "LOCK TABLE sessions"])
async def test_a_table_that_an_administrator_has_locked_is_named_in_what_is_refused_and_the_lease_is_kept(
    host: Host, url: str, statement: str
) -> None:
    with locking(url, statement):
        refused = await talk_to(host, [f"s{n}" for n in range(12)], "during")
        renewed = await host.store.renew_lease([], [], LEASE_MS)
        with pytest.raises(DatabaseLocked, match="the table sessions is locked by psql"):
            await host.store.check_writable()
    assert {type(answer) for answer in refused} == {DatabaseLocked}
    assert {str(answer).partition("psql")[0] for answer in refused} == {str(refused[0]).partition("psql")[0]}
    assert "the table sessions is locked by " in str(refused[0])
    assert renewed.peers
    await until(lambda: not host.store.driver.problems())
    await host.store.check_writable()
    await converse(host.store, "after", key("s0"))


async def test_what_was_run_in_the_meantime_is_told_without_the_values_in_it() -> None:
    told = without_literals(
        "ALTER USER me PASSWORD 'hush''hush'; SELECT \"it's\", E'a\\'hush', $x$ hush $x$, 4711 -- hush\n, 'hush"
    )
    assert told == 'ALTER USER me PASSWORD …; SELECT "it\'s", …, …, … … , …'
    assert len(without_literals("SELECT " + "a, " * 1000)) == SHOWN_QUERY


async def test_taking_over_from_a_dead_gateway_passes_over_a_run_that_is_locked(
    host: Host, url: str, tmp_path: Path
) -> None:
    runs = [await begin(host.store, "hello", key(name)) for name in ("s0", "s1")]
    await host.die()
    other = Host(tmp_path / "other", url)
    await other.start()
    with locking(url, f"UPDATE runs SET id = id WHERE id = '{runs[0].run.id}'"):
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute("UPDATE processes SET lease_until = 0 WHERE number = %s", [runs[0].fence.number])
        async with asyncio.timeout(PATIENCE_S):
            assert (await other.store.renew_lease([], [], LEASE_MS)).is_any_left
            assert (await other.store.take_over([])).is_any_dead
            left = await other.store.interrupted_runs()
            resumed = await other.store.resume_run(runs[1].run.id)
            with pytest.raises(DatabaseLocked):
                await other.store.resume_run(runs[0].run.id)
    assert {entry.run_id for entry in left} == {each.run.id for each in runs}
    assert resumed is not None and resumed.run.crashes == 1
    assert await other.store.resume_run(runs[0].run.id) is not None
    await other.end()
