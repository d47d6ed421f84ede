"""Moving a state from SQLite into PostgreSQL: whole, once, and again after it was broken off anywhere."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.sessions import SessionPatch
from backchannel.errors import DatabaseUnusable, StartupError, StateFolderInUse
from backchannel.storage.databases import database_at
from backchannel.storage.moves import move_state
from backchannel.storage.postgres.server import MOVE_TABLE, VERSION_TABLE
from backchannel.storage.tables import TABLES
from tests.storage.support import MAIN, Host, accept, answer, begin, converse, device, digest_of, note, texts
from tests.support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.sqlite_only, pytest.mark.postgres]
ROOT = Path(__file__).parents[2]
OTHER = SessionKey.of("main", "project")


@pytest.fixture
async def source(tmp_path: Path, database_kind: None) -> AsyncIterator[Host]:
    """A state with something in it: talks, notes, a message that waits, and text of all kinds."""
    host = Host(tmp_path / "state")
    store = await host.start()
    for n in range(25):
        await converse(store, f"message {n} \N{SLIGHTLY SMILING FACE}", OTHER if n % 3 else MAIN)
    await store.patch_session(OTHER, SessionPatch(label="a\0b", display_name="tab\tback\\slash\nline"))
    await accept(store, "runs")
    await accept(store, "waits")
    await store.add_note(OTHER, note("\\N and \\. are nothing special"))
    assert await store.keep_device_token(device(), digest_of)
    await host.stop()
    yield host
    await host.end()


@pytest.fixture
def target(database_kind: None) -> str:
    return new_database(is_prepared=False)


def move(host: Host, url: str) -> dict[str, int]:
    return move_state(database_at(f"sqlite:///{host.database}"), url, lambda table, rows: None)


def rows_of(connection: Any, table: str, columns: str) -> list[tuple[Any, ...]]:
    return sorted(connection.execute(f"SELECT {columns} FROM {table}").fetchall(), key=repr)


def check_same(host: Host, url: str) -> None:
    """Compare every row of every table."""
    with closing(sqlite3.connect(host.database)) as here, closing(psycopg.connect(url)) as there:
        for table in [table.name for table in TABLES if table.only is None]:
            columns = ", ".join(row[1] for row in here.execute(f"PRAGMA table_info({table})"))
            expected = [
                tuple(value.replace("\0", "␀") if isinstance(value, str) else value for value in row)
                for row in rows_of(here, table, columns)
            ]
            assert rows_of(there, table, columns) == expected, table
        order = "SELECT session_id, seq FROM message_order ORDER BY position"
        assert here.execute(order).fetchall() == there.execute(order).fetchall()


async def test_every_row_is_moved_and_a_gateway_goes_on_with_them(source: Host, target: str) -> None:
    counts = move(source, target)
    check_same(source, target)
    assert counts["messages"] >= 50
    moved = Host(source.path.parent / "moved", target)
    store = await moved.start()
    (entry,) = await store.interrupted_runs()
    resumed = await store.resume_run(entry.run_id)
    assert resumed is not None
    await answer(store, resumed)
    assert (await store.start_next(str(MAIN))) is not None
    before = await texts(store, OTHER)
    await begin(store, "new here", OTHER)
    assert (await texts(store, OTHER))[: len(before)] == before
    assert store.number == 2
    await moved.stop()


@pytest.mark.parametrize("parts", [1, 3, 7])
async def test_a_move_that_was_killed_goes_on_where_it_was(source: Host, target: str, parts: int) -> None:
    seen = killed_after(source, target, parts)
    how = r"\(on \S+\), run `backchannel --state /\S+ migrate --to postgresql://postgres@/\S+` again"
    with pytest.raises(DatabaseUnusable, match=f"not all of it is there: where that was begun {how}"):
        database_at(target).prepare(has_past=lambda: False)
    told: list[tuple[str, int]] = []
    counts = move_state(
        database_at(f"sqlite:///{source.database}"), target, lambda table, rows: told.append((table, rows))
    )
    check_same(source, target)
    assert sum(rows for _, rows in told) == sum(counts.values())
    tables = dict.fromkeys(seen)
    assert list(dict.fromkeys(name for name, _ in told))[: len(tables)] == list(tables)
    database_at(target).prepare(has_past=lambda: False)


def killed_after(host: Host, url: str, parts: int) -> list[str]:
    """Move in another process, and kill it with -9 after so many parts; returns their tables."""
    command = [sys.executable, "-m", "tests.support.mover", str(host.path), url]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        seen = []
        for n in range(parts):
            seen.append(process.stdout.readline().split()[0])
            if n < parts - 1:
                process.stdin.write("go on\n")
        process.kill()
    assert "done" not in seen
    return seen


async def test_a_move_begins_anew_when_a_gateway_has_worked_on_the_source_since(source: Host, target: str) -> None:
    killed_after(source, target, 6)
    await converse(await source.start(), "since then", SessionKey.of("main", "third"))
    await source.stop()
    move(source, target)
    check_same(source, target)


async def test_a_database_that_is_not_empty_is_refused_and_stays_as_it_is(source: Host) -> None:
    foreign, own = new_database(is_prepared=False), new_database()
    with closing(psycopg.connect(foreign, autocommit=True)) as connection:
        connection.execute("CREATE TABLE customers (id INTEGER)")
        with pytest.raises(DatabaseUnusable, match="tables of another program"):
            move(source, foreign)
        assert connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall() == [
            ("customers",)
        ]
    with pytest.raises(DatabaseUnusable, match="has a state of its own already: name an empty database"):
        move(source, own)


async def test_rows_that_are_missing_in_the_end_are_noticed(source: Host, target: str) -> None:
    def lose(table: str, rows: int) -> None:
        if table == "runs":
            with closing(psycopg.connect(target, autocommit=True)) as connection:
                connection.execute("DELETE FROM runs WHERE position = 1")

    with pytest.raises(DatabaseUnusable, match=r"runs has 27 rows in .* and 26 in .*: the move is not complete"):
        move_state(database_at(f"sqlite:///{source.database}"), target, lose)
    with closing(psycopg.connect(target)) as connection:
        assert connection.execute(f"SELECT count(*) > 0 FROM {MOVE_TABLE}").fetchone() == (True,)
        assert connection.execute(f"SELECT count(*) FROM {VERSION_TABLE}").fetchone() == (1,)


async def test_a_target_that_a_gateway_uses_or_that_is_no_server_is_refused(
    source: Host, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backchannel.storage.postgres.server.ALONE_LIMIT_S", 0.1)
    other = Host(source.path.parent / "other", target)
    await other.start()
    with pytest.raises(StateFolderInUse, match="another process"):
        move(source, target)
    await other.end()
    with pytest.raises(StartupError, match="to PostgreSQL, or back"):
        move(source, f"sqlite:///{source.path / 'other.db'}")
