"""Which databases there are: the one place that knows each of them, by the scheme of `database.url`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backchannel.errors import StartupError
from backchannel.storage.driver import Database
from backchannel.storage.sqlite_file import SqliteDatabase


def _sqlite(url: str, locks_rows: bool) -> Database:
    return SqliteDatabase.at(url)


def _postgres(url: str, locks_rows: bool) -> Database:
    try:
        from backchannel.storage.postgres_database import PostgresDatabase  # what it needs is an extra
    except ImportError as error:
        raise StartupError(
            f"database.url: PostgreSQL needs a package that is not installed ({error}): "
            "pip install 'backchannel[postgres]'"
        ) from error
    return PostgresDatabase.at(url, locks_rows=locks_rows)


DATABASES: Mapping[str, Callable[[str, bool], Database]] = {
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
}


def database_at(url: str, *, locks_rows: bool = False) -> Database:
    """Name the database of a URL; nothing is opened. Where several gateways share it, they may all lock rows.

    Raises:
        StartupError: there is no store of this kind, or the URL is not one of it.
    """
    kind = url.partition(":")[0]
    if kind not in DATABASES:
        raise StartupError(
            f"database.url: there is no store for {kind}: (use sqlite:///<path>, postgresql://…, or leave it out)"
        )
    return DATABASES[kind](url, locks_rows)


def move_state(source: Database, url: str, on_rows: Callable[[str, int], None]) -> dict[str, int]:
    """Copy everything into the empty PostgreSQL database of a URL, or go on with what was broken off.

    `on_rows` is told of each part: its table, and how many rows. Returns how many each table has; both sides have been
    compared. Nobody else may use either meanwhile: the source is held by the caller.

    Raises:
        DatabaseUnusable: the target is not empty, or not what was left of this move; or the counts differ.
        StateFolderInUse: a gateway uses the target.
        StartupError, Unavailable: the URL names no such database, or it cannot be reached.
    """
    if not url.startswith(("postgresql:", "postgres:")):
        raise StartupError("a state can be moved to PostgreSQL only: name it as postgresql://user@host:5432/database")
    database_at(url)  # says what is missing
    from backchannel.storage.postgres_move import StateMove
    from backchannel.storage.postgres_server import Server

    return StateMove(source, Server(url), on_rows).run()
