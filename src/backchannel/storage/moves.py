"""Moves of a whole state between its SQLite file and a PostgreSQL database.

This module names both, because a move is of one into the other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from backchannel.errors import StartupError
from backchannel.storage.databases import database_at
from backchannel.storage.driver import Database
from backchannel.storage.sqlite.file import SqliteDatabase

OnRows = Callable[[str, int], None]
"""Told of each part that is copied: its table, and how many rows."""


def is_postgres(url: str) -> bool:
    return url.startswith(("postgresql:", "postgres:"))


def move_state(source: Database, url: str, on_rows: OnRows) -> dict[str, int]:
    """Copy everything into the empty PostgreSQL database of a URL, or go on with what was broken off.

    Returns how many rows each table has; both sides have been compared. Nobody else may use either meanwhile: the
    source is held by the caller.

    Raises:
        DatabaseUnusable: the target is not empty, or not what was left of this move; or the counts differ.
        StateFolderInUse: a gateway uses the target.
        StartupError, Unavailable: the URL names no such database, or it cannot be reached.
    """
    if not is_postgres(url):
        raise StartupError(
            "a state can be moved to PostgreSQL, or back to its SQLite file: "
            "name one as postgresql://user@host:5432/database, or say sqlite"
        )
    database_at(url)  # says what is missing
    from backchannel.storage.postgres.move import StateMove
    from backchannel.storage.postgres.server import Server

    return StateMove(source, Server(url), on_rows).run()


def return_state(source: Database, target: Database, media: Path, on_rows: OnRows) -> dict[str, int]:
    """Copy everything of a PostgreSQL database into a SQLite file that is not there yet, and pictures into a folder.

    Returns how many rows each table has; both sides have been compared. The state folder is held by the caller.

    Raises:
        DatabaseUnusable: the file is there already, or cannot be written; or the counts differ.
        StateFolderInUse: a gateway works on the database.
        StartupError, Unavailable: the database cannot be reached.
    """
    from backchannel.storage.postgres.database import PostgresDatabase
    from backchannel.storage.postgres.move_back import StateReturn

    if not isinstance(source, PostgresDatabase) or not isinstance(target, SqliteDatabase):
        raise StartupError("only a PostgreSQL database can be moved into a SQLite file")
    return StateReturn(source, target, media, on_rows).run()


def was_moved(source: Database, target: Database) -> bool:
    """Whether everything was copied from one to the other before, and no gateway has worked on the source since.

    The row of the last gateway that worked on the source tells: what is copied has it too.

    Raises:
        DatabaseUnusable, Unavailable: one of them cannot be read.
    """
    if not target.exists() or not target.is_whole():
        return False
    with source.open_reader() as here, target.open_reader() as there:
        last = here.newest.one("SELECT number, started_at FROM processes ORDER BY number DESC LIMIT 1")
        if last is None:
            return False
        return there.newest.one("SELECT 1 FROM processes WHERE number = ? AND started_at = ?", *last) is not None
