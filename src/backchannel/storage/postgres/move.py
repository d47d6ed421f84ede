"""Moving a state into PostgreSQL: table by table, in parts, and again from where it broke off.

Each part is one transaction that has its rows and how far its table is. So a move that was broken off, wherever, goes
on with the next part, and no row is there twice. While it is under way a table of its own is there, by which a gateway
sees that not all of the state is: it does not start. In the end the rows of both sides are counted, and only when they
are as many does that table go.

What a break has left is of use only while the source stays as it was: if a gateway has run on it since, the move begins
anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from backchannel.core.stored import StoredForm
from backchannel.errors import DatabaseUnusable
from backchannel.storage.driver import Database
from backchannel.storage.postgres.connection import Connection
from backchannel.storage.postgres.locks import LOCKS_TABLE
from backchannel.storage.postgres.marks import MARKS_TABLE
from backchannel.storage.postgres.server import MOVE_ORIGIN, MOVE_TABLE, VERSION_TABLE, Server
from backchannel.storage.tx import Row, Tx, required

FIRST_PART, MOST_ROWS = 16, 2000
SMALL_PART, LARGE_PART = 1024 * 1024, 8 * 1024 * 1024
"""How much text makes the next part larger, or smaller: one message may have megabytes."""

OnRows = Callable[[str, int], None]
"""Told the name of a table and how many more of its rows are on the other side."""

_KEYS = (
    "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
    "WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY array_position(i.indkey::int2[], a.attnum)"
)
_COLUMNS = (
    "SELECT column_name, is_identity FROM information_schema.columns "
    "WHERE table_schema = current_schema() AND table_name = %s ORDER BY ordinal_position"
)
_ONLY_HERE = (VERSION_TABLE, MOVE_TABLE, MARKS_TABLE, LOCKS_TABLE, "growing", "wakeups", "media")
"""Tables that a database has which several gateways share."""
_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() "
    f"AND table_type = 'BASE TABLE' AND table_name NOT IN {_ONLY_HERE} ORDER BY 1"
)
_STORED_PLACE: StoredForm[list[Any] | None] = StoredForm(list[Any] | None)
_SOURCE = ""
"""The name in the table of the move under which the state of the source is kept."""


class MovedTable(NamedTuple):
    """A table that is copied: its columns, its key, and those that the database counts itself."""

    name: str
    columns: list[str]
    keys: list[str]
    counters: list[str]

    @property
    def origin(self) -> str:
        """Name what its rows are read from: the order of messages is a view where the table has no such column."""
        return "messages JOIN message_order USING (session_id, seq)" if self.name == "messages" else self.name


class StateMove:
    """Copies everything of one database into another."""

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
            tables = moved_tables(target)
            for table in tables:
                self._copy(tx, target, table)
            counts = {table.name: self._compared(tx, target, table) for table in tables}
            with target.transaction():
                for table in tables:
                    _set_counters(target, table)
                target.execute(f"DROP TABLE {MOVE_TABLE}")
            for table in tables:  # so that the first lists are planned by what is there
                target.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(table.name)))
            return counts

    def _begin(self, target: Connection, state: str) -> None:
        """Make the tables, or find out what an earlier move has left; nothing of another state stays."""
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
                for (name,) in [*target.execute(_TABLES).fetchall(), (MOVE_TABLE,)]:
                    target.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
                _note(target, _SOURCE, state, is_done=True)
                _note(target, MOVE_ORIGIN, f"{gethostname()} {Path(self._source.name).parent}", is_done=True)

    def _copy(self, tx: Tx, target: Connection, table: MovedTable) -> None:
        row = target.execute(f"SELECT last, is_done FROM {MOVE_TABLE} WHERE name = %s", (table.name,)).fetchone()
        last = None if row is None else _STORED_PLACE.read(row[0])
        (there,) = required(target.execute(_count(table.name)).fetchone())
        if there:
            self._on_rows(table.name, there)
        if row is None or not row[1]:
            for rows in parts_of(tx, table, table.origin, last):
                self._take_part(target, table, rows)
            with target.transaction():
                _note(target, table.name, "null", is_done=True)

    def _take_part(self, target: Connection, table: MovedTable, rows: Sequence[Row]) -> None:
        with target.transaction():
            names = sql.SQL(", ").join(map(sql.Identifier, table.columns))
            statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table.name), names)
            with target.cursor().copy(statement) as copy:
                for row in rows:
                    copy.write_row([_storable(value) for value in row])
            last = _key_of(table, rows[-1])
            _note(target, table.name, _STORED_PLACE.write(last), is_done=False)
        self._on_rows(table.name, len(rows))

    def _compared(self, tx: Tx, target: Connection, table: MovedTable) -> int:
        (here,) = required(tx.one(f"SELECT count(*) FROM {table.name}"))
        (there,) = required(target.execute(_count(table.name)).fetchone())
        if here != there:
            raise DatabaseUnusable(
                f"{table.name} has {here} rows in {self._source.name} and {there} in {self._server.name}: "
                "the move is not complete, and no gateway starts on it; name another empty database"
            )
        return int(there)


def _state_of(tx: Tx) -> str:
    """Tell one state of the source from another: every gateway that works on it leaves its mark there."""
    row = required(tx.one("SELECT count(*), max(number), max(ended_at), max(alive_at) FROM processes"))
    return msgspec.json.encode(row).decode()


def moved_tables(connection: Connection) -> list[MovedTable]:
    """Read which tables of a PostgreSQL database are copied."""
    return [_table(connection, name) for (name,) in connection.execute(_TABLES).fetchall()]


def _table(target: Connection, name: str) -> MovedTable:
    columns = target.execute(_COLUMNS, (name,)).fetchall()
    keys = [key for (key,) in target.execute(_KEYS, (name,)).fetchall()]
    return MovedTable(
        name, [column for column, _ in columns], keys, [column for column, own in columns if own == "YES"]
    )


def parts_of(tx: Tx, table: MovedTable, origin: str, last: list[Any] | None = None) -> Iterator[list[Row]]:
    """Read the rows of a table in the order of its key, from behind a place on, a part at a time."""
    names, keys = ", ".join(table.columns), ", ".join(table.keys)
    count = FIRST_PART
    while True:
        where = f" WHERE ({keys}) > ({', '.join('?' for _ in table.keys)})" if last else ""
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


def _key_of(table: MovedTable, row: Row) -> list[Any]:
    return [row[table.columns.index(key)] for key in table.keys]


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


def _set_counters(target: Connection, table: MovedTable) -> None:
    """Let the counters go on behind the rows that were copied."""
    for column in table.counters:
        target.execute(
            sql.SQL("SELECT setval(pg_get_serial_sequence(%s, %s), max({})) FROM {}").format(
                sql.Identifier(column), sql.Identifier(table.name)
            ),
            (table.name, column),
        )
