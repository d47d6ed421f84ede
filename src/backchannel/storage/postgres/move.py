"""The move of a state into PostgreSQL, table by table, in parts.

Each part is one transaction: its rows, and how far its table is. A move that broke off continues with the next part,
and no row is copied twice. While a move is under way, the database has a table that says so, and no gateway starts on
it. At the end the rows of both sides are counted. If the counts agree, that table is dropped.

A broken move continues only if the source is unchanged. If a gateway has run on the source since, the move starts over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from backchannel.core.stored import StoredForm
from backchannel.errors import DatabaseUnusable
from backchannel.storage.driver import Database
from backchannel.storage.postgres.connection import Connection
from backchannel.storage.postgres.server import MOVE_ORIGIN, MOVE_TABLE, Server
from backchannel.storage.tables import TABLES, Table
from backchannel.storage.tx import Row, Tx, marks, required

FIRST_PART, MOST_ROWS = 16, 2000
SMALL_PART, LARGE_PART = 1024 * 1024, 8 * 1024 * 1024
"""Sizes in bytes: after a smaller part the next has more rows, after a larger one fewer."""

OnRows = Callable[[str, int], None]
"""Called with the name of a table and how many more of its rows are copied."""

MOVED = [table for table in TABLES if table.only is None]
"""The tables that every database has."""
_STORED_PLACE: StoredForm[list[Any] | None] = StoredForm(list[Any] | None)
_SOURCE = ""
"""The name in the table of the move for the state of the source."""


class StateMove:
    """Copies a state from another database into PostgreSQL."""

    def __init__(self, source: Database, server: Server, on_rows: OnRows) -> None:
        self._source = source
        self._server = server
        self._on_rows = on_rows

    def run(self) -> dict[str, int]:
        """Copy all rows; returns how many each table has.

        Raises:
            DatabaseUnusable: the target is not empty, or not what was left of this move; or the counts differ.
            StateFolderInUse: a gateway uses the target.
            StartupError, Unavailable: one of them cannot be reached.
        """
        with closing(self._server.hold()) as target:
            try:
                return self._fill(target)
            except psycopg.Error as error:
                raise self._server.unusable(error) from error

    def _fill(self, target: Connection) -> dict[str, int]:
        with self._source.open_reader() as reader, reader.snapshot() as tx:
            self._begin(target, _state_of(tx))
            for table in MOVED:
                self._copy(tx, target, table)
            counts = {table.name: self._compared(tx, target, table) for table in MOVED}
            with target.transaction():
                for table in MOVED:
                    _set_counters(target, table)
                target.execute(f"DROP TABLE {MOVE_TABLE}")
            for table in MOVED:  # so that the planner knows the sizes from the first query on
                target.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(table.name)))
            return counts

    def _begin(self, target: Connection, state: str) -> None:
        """Create the tables, or keep what an earlier move of the same state has copied."""
        is_left = self._server.is_being_filled(target)
        if self._server.version(target) and not is_left:
            raise DatabaseUnusable(f"{self._server.name} has a state of its own already: name an empty database")
        with target.transaction():
            self._server.make_current(target, refuse_empty=lambda: False)
            target.execute(
                f"CREATE TABLE IF NOT EXISTS {MOVE_TABLE} "
                "(name TEXT PRIMARY KEY, last TEXT NOT NULL, is_done INTEGER NOT NULL)"
            )
            kept = target.execute(f"SELECT last FROM {MOVE_TABLE} WHERE name = %s", (_SOURCE,)).fetchone()
            if kept != (state,):
                for name in [*(table.name for table in MOVED), MOVE_TABLE]:
                    target.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
                _note(target, _SOURCE, state, is_done=True)
                _note(target, MOVE_ORIGIN, f"{gethostname()} {Path(self._source.name).parent}", is_done=True)

    def _copy(self, tx: Tx, target: Connection, table: Table[Any]) -> None:
        row = target.execute(f"SELECT last, is_done FROM {MOVE_TABLE} WHERE name = %s", (table.name,)).fetchone()
        last = None if row is None else _STORED_PLACE.read(row[0])
        (there,) = required(target.execute(_count(table.name)).fetchone())
        if there:
            self._on_rows(table.name, there)
        if row is None or not row[1]:
            for rows in parts_of(tx, table, _origin(table), last):
                self._take_part(target, table, rows)
            with target.transaction():
                _note(target, table.name, "null", is_done=True)

    def _take_part(self, target: Connection, table: Table[Any], rows: Sequence[Row]) -> None:
        with target.transaction():
            names = sql.SQL(", ").join(map(sql.Identifier, moved_columns(table)))
            statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table.name), names)
            with target.cursor().copy(statement) as copy:
                for row in rows:
                    copy.write_row([_storable(value) for value in row])
            last = _key_of(table, rows[-1])
            _note(target, table.name, _STORED_PLACE.write(last), is_done=False)
        self._on_rows(table.name, len(rows))

    def _compared(self, tx: Tx, target: Connection, table: Table[Any]) -> int:
        (here,) = required(tx.one(f"SELECT count(*) FROM {table.name}"))
        (there,) = required(target.execute(_count(table.name)).fetchone())
        if here != there:
            raise DatabaseUnusable(
                f"{table.name} has {here} rows in {self._source.name} and {there} in {self._server.name}: "
                "the move is not complete, and no gateway starts on it; name another empty database"
            )
        return int(there)


def _state_of(tx: Tx) -> str:
    """Identify the state of the source: each gateway that works on it changes its row of `processes`."""
    row = required(tx.one("SELECT count(*), max(number), max(ended_at), max(alive_at) FROM processes"))
    return msgspec.json.encode(row).decode()


def moved_columns(table: Table[Any]) -> list[str]:
    """List the columns that are copied, as PostgreSQL has them."""
    return [*table.columns, *filter(None, [table.numbered])]


def _origin(table: Table[Any]) -> str:
    """Name what the rows are read from: SQLite has the numbers of its rows in a view."""
    return "messages JOIN message_order USING (session_id, seq)" if table.numbered else table.name


def parts_of(tx: Tx, table: Table[Any], origin: str, last: list[Any] | None = None) -> Iterator[list[Row]]:
    """Read the rows of a table after the key `last`, in the order of the key, a part at a time."""
    names, keys = ", ".join(moved_columns(table)), ", ".join(table.key)
    count = FIRST_PART
    while True:
        where = f" WHERE ({keys}) > ({marks(table.key)})" if last else ""
        rows = tx.all(f"SELECT {names} FROM {origin}{where} ORDER BY {keys} LIMIT ?", *(last or ()), count)
        if rows:
            yield rows
        if len(rows) < count:
            return
        last = _key_of(table, rows[-1])
        size = sum(len(value) for row in rows for value in row if isinstance(value, str))
        if size < SMALL_PART:
            count = min(2 * count, MOST_ROWS)
        elif size > LARGE_PART:
            count = max(1, count // 2)


def _key_of(table: Table[Any], row: Row) -> list[Any]:
    return [row[table.columns.index(key)] for key in table.key]


def _storable(value: Any) -> Any:
    return value.replace("\0", "␀") if isinstance(value, str) and "\0" in value else value


def _note(target: Connection, name: str, last: str, *, is_done: bool) -> None:
    target.execute(
        f"INSERT INTO {MOVE_TABLE} (name, last, is_done) VALUES (%s, %s, %s) "
        "ON CONFLICT (name) DO UPDATE SET last = excluded.last, is_done = excluded.is_done",
        (name, last, int(is_done)),
    )


def _count(name: str) -> sql.Composed:
    return sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name))


def _set_counters(target: Connection, table: Table[Any]) -> None:
    """Set the counters to continue after the copied rows."""
    for column in filter(None, (table.counts, table.numbered)):
        target.execute(
            sql.SQL("SELECT setval(pg_get_serial_sequence(%s, %s), max({})) FROM {}").format(
                sql.Identifier(column), sql.Identifier(table.name)
            ),
            (table.name, column),
        )
