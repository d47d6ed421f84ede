"""Locks of other programs that block a gateway, and their holders.

Gateways lock by `locks.py` before they touch a row. So whoever then holds a row or a table is another program: a
console with an open transaction, `CREATE INDEX`, `LOCK TABLE`. A writer thread that has met such a lock waits only
briefly the next time, for as long as that transaction lasts: everybody else waits behind the thread.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

from backchannel.core.text import cut
from backchannel.storage.postgres.connection import PROGRAM, Connection

UNSEEN_S = 5.0
"""How long a lock counts after it was last met, if its holder cannot be looked at."""
SHOWN_QUERY = 160
# The end of each chain: a holder may wait too, and the last one blocks all.
_WAITS = """
    WITH RECURSIVE waits(waiter, via, pid) AS (
        SELECT w, w, b FROM unnest(%s::int[]) AS w CROSS JOIN LATERAL unnest(pg_blocking_pids(w)) AS b
        UNION
        SELECT waits.waiter, waits.pid, b FROM waits CROSS JOIN LATERAL unnest(pg_blocking_pids(waits.pid)) AS b
    )
    SELECT DISTINCT ON (waiter) waiter, waits.pid, a.application_name, a.usename, a.state, a.xact_start, a.query,
        (SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
         WHERE l.pid = via AND NOT l.granted AND l.locktype = 'relation' LIMIT 1)
    FROM waits LEFT JOIN pg_stat_activity a ON a.pid = waits.pid
    WHERE cardinality(pg_blocking_pids(waits.pid)) = 0 ORDER BY waiter, waits.pid
"""
_AT_WORK = "SELECT pid, xact_start FROM pg_stat_activity WHERE pid = ANY(%s) AND state IS DISTINCT FROM 'idle'"
# In one pass, so that no literal is found inside another. A text that the server has cut ends a literal.
_TOKENS = re.compile(
    r'(?P<name>"[^"]*(?:"|\Z))'
    r"|--[^\n]*|/\*.*?(?:\*/|\Z)"
    r"|\$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)"
    r"|\b[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z)"
    r"|(?<![\w$])\d[\w.]*",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A transaction that others wait for."""

    pid: int = 0
    program: str = ""
    user: str = ""
    state: str = ""
    since: datetime | None = None
    query: str = ""
    table: str | None = None
    """The table that is locked as a whole; None for a row."""

    @property
    def is_ours(self) -> bool:
        return self.program.startswith(f"{PROGRAM} ")

    def __str__(self) -> str:
        what = "a row" if self.table is None else f"the table {self.table}"
        if not self.pid:
            return f"{what} is locked by a transaction of which nothing is known"
        doing = self.state or "at work"
        if self.since is not None:
            doing += f" since {self.since.astimezone(UTC):%H:%M:%S} UTC"
        ran = f": {self.query}" if self.query else ""
        who = f"{self.program or 'a program'} (process {self.pid}, user {self.user}, {doing})"
        return f"{what} is locked by {who}{ran}"


_UNKNOWN = LockHolder()


class Obstacles:
    """The locks that writer threads wait for. The threads and the watch share it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waits: dict[int, LockHolder] = {}
        """The holder that each connection was last seen to wait for, by the server's process."""
        self._met: dict[LockHolder, float] = {}
        """The holders that have blocked a writer thread, and when they last did."""

    def saw(self, waits: Mapping[int, LockHolder]) -> None:
        """Record the holders that connections wait for now."""
        with self._guard:
            self._waits.update(waits)

    def begins(self, pid: int) -> None:
        """Forget what a connection waited for before: it begins a transaction."""
        if self._waits:
            with self._guard:
                self._waits.pop(pid, None)

    def holder(self, pid: int) -> LockHolder:
        """Return the holder that a connection was seen to wait for, or the last one met."""
        with self._guard:
            return self._waits.get(pid) or next(reversed(self._met), _UNKNOWN)

    def met(self, holder: LockHolder) -> None:
        """Record that a holder has blocked a writer thread for too long."""
        with self._guard:
            self._met.pop(holder, None)
            self._met[holder] = monotonic()

    @property
    def standing(self) -> list[LockHolder]:
        """List the holders that still block writer threads."""
        with self._guard:
            return list(self._met)

    @property
    def are_any(self) -> bool:
        return bool(self._met)

    def forget_ended(self, at_work: Mapping[int, datetime | None] | None) -> None:
        """Forget the holders whose transaction has ended; with None the server could not be asked."""
        with self._guard:
            for holder, met_at in list(self._met.items()):
                is_seen = at_work is not None and holder.since is not None
                is_there = is_seen and at_work is not None and at_work.get(holder.pid) == holder.since
                if not is_there and (is_seen or monotonic() > met_at + UNSEEN_S):
                    del self._met[holder]


def find_holders(connection: Connection, pids: Sequence[int]) -> dict[int, LockHolder]:
    """Find the holders that connections wait for, by their processes on the server."""
    return {
        waiter: LockHolder(pid, program or "", user or "", state or "", since, without_literals(query or ""), table)
        for waiter, pid, program, user, state, since, query, table in connection.execute(_WAITS, [list(pids)])
    }


def find_at_work(connection: Connection, holders: Sequence[LockHolder]) -> dict[int, datetime | None]:
    """Find which of the holders are in a transaction, and since when."""
    return dict(connection.execute(_AT_WORK, [[holder.pid for holder in holders]]).fetchall())


def without_literals(query: str) -> str:
    """Shorten a statement for a log or an error. Its values may be secrets."""
    shown = _TOKENS.sub(lambda found: found["name"] or "…", query)
    return cut(" ".join(shown.split()), SHOWN_QUERY)
