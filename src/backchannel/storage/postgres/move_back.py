"""The move of a state from PostgreSQL back into a SQLite file.

The file is written under another name, and renamed when all rows are copied and counted. So a move that broke off
leaves nothing that a gateway would start on; the next one starts over. Pictures are rows in PostgreSQL and become
files of the media folder again.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from backchannel.errors import DatabaseUnusable, StateFolderInUse
from backchannel.storage.files.media import MediaFolder, load_parts
from backchannel.storage.postgres.database import PostgresDatabase
from backchannel.storage.postgres.move import MOVED, OnRows, moved_columns, parts_of
from backchannel.storage.sqlite.driver import connect
from backchannel.storage.sqlite.file import SqliteDatabase
from backchannel.storage.tables import Table
from backchannel.storage.tx import Tx, marks, required

ENDING = ".moving"
"""The end of the file's name until the file is complete."""
_AT_WORK = (
    "SELECT name, lease_until - (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM processes "
    "WHERE ended_at IS NULL ORDER BY 2 DESC LIMIT 1"
)


class StateReturn:
    """Copies a state from PostgreSQL into a new file."""

    def __init__(self, source: PostgresDatabase, target: SqliteDatabase, media: Path, on_rows: OnRows) -> None:
        self._source = source
        self._target = target
        self._media = MediaFolder(media)
        self._on_rows = on_rows

    def run(self) -> dict[str, int]:
        """Copy all rows; returns how many each table has.

        Raises:
            DatabaseUnusable: the file is there already, or cannot be written; or the counts differ.
            StateFolderInUse: a gateway uses the database, or has a lease there.
            StartupError, Unavailable: the database cannot be reached.
        """
        if self._target.exists():
            raise DatabaseUnusable(f"{self._target.name} is there, with another state: move it away first")
        part = SqliteDatabase(self._target.path.with_name(self._target.path.name + ENDING))
        with closing(self._source.server.hold()) as held:
            try:
                _refuse_at_work(held)
                counts = self._fill(part)
            except psycopg.Error as error:
                raise self._source.server.unusable(error) from error
            except (sqlite3.Error, OSError) as error:
                raise DatabaseUnusable(f"{part.name} cannot be written ({error})") from error
        part.path.replace(self._target.path)
        _sync(self._target.path.parent)
        return counts

    def _fill(self, part: SqliteDatabase) -> dict[str, int]:
        for ending in ("", "-wal", "-shm"):
            part.path.with_name(part.path.name + ending).unlink(missing_ok=True)
        part.prepare()
        with self._source.open_reader() as reader, reader.snapshot() as tx:
            with closing(connect(part.path)) as target:
                counts = {table.name: self._copy(tx, target, table) for table in MOVED}
                target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._keep_pictures(tx)
        _sync(part.path)
        return counts

    def _copy(self, tx: Tx, target: sqlite3.Connection, table: Table[Any]) -> int:
        """Copy a table in one transaction, and count it on both sides."""
        names = ["rowid" if name == table.numbered else name for name in moved_columns(table)]
        insert = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks(names)})"
        target.execute("BEGIN")
        for rows in parts_of(tx, table, table.name):
            target.executemany(insert, rows)
            self._on_rows(table.name, len(rows))
        target.execute("COMMIT")
        (there,) = required(tx.one(f"SELECT count(*) FROM {table.name}"))
        (here,) = target.execute(f"SELECT count(*) FROM {table.name}").fetchone()
        if here != there:
            raise DatabaseUnusable(f"{table.name} has {there} rows in {self._source.name} and {here} in the file")
        return int(here)

    def _keep_pictures(self, tx: Tx) -> None:
        for (name,) in tx.all("SELECT DISTINCT name FROM media ORDER BY name"):
            content = load_parts(tx, name)
            if content is not None:
                self._media.keep(name, content)


def _refuse_at_work(held: psycopg.Connection[tuple[object, ...]]) -> None:
    """Refuse while a gateway has a lease: not every database has an exclusive lock to ask for."""
    name, left_ms = held.execute(_AT_WORK).fetchone() or ("", None)
    if isinstance(left_ms, int) and left_ms > 0:
        raise StateFolderInUse(
            f"the gateway {name} has a lease on the database: stop all gateways on it; one that was killed counts for "
            f"another {left_ms / 1000:.0f} s"
        )


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
