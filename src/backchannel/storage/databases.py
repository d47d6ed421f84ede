"""Which databases there are: the one place that knows each of them, by the scheme of `database.url`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backchannel.errors import StartupError
from backchannel.storage.driver import Database
from backchannel.storage.sqlite_file import SqliteDatabase


def _postgres(url: str) -> Database:
    try:
        from backchannel.storage.postgres_database import PostgresDatabase  # what it needs is an extra
    except ImportError as error:
        raise StartupError(
            f"database.url: PostgreSQL needs a package that is not installed ({error}): "
            "pip install 'backchannel[postgres]'"
        ) from error
    return PostgresDatabase.at(url)


DATABASES: Mapping[str, Callable[[str], Database]] = {
    "sqlite": SqliteDatabase.at,
    "postgresql": _postgres,
    "postgres": _postgres,
}


def database_at(url: str) -> Database:
    """Name the database of a URL; nothing is opened.

    Raises:
        StartupError: there is no store of this kind, or the URL is not one of it.
    """
    kind = url.partition(":")[0]
    if kind not in DATABASES:
        raise StartupError(
            f"database.url: there is no store for {kind}: (use sqlite:///<path>, postgresql://…, or leave it out)"
        )
    return DATABASES[kind](url)
