"""Floors: the least that a figure could be, measured beside it with nothing of ours in between."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from backchannel.storage.sqlite.driver import connect
from backchannel.storage.tables import SESSIONS
from bench.measures import percentile, time_calls

_ROW = "a line of a transcript, " * 10
_NAMES = SESSIONS.fields.split(", ")
_encode = msgspec.json.Encoder().encode


class Commits:
    """Bare commits: WAL, each on the disk before it returns, in a file of its own on the same disk."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def one(self, rows: int = 1) -> None:
        """Commit so many small rows."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for _ in range(rows):
            execute("INSERT INTO floor (body) VALUES (?)", (_ROW,))
        execute("COMMIT")


@contextmanager
def commits(folder: Path) -> Iterator[Commits]:
    """Open a file for bare commits."""
    with closing(connect(folder / "floor.db")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS floor (n INTEGER PRIMARY KEY, body TEXT)")
        yield Commits(connection)


def list_sessions(connection: sqlite3.Connection, limit: int) -> bytes:
    """Read the newest sessions and encode them, as plainly as it can be done."""
    rows = connection.execute(
        f"SELECT {SESSIONS.fields} FROM sessions WHERE archived_at IS NULL ORDER BY updated_at DESC, key LIMIT ?",
        (limit,),
    ).fetchall()
    return _encode([dict(zip(_NAMES, row, strict=True)) for row in rows])


def read_messages(connection: sqlite3.Connection, session_id: str, limit: int) -> list[tuple[str]]:
    """Read the newest messages of a session, as they are stored."""
    return connection.execute(
        "SELECT body FROM messages WHERE session_id = ? ORDER BY seq DESC LIMIT ?", (session_id, limit)
    ).fetchall()


def grouped_commit_s(bare: Commits, runs: int, seconds: float) -> float:
    """Time a commit of so many rows at once, over and over for a while; gives the median, in seconds."""
    took: list[float] = []
    until = time.perf_counter() + seconds
    while not took or time.perf_counter() < until:
        took += time_calls(lambda: bare.one(runs), 3)
    return percentile(took, 50) / 1000
