"""A SQLite file: its checks, its schema, and reads without the store.

A file that is corrupt, not ours or newer than this program is refused before anything is written.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

from backchannel.core.contracts import Clock
from backchannel.errors import DatabaseUnusable, StartupError, Unavailable
from backchannel.storage.driver import DriverContext
from backchannel.storage.files.folder import StateFolder
from backchannel.storage.migrations import load_versions, refuse_newer, refuse_other
from backchannel.storage.sqlite.driver import SqliteDriver, SqliteTx, connect
from backchannel.storage.tx import Row, Tx

APPLICATION_ID = 0x42434831  # "BCH1"
_PREFIX = "sqlite:///"


class SqliteDatabase:
    """One file, and those that SQLite keeps beside it. One gateway at a time works on it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def at(cls, url: str) -> Self:
        """Name the file of a URL.

        Raises:
            StartupError: it names none.
        """
        if not url.startswith(_PREFIX):
            raise StartupError(f"database.url: {url!r} names no file (expected {_PREFIX}<path>)")
        return cls(Path(url.removeprefix(_PREFIX)))

    @property
    def name(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        return self.path.exists()

    def is_whole(self) -> bool:
        return True  # what is moved here takes this name when all of it is there

    is_shared = False

    def open_wakeups(self, on_text: Callable[[str], None], *, polls: bool) -> None:
        """Return nothing: no other gateway works on the file."""

    def hold(self, folder: StateFolder) -> None:
        folder.hold_database(self.path)

    def prepare(self, *, has_past: Callable[[], bool] = lambda: False) -> None:
        _refuse_emptied(self.path, has_past)
        versions = _versions()
        current = _version(self.path) if self.path.exists() and self.path.stat().st_size else 0
        refuse_newer(self.name, current, len(versions))
        try:
            if not self.path.exists():
                self.path.touch(mode=0o600)  # SQLite would ask the umask; files that it makes beside take this mode
            if not os.access(self.path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                raise PermissionError(errno.EACCES, "it may only be read")  # SQLite would leave files beside it first
            _migrate(self.path, versions, current)
        except (OSError, sqlite3.Error) as error:
            raise DatabaseUnusable(
                f"{self.path} cannot be written ({error}): check the folder's owner and free space"
            ) from error

    async def connect(self, clock: Clock, around: DriverContext) -> SqliteDriver:
        return SqliteDriver(
            self.path,
            clock,
            on_facts=around.on_facts,
            on_fatal=around.on_fatal,
            context=around.context,
            faults=around.faults,
        )

    @contextmanager
    def open_reader(self, *, is_at_work: bool = False) -> Iterator[SqliteReader]:
        refuse_other(self.name, _version(self.path), len(_versions()))
        try:
            connection = connect(self.path, readonly=True)
        except sqlite3.Error as error:
            raise _unreadable(self.path, error) from error
        with closing(connection):
            yield SqliteReader(self.path, connection)

    def file_beside(self, folder: StateFolder, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)


class SqliteReader:
    """A connection that only reads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.newest: Tx = _ReadingTx(path, connection)

    @contextmanager
    def snapshot(self) -> Iterator[Tx]:
        self._connection.execute("BEGIN")
        try:
            yield self.newest
        finally:
            self._connection.execute("ROLLBACK")


class _ReadingTx(SqliteTx):
    """Reads whose failures are raised as `Unavailable`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._path = path

    def one(self, sql: str, *values: Any) -> Row | None:
        try:
            return super().one(sql, *values)
        except sqlite3.Error as error:
            raise _unreadable(self._path, error) from error

    def all(self, sql: str, *values: Any) -> list[Row]:
        try:
            return super().all(sql, *values)
        except sqlite3.Error as error:
            raise _unreadable(self._path, error) from error


def _unreadable(path: Path, error: sqlite3.Error) -> Unavailable:
    return Unavailable(f"the database {path} cannot be read ({error})")


def _refuse_emptied(path: Path, has_past: Callable[[], bool]) -> None:
    """Refuse a file that became empty or missing.

    Raises:
        DatabaseUnusable: a start would hide that everything is lost, or discard the commits that wait beside the file.
    """
    if path.exists() and (not path.is_file() or path.stat().st_size):
        return
    if _has_log(path) or has_past():
        lost = "empty" if path.exists() else "missing"
        raise DatabaseUnusable(
            f"{path} is {lost}, but what lies beside it tells of earlier sessions: its content is lost, and nothing "
            f"was changed; restore it from a backup, or move {path.name}* and the folder `agents` away to start anew"
        )


def _has_log(path: Path) -> bool:
    """Whether commits wait beside the file. Whoever closes it last merges them, at any moment."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def _versions() -> list[list[str]]:
    return load_versions("sqlite", counter="INTEGER PRIMARY KEY AUTOINCREMENT")


def _version(path: Path) -> int:
    """Read a file's version without touching it."""
    # Where no commits wait beside the file, SQLite need not make files of its own there to read it.
    mode = "mode=ro" if _has_log(path) else "mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise DatabaseUnusable(
            f"{path} cannot be read as a database ({error}): nothing was changed; "
            "restore it from a backup, or move it and the folder `agents` away to start anew"
        ) from error
    is_empty = not (application or version or tables)
    if application != APPLICATION_ID and not is_empty:
        raise DatabaseUnusable(
            f"{path} is a database of another program: nothing was changed; use another state folder"
        )
    return int(version)


def _migrate(path: Path, versions: list[list[str]], current: int) -> None:
    with closing(connect(path)) as connection:
        if current < len(versions):
            connection.execute("BEGIN IMMEDIATE")
            for statements in versions[current:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(versions)}")
            connection.execute("COMMIT")
