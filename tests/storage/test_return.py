"""Moving a state from PostgreSQL back into a SQLite file, and copies of the database that its own programs make."""

from __future__ import annotations

import hashlib
import subprocess
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from backchannel.core.keys import SessionKey
from backchannel.errors import DatabaseUnusable, StateFolderInUse
from backchannel.storage.databases import database_at
from backchannel.storage.moves import return_state, was_moved
from backchannel.storage.postgres.move_back import ENDING
from backchannel.storage.sqlite.file import SqliteDatabase
from tests.storage.support import MAIN, Host, answer, begin, converse, texts
from tests.storage.test_move import check_same, move, source, target  # noqa: F401 - fixtures
from tests.support.postgres import new_database, programs

pytestmark = [pytest.mark.anyio, pytest.mark.sqlite_only, pytest.mark.postgres]
THIRD = SessionKey.of("main", "third")
PICTURE = b"\x89PNG and what follows" * 50_000


@pytest.fixture
async def moved(source: Host, target: str) -> str:  # noqa: F811
    """A database that a state was moved to, and that a gateway has worked on since."""
    move(source, target)
    host = Host(source.path.parent / "there", target)
    store = await host.start()
    for n in range(5):
        await converse(store, f"since then {n}", THIRD)
    half = len(PICTURE) // 2
    for part, content in enumerate((PICTURE[:half], PICTURE[half:])):
        await store.store_media_part(picture_name(), part, 2, content)
    await host.stop()
    return target


def picture_name() -> str:
    return f"{hashlib.sha256(PICTURE).hexdigest()}.png"


def back(host: Host, url: str, *, stops_after: int | None = None) -> dict[str, int]:
    """Move everything into a host's folder; it may break off after some parts."""
    parts = 0

    def count(table: str, rows: int) -> None:
        nonlocal parts
        parts += 1
        if parts == stops_after:
            raise KeyboardInterrupt

    host.path.mkdir(mode=0o700, exist_ok=True)
    return return_state(database_at(url), SqliteDatabase(host.database), host.path / "media", count)


async def test_a_state_comes_back_row_by_row_and_a_gateway_goes_on_with_it(moved: str, tmp_path: Path) -> None:
    host = Host(tmp_path / "back")
    counts = back(host, moved)
    check_same(host, moved)
    assert counts["messages"] >= 60
    assert (host.path / "media" / picture_name()).read_bytes() == PICTURE
    assert host.database.stat().st_mode & 0o077 == 0
    store = await host.start()
    assert (await texts(store, THIRD))[0] == "since then 0"
    (entry,) = await store.interrupted_runs()
    resumed = await store.resume_run(entry.run_id)
    assert resumed is not None
    await answer(store, resumed)
    assert (await store.start_next(str(MAIN))) is not None
    await begin(store, "new here", THIRD)
    assert store.number == 3
    await host.stop()


@pytest.mark.parametrize("parts", [1, 4, 9])
async def test_a_way_back_that_was_broken_off_leaves_no_database_and_can_be_gone_again(
    moved: str, tmp_path: Path, parts: int
) -> None:
    host = Host(tmp_path / "back")
    with pytest.raises(KeyboardInterrupt):
        back(host, moved, stops_after=parts)
    assert not host.database.exists()
    back(host, moved)
    check_same(host, moved)
    assert [path.name for path in host.path.iterdir() if ENDING in path.name] == []


async def test_a_file_that_is_there_is_refused_and_stays_as_it_is(moved: str, source: Host) -> None:  # noqa: F811
    before = source.database.read_bytes()
    with pytest.raises(DatabaseUnusable, match="move it away first"):
        back(source, moved)
    assert source.database.read_bytes() == before


async def test_nothing_is_moved_while_a_gateway_works_on_the_database(
    moved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backchannel.storage.postgres.server.ALONE_LIMIT_S", 0.1)
    working, host = Host(tmp_path / "working", moved), Host(tmp_path / "back")
    await working.start()
    with pytest.raises(StateFolderInUse, match="another process"):
        back(host, moved)
    await working.stop()
    with closing(psycopg.connect(moved, autocommit=True)) as connection:
        connection.execute("UPDATE processes SET ended_at = NULL, lease_until = 9e12, name = 'far' WHERE number = 2")
    with pytest.raises(StateFolderInUse, match="the gateway far has a lease on the database: stop all gateways"):
        back(host, moved)
    assert not host.database.exists()


async def test_whether_a_move_was_done_before_is_seen_from_the_last_gateway_at_work(
    moved: str,
    source: Host,  # noqa: F811
    tmp_path: Path,
) -> None:
    file, server, host = SqliteDatabase(source.database), database_at(moved), Host(tmp_path / "back")
    assert was_moved(file, server)
    assert not was_moved(server, file)
    back(host, moved)
    assert was_moved(server, SqliteDatabase(host.database))
    await host.start()
    await host.stop()
    assert was_moved(server, SqliteDatabase(host.database))
    assert not was_moved(SqliteDatabase(host.database), server)


async def test_a_dump_that_was_made_while_a_gateway_worked_is_restored_whole(moved: str, tmp_path: Path) -> None:
    working = Host(tmp_path / "working", moved)
    store = await working.start()
    dump, restored = tmp_path / "backup.pgdump", new_database(is_prepared=False)
    run("pg_dump", "--format=custom", f"--file={dump}", moved)
    run("pg_restore", "--no-owner", f"--dbname={restored}", str(dump))
    expected = await texts(store, THIRD)
    await working.stop()
    other = Host(tmp_path / "other", restored)
    store = await other.start()
    assert await texts(store, THIRD) == expected
    await converse(store, "goes on", THIRD)
    await other.stop()


def run(program: str, *arguments: str) -> None:
    done = subprocess.run([programs() / program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
