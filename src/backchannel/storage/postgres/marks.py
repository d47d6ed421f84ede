"""Marks of commits: whether one was made is read from a row, whichever server is asked.

Each connection that writes has a row, which stays its own when the connection breaks and another takes its place. Every
transaction leaves the next number there. So the row tells whether the last one was committed, and, where a standby has
taken over that was behind, whether commits are missing that were answered. Transaction ids could not tell: a server
that has taken over gives those that it never heard of to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from backchannel.storage.postgres.connection import Connection

_LONGEST_WAIT_MS = 5000
"""How long the end of a transaction is waited for whose connection broke, before that is tried again."""
KEPT_DAYS = 30
MARKS_TABLE = "commit_marks"
NEXT_MARK = (
    f"INSERT INTO {MARKS_TABLE} (writer, number) VALUES (?, ?) "
    "ON CONFLICT (writer) DO UPDATE SET number = excluded.number, marked_at = excluded.marked_at"
)
"""Leaves the next number of a writer; it belongs at the beginning of each transaction."""
# Writing waits for the lock of a transaction that is still under way, also if that made the row. And what is read is
# answered only when this is committed: with a synchronous standby, when that has the commit that it tells of.
_LOAD = (
    f"INSERT INTO {MARKS_TABLE} (writer, number) VALUES ('{{writer}}', 0) "
    "ON CONFLICT (writer) DO UPDATE SET writer = excluded.writer RETURNING number"
)
_FIND = f"SELECT writer, number FROM {MARKS_TABLE} WHERE writer = ANY(%s)"
_FORGET = f"DELETE FROM {MARKS_TABLE} WHERE marked_at < now() - interval '{KEPT_DAYS} days'"


class CommitMark:
    """The row of one connection that writes, and of those that replace it."""

    def __init__(self) -> None:
        self.writer = uuid4().hex
        self.last = 0
        """The number of the last transaction that is known to be committed."""

    def load(self, connection: Connection) -> int:
        """Read the number of the last transaction that was committed; 0 if there was none.

        Raises:
            psycopg.OperationalError: the transaction is not over yet, or the connection was lost.
        """
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {_LONGEST_WAIT_MS}".encode())
            row = connection.execute(_LOAD.format(writer=self.writer).encode()).fetchone()
        assert row is not None
        return int(row[0])


def are_missing(connection: Connection, marks: Sequence[CommitMark]) -> bool:
    """Whether commits that are known to be made are not there any more; they count as never made from then on."""
    known = {mark.writer: mark.last for mark in marks}  # read first: what is committed meanwhile is no less
    found: dict[str, int] = dict(connection.execute(_FIND, [list(known)]).fetchall())
    missing = [mark for mark in marks if found.get(mark.writer, 0) < known[mark.writer]]
    for mark in missing:
        mark.last = found.get(mark.writer, 0)
    return bool(missing)


def forget_old(connection: Connection) -> None:
    """Remove the rows of connections that have written nothing for long; one that does after all makes its row anew."""
    connection.execute(_FORGET.encode())
