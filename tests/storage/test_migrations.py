"""Database files at the start of a gateway. A file that is not the gateway's stays untouched."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.errors import DatabaseUnusable
from backchannel.storage.files.folder import StateFolder
from backchannel.storage.migrations import load_versions
from backchannel.storage.sqlite.file import APPLICATION_ID, SqliteDatabase
from backchannel.storage.store import Store
from tests.storage.support import START_MS, Host, converse, rows, texts
from tests.support.clocks import StageClock
from tests.support.fresh_files import every_step
from tests.support.privileges import folder_of_somebody

NEWEST = 31
OTHER = SessionKey.of("main", "project")

pytestmark = pytest.mark.sqlite_only

Picture = dict[str, tuple[bytes, int]]


def picture(folder: Path) -> Picture:
    """Take down every file of a folder: its name, bytes and time of change."""
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir() if file.is_file()}


def make_database(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for statement in statements:
            connection.execute(statement)


@pytest.fixture(autouse=True)
def schema_by_steps() -> Iterator[None]:
    with every_step():
        yield


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "backchannel.db"


def refuse(database: Path, message: str) -> None:
    """Check that the file is refused, and that neither it nor anything beside it is touched."""
    before = picture(database.parent)
    with pytest.raises(DatabaseUnusable, match=message) as refused:
        SqliteDatabase(database).prepare()
    assert str(database) in refused.value.message
    assert picture(database.parent) == before


def test_a_new_file_and_those_beside_it_are_for_their_owner_alone(database: Path) -> None:
    old = os.umask(0)
    try:
        SqliteDatabase(database).prepare()
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            modes = {file.name: file.stat().st_mode & 0o777 for file in database.parent.iterdir()}
    finally:
        os.umask(old)
    assert modes == {database.name + ending: 0o600 for ending in ("", "-wal", "-shm")}


def test_a_new_file_says_whose_it_is_and_which_schema_it_has(database: Path) -> None:
    SqliteDatabase(database).prepare()
    assert rows(database, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert rows(database, "PRAGMA user_version") == [(NEWEST,)]
    assert rows(database, "PRAGMA journal_mode") == [("wal",)]


def test_preparing_a_current_file_again_changes_nothing(database: Path) -> None:
    SqliteDatabase(database).prepare()
    before = picture(database.parent)
    SqliteDatabase(database).prepare()
    assert {name: kept for name, (kept, _) in picture(database.parent).items()} == {
        name: kept for name, (kept, _) in before.items()
    }


def test_an_empty_file_is_a_new_one(database: Path) -> None:
    database.touch()
    SqliteDatabase(database).prepare()
    assert rows(database, "SELECT count(*) FROM sessions") == [(0,)]


def test_a_file_left_by_a_first_start_that_was_killed_is_a_new_one(database: Path) -> None:
    make_database(database)  # made, and not a table in it yet
    SqliteDatabase(database).prepare()
    assert rows(database, "SELECT count(*) FROM sessions") == [(0,)]


@pytest.mark.parametrize(
    "content",
    [b"not a database\n" * 100, b"\0" * 4096, os.urandom(10_000), b"SQLite format 3\0" + b"\xff" * 5000, b"short"],
    ids=["text", "zeros", "random", "only the first words are right", "short"],
)
def test_garbage_is_refused_untouched(database: Path, content: bytes) -> None:
    database.write_bytes(content)
    refuse(database, "cannot be read as a database")


@pytest.mark.parametrize("kept", [50, 100, 4096, 4096 * 3 + 17], ids=lambda kept: f"{kept} bytes")
def test_a_truncated_database_is_refused_untouched(database: Path, kept: int) -> None:
    SqliteDatabase(database).prepare()
    with database.open("r+b") as file:
        file.truncate(kept)
    refuse(database, "cannot be read as a database")


def test_a_database_with_a_broken_schema_is_refused_untouched(database: Path) -> None:
    SqliteDatabase(database).prepare()
    content = bytearray(database.read_bytes())
    content[100:4096] = b"\xee" * 3996  # the page that lists the tables
    database.write_bytes(content)
    refuse(database, "cannot be read as a database")


def test_a_newer_database_is_refused_untouched(database: Path) -> None:
    SqliteDatabase(database).prepare()
    make_database(database, "PRAGMA user_version = 99")
    refuse(database, "newer Backchannel .*99")


def test_a_newer_database_whose_last_commits_wait_beside_it_is_refused_untouched(database: Path) -> None:
    SqliteDatabase(database).prepare()
    with closing(sqlite3.connect(database, isolation_level=None)) as newer:
        newer.execute("PRAGMA user_version = 99")
        left = picture(database.parent)
    for name, (content, _) in left.items():  # as a process that was killed leaves them
        database.with_name(name).write_bytes(content)
    before = picture(database.parent)
    with pytest.raises(DatabaseUnusable, match="newer"):
        SqliteDatabase(database).prepare()
    after = picture(database.parent)
    for name in ("backchannel.db", "backchannel.db-wal"):
        assert after[name] == before[name]


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE notes (text)"],
        ["CREATE TABLE notes (text)", "PRAGMA user_version = 1"],
        ["CREATE TABLE notes (text)", "PRAGMA user_version = 99", "PRAGMA application_id = 7"],
        ["PRAGMA application_id = 7"],
        ["PRAGMA user_version = 1"],
    ],
    ids=["no version", "version", "version and name", "name only", "version only"],
)
def test_the_database_of_another_program_is_refused_untouched(database: Path, statements: list[str]) -> None:
    make_database(database, *statements)
    refuse(database, "another program")


def test_a_migration_that_fails_leaves_the_file_as_it_was(database: Path) -> None:
    # The schema's first version meets a table of the same name, after it has made others.
    make_database(database, f"PRAGMA application_id = {APPLICATION_ID}", "CREATE TABLE messages (mine)")
    content = database.read_bytes()
    with pytest.raises(DatabaseUnusable):
        SqliteDatabase(database).prepare()
    assert database.read_bytes() == content
    assert rows(database, "SELECT name FROM sqlite_master") == [("messages",)]
    assert rows(database, "PRAGMA user_version") == [(0,)]


def test_a_folder_in_place_of_the_file_is_refused(database: Path) -> None:
    database.mkdir()
    with pytest.raises(DatabaseUnusable):
        SqliteDatabase(database).prepare()
    assert list(database.iterdir()) == []


def test_a_place_where_no_file_can_be_made_is_refused() -> None:
    with pytest.raises(DatabaseUnusable, match="cannot be written"):
        SqliteDatabase(Path("/proc/backchannel.db")).prepare()


def test_a_file_that_may_not_be_written_is_refused_untouched() -> None:
    with folder_of_somebody() as folder:
        database = folder / "backchannel.db"
        make_database(database)
        database.chmod(0o400)
        refuse(database, "cannot be written")


@pytest.mark.anyio
@pytest.mark.parametrize("content", [b"garbage" * 1000, None], ids=["corrupt", "newer"])
async def test_a_store_is_not_opened_on_an_unusable_file_and_leaves_no_thread(
    tmp_path: Path, content: bytes | None
) -> None:
    folder = StateFolder.hold(tmp_path)
    try:
        if content is None:
            SqliteDatabase(folder.database).prepare()
            make_database(folder.database, "PRAGMA user_version = 99")
        else:
            folder.database.write_bytes(content)
        before = picture(tmp_path)
        with pytest.raises(DatabaseUnusable):
            await Store.open(
                folder,
                KeyScheme(),
                StageClock.still(START_MS),
                url=f"sqlite:///{folder.database}",
                on_fatal=lambda cause: None,
            )
        assert picture(tmp_path) == before
        assert not {"sqlite-writer", "transcripts"} & {thread.name for thread in threading.enumerate()}
    finally:
        folder.release()


@pytest.mark.anyio
async def test_what_a_killed_process_had_committed_is_there_at_the_next_start(host: Host) -> None:
    await converse(host.store, "one")
    store = await host.restart()
    assert await texts(store) == ["one", "re: one"]


@pytest.mark.parametrize("ends", [None, "deleted"])
@pytest.mark.parametrize("loss", ["empty", "missing"])
async def test_a_database_that_was_lost_is_refused_while_transcripts_tell_of_sessions(
    host: Host, loss: str, ends: str | None
) -> None:
    await converse(host.store, "hello", OTHER)
    if ends == "deleted":
        await host.store.delete_session(OTHER)
    await host.stop()
    host.database.unlink()
    if loss == "empty":
        host.database.touch()
    with pytest.raises(DatabaseUnusable, match=rf"is {loss}, but.*restore it from a backup, or move backchannel.db\*"):
        await host.start()
    assert host.database.exists() == (loss == "empty")
    host.database.unlink(missing_ok=True)
    (host.path / "agents").rename(host.path / "agents of before")
    assert await (await host.start()).session(str(OTHER)) is None


@pytest.mark.parametrize("loss", ["empty", "missing"])
async def test_commits_beside_a_database_that_was_lost_are_not_thrown_away(host: Host, loss: str) -> None:
    log = host.database.with_name("backchannel.db-wal")
    await converse(host.store)
    await host.die()
    host.database.unlink()
    if loss == "empty":
        host.database.touch()
    log.write_bytes(b"commits")
    shutil.rmtree(host.path / "agents")
    with pytest.raises(DatabaseUnusable, match=f"is {loss}"):
        await host.start()
    assert log.read_bytes() == b"commits"


def make_older(database: Path, version: int) -> sqlite3.Connection:
    """Make a file as the program of an earlier schema left it."""
    connection = sqlite3.connect(database, isolation_level=None)
    for statements in load_versions("sqlite", "INTEGER PRIMARY KEY AUTOINCREMENT")[:version]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {version}")
    return connection


@pytest.mark.parametrize("version", range(1, NEWEST))
def test_a_file_of_any_earlier_version_gets_the_tables_of_a_new_one(tmp_path: Path, version: int) -> None:
    older, new = tmp_path / "older.db", tmp_path / "new.db"
    make_older(older, version).close()
    for database in (older, new):
        SqliteDatabase(database).prepare()
    columns = "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'"
    assert {*rows(older, columns)} == {*rows(new, columns)}
    assert rows(older, "PRAGMA user_version") == [(NEWEST,)]


def test_a_line_of_an_older_database_goes_on_behind_what_stands_in_it(database: Path) -> None:
    with closing(make_older(database, 2)) as connection:
        for number, (chat, thread) in enumerate([("a", None), ("b", None), ("a", "t"), ("a", None), (None, None)]):
            connection.execute(
                "INSERT INTO deliveries (id, position, session_key, state, channel, account_id, target, thread_id, "
                "text, created_at, updated_at) "
                "VALUES (?, ?, 'agent:main:main', 'pending', 'desk', 'default', ?, ?, 'x', 1, 1)",
                (str(number), number + 1, chat, thread),
            )
    SqliteDatabase(database).prepare()
    found = rows(database, "SELECT target, thread_id, last FROM delivery_lines ORDER BY target, thread_id")
    assert found == [("a", "", 4), ("a", "t", 3), ("b", "", 2)]
