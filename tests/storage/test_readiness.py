"""The answer of `/readyz` on PostgreSQL: true, at once, and also without a free connection or disk space."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

from backchannel.core.keys import SessionKey
from backchannel.errors import StorageFull, Unavailable
from backchannel.storage.postgres import readiness, writers
from tests.cluster.gateways import until
from tests.storage.support import Host, accept, converse, texts
from tests.storage.test_writer_threads import Held, keys_of_lanes
from tests.support.logs import captured_logs
from tests.support.postgres import Cluster, move_to_small, new_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

PATIENCE_S = 20.0


@asynccontextmanager
async def started(folder: Path, url: str) -> AsyncIterator[Host]:
    host = Host(folder / "state", url)
    await host.start()
    try:
        yield host
    finally:
        await host.end()


# Too few connections


@pytest.fixture
def narrow() -> Iterator[Cluster]:
    cluster = Cluster(settings={"max_connections": "12", "max_wal_senders": "0", "superuser_reserved_connections": "0"})
    yield cluster
    cluster.remove()


def occupy(server: str, exits: ExitStack) -> None:
    """Take all connections that a server has left."""
    while True:
        try:
            exits.enter_context(closing(psycopg.connect(server)))
        except psycopg.OperationalError:
            return


def connections(host: Host, rows: psycopg.Connection[Any]) -> int:
    """Count those that a gateway has."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    found = rows.execute(asked).fetchone()
    rows.rollback()
    return found[0] if found else 0


async def test_a_gateway_that_has_one_connection_left_does_everything_over_it(
    tmp_path: Path, narrow: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "GONE_LIMIT_S", 0.3)
    url = new_database(server=narrow.url)
    keys = [SessionKey.of("main", f"s{n}") for n in range(24)]
    async with started(tmp_path, url) as host:
        with ExitStack() as exits, captured_logs() as logs:
            rows = exits.enter_context(closing(psycopg.connect(url)))
            occupy(narrow.url, exits)
            rows.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid NOT IN (pg_backend_pid(), (SELECT pid FROM pg_locks WHERE locktype = 'advisory' LIMIT 1))"
            )
            rows.commit()
            occupy(narrow.url, exits)
            assert connections(host, rows) == 1
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(converse(host.store, "hello", key) for key in keys))
                await asyncio.gather(*(texts(host.store, key) for key in keys))
                await host.store.check_writable()
                await host.store.renew_lease([], [], 15_000)
                await until(lambda: bool(host.store.driver.problems()))
            assert connections(host, rows) == 1
            problem = host.store.driver.problems()[0]
        assert (problem.code, "of the 4 connections" in problem.message) == ("database_connections", True)
        assert [line["event"] for line in logs].count("the database cannot be reached") == 1
        await until(lambda: not host.store.driver.problems())
        assert [await texts(host.store, key) for key in keys] == [["hello", "re: hello"]] * len(keys)


async def test_a_gateway_without_any_connection_is_not_ready_until_it_has_one(
    tmp_path: Path, narrow: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "GONE_LIMIT_S", 0.3)
    url = new_database(server=narrow.url)
    async with started(tmp_path, url) as host:
        with ExitStack() as exits:
            rows = exits.enter_context(closing(psycopg.connect(url)))
            occupy(narrow.url, exits)
            rows.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid()"
            )
            occupy(narrow.url, exits)
            with pytest.raises(Unavailable):
                await accept(host.store, "refused")
            with pytest.raises(Unavailable):
                await host.store.check_writable()
        await host.store.check_writable()
        await converse(host.store, "hello")


# Under load


async def test_readiness_is_told_at_once_by_a_commit_of_the_last_second_and_else_by_a_commit_beside_the_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path, new_database()) as host:
        driver = host.store.driver
        held = [Held(key) for key in keys_of_lanes()]
        standing = [driver.write_within(key, each) for key, each in zip(keys_of_lanes(), held, strict=True)]
        for each in held:
            await each.begun()
        whole = driver.write(lambda tx: None)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(host.store.check_writable() for _ in range(50)))
            monkeypatch.setattr(readiness, "PROOF_S", 0.0)
            await asyncio.gather(*(host.store.check_writable() for _ in range(50)))
        assert not whole.done() and not any(write.done() for write in standing)
        for each in held:
            each.let_end()
        await asyncio.gather(*standing, whole)


# A full disk


@pytest.fixture
def small() -> Iterator[Cluster]:
    cluster = Cluster(small_mb=48)
    yield cluster
    cluster.remove()


def fill(rows: psycopg.Connection[Any]) -> None:
    """Fill the file system of a database to its last block."""
    rows.execute("CREATE TABLE filler (body TEXT) WITH (autovacuum_enabled = false)")
    for count in (1_000_000, 1000, 8):
        with suppress(errors.DiskFull):
            while True:
                rows.execute("INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, %s)", [count])


async def test_a_gateway_whose_disk_is_full_is_not_ready_until_there_is_room(
    tmp_path: Path, small: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "FULL_S", 0.0)  # what a probe finds decides alone
    url = new_database(server=small.url)
    move_to_small(small.url, url)
    long = os.urandom(6000).hex()
    async with started(tmp_path, url) as host:
        await converse(host.store, "before")
        with closing(psycopg.connect(url, autocommit=True)) as rows:
            fill(rows)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(StorageFull):
                    for n in range(1000):  # some pages have room left
                        await accept(host.store, f"{n}{long}", SessionKey.of("main", f"s{n}"))
                for _ in range(3):
                    with pytest.raises(StorageFull):
                        await host.store.check_writable()
                    rows.execute("VACUUM probe")  # whose own pages are free then
                rows.execute("DROP TABLE filler")
                await host.store.check_writable()
                await converse(host.store, "after")
        assert await texts(host.store) == ["before", "re: before", "after", "re: after"]


async def test_a_change_that_was_refused_for_a_full_disk_counts_for_some_seconds_whatever_a_probe_finds(
    tmp_path: Path,
) -> None:
    async with started(tmp_path, new_database()) as host:

        def too_much(tx: Any) -> None:
            raise errors.DiskFull("no room for this one")

        with pytest.raises(StorageFull):
            await host.store.driver.write(too_much)
        with pytest.raises(StorageFull, match="free some space"):
            await host.store.check_writable()
