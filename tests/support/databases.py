"""The database of a test: a file in its state folder, or its own on a PostgreSQL server.

`--database=postgres` puts all tests that name no database themselves on it; a test with the mark `both_databases` is
run on each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

Kind = Literal["sqlite", "postgres"]
_kind: Kind = "sqlite"
_made: dict[Path, str] = {}


@contextmanager
def on(kind: Kind) -> Iterator[None]:
    """Use a kind of database for as long as the context lasts; what was made is removed after it."""
    global _kind
    before, _kind = _kind, kind
    try:
        yield
    finally:
        _kind = before
        for state in list(_made):
            forget(state)


def database_url(state: Path) -> str:
    """Name the database of a state folder, making it at the first use."""
    if _kind == "sqlite":
        return f"sqlite:///{state / 'backchannel.db'}"
    if state not in _made:
        from tests.support.postgres import borrow_database

        _made[state] = borrow_database()
    return _made[state]


def forget(state: Path) -> None:
    """Remove the database of a state folder that is gone."""
    if url := _made.pop(state, None):
        from tests.support.postgres import return_database

        return_database(url)


def with_database(config: dict[str, Any] | None, state: Path) -> dict[str, Any]:
    """Add the database of a state folder to a configuration."""
    given = config or {}
    return given if _kind == "sqlite" else {**given, "database": {"url": database_url(state)}}


def open_database(state: Path) -> sqlite3.Connection:
    """Look into the database of a state folder, through a connection of one's own."""
    if _kind == "sqlite":
        return sqlite3.connect(state / "backchannel.db")
    from tests.support.postgres import Rows

    return cast(sqlite3.Connection, Rows(database_url(state)))


def is_postgres() -> bool:
    return _kind == "postgres"


def as_stored(text: str) -> str:
    """Say what becomes of a text: PostgreSQL has no NUL in texts."""
    return text.replace("\0", "␀") if is_postgres() else text


def full_disk() -> Exception:
    """Make the error with which a database says that its disk is full."""
    if is_postgres():
        from psycopg.errors import DiskFull

        return DiskFull("made by a test")
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def broken_constraint() -> type[Exception]:
    """Name the error of a row that must not be."""
    if is_postgres():
        from psycopg import IntegrityError

        return IntegrityError
    return sqlite3.IntegrityError
