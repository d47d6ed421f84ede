"""Reading a database beside whoever writes it, without the store: for what only looks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from backchannel.errors import Unavailable
from backchannel.storage.migrations import check_sqlite
from backchannel.storage.sqlite import SqliteTx, connect
from backchannel.storage.tx import Tx


class Reader:
    """A connection that only reads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @contextmanager
    def snapshot(self) -> Iterator[Tx]:
        """See one state for as long as the context lasts, whatever is committed meanwhile."""
        self._connection.execute("BEGIN")
        try:
            yield SqliteTx(self._connection)
        finally:
            self._connection.execute("ROLLBACK")


@contextmanager
def open_reader(path: Path) -> Iterator[Reader]:
    """Open a database for reading.

    Raises:
        DatabaseUnusable: it is corrupt, not ours, or of another version.
        Unavailable: reading it failed.
    """
    check_sqlite(path)
    try:
        with closing(connect(path, readonly=True)) as connection:
            yield Reader(connection)
    except sqlite3.Error as error:
        raise Unavailable(f"the database {path} cannot be read ({error})") from error
