"""Commit marks: a row that says whether a commit was made, on whichever server answers.

Each connection that writes has a row, also after it is replaced. Every transaction writes the next number there. So the
row says whether the last transaction was committed. If a standby has taken over that lagged behind, the row also says
that answered commits are missing. Transaction ids cannot say that: the new primary gives unknown ids to other
transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from backchannel.storage.postgres.connection import Connection

_LONGEST_WAIT_MS = 5000
"""How long to wait for the end of a transaction whose connection broke, before the next try."""
KEPT_DAYS = 30
MARKS_TABLE = "commit_marks"
NEXT_MARK = (
    f"INSERT INTO {MARKS_TABLE} (writer, number) VALUES (?, ?) "
    "ON CONFLICT (writer) DO UPDATE SET number = excluded.number, marked_at = excluded.marked_at"
)
"""Writes the next number of a writer, at the start of each transaction."""
# A write waits for the lock of a transaction that is still running, also if that one creates the row. Its answer comes
# after its commit: a synchronous standby then has the commit that the row tells of.
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
        """The number of the last transaction known to be committed."""

    def load(self, connection: Connection) -> int:
        """Read the number of the last committed transaction; 0 if there is none.

        Raises:
            psycopg.OperationalError: the transaction is not over yet, or the connection was lost.
        """
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {_LONGEST_WAIT_MS}".encode())
            row = connection.execute(_LOAD.format(writer=self.writer).encode()).fetchone()
        assert row is not None
        return int(row[0])


def are_missing(connection: Connection, marks: Sequence[CommitMark]) -> bool:
    """Check whether commits that were made are missing. If so, they count as never made from now on."""
    known = {mark.writer: mark.last for mark in marks}  # read first: what is committed meanwhile is no less
    found: dict[str, int] = dict(connection.execute(_FIND, [list(known)]).fetchall())
    missing = [mark for mark in marks if found.get(mark.writer, 0) < known[mark.writer]]
    for mark in missing:
        mark.last = found.get(mark.writer, 0)
    return bool(missing)


def forget_old(connection: Connection) -> None:
    """Remove the rows of connections that have written nothing for long. Such a connection creates its row again."""
    connection.execute(_FORGET.encode())
