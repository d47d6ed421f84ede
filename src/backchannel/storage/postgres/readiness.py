"""Readiness of a gateway on PostgreSQL: known from its last commits, or tried.

A recent commit proves that messages can be accepted. Three things speak against it and count for more: no connection
that writes, a table locked by another program, a full disk. Without proof, a commit is tried on the watch's connection.
Callers at the same time share that try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from backchannel.errors import DatabaseLocked, StorageFull, Unavailable
from backchannel.storage.driver import DriverProblem
from backchannel.storage.postgres.attempt import OWN_TABLES
from backchannel.storage.postgres.connection import DISK_FULL, RETRY_AFTER_MS
from backchannel.storage.postgres.marks import MARKS_TABLE
from backchannel.storage.postgres.obstacles import LockHolder, Obstacles
from backchannel.storage.postgres.watch import Watch
from backchannel.storage.postgres.writers import Writers
from backchannel.storage.probing import try_commit
from backchannel.storage.tx import Tx

PROOF_S = 1.0
"""How long a commit proves that more can be made."""
FULL_S = 5.0
"""How long a full disk counts as full, whatever a probe finds: another table may have no room."""
_NEEDED = OWN_TABLES | {"processes", MARKS_TABLE}
"""The tables without which no message is accepted."""
# The probe's pages are free again after a vacuum, and say nothing of the disk. A sort larger than the memory needs
# new pages.
_SORT_ON_DISK = (
    "SELECT count(*) FROM (SELECT md5(n::text) AS word FROM generate_series(1, 20000) AS n ORDER BY 1) AS words"
)


class Readiness:
    """The signs for and against accepting messages now."""

    def __init__(self, name: str, writers: Writers, obstacles: Obstacles, watch: Watch) -> None:
        self._name = name
        self._writers = writers
        self._obstacles = obstacles
        self._watch = watch
        self._committed_at = 0.0
        self._full_at: float | None = None
        self._probing: asyncio.Task[None] | None = None

    def committed(self) -> None:
        self._committed_at = monotonic()

    def connection_lost(self) -> None:
        """Trust no earlier commit."""
        self._committed_at = 0.0

    def was_full(self) -> None:
        self._full_at = monotonic()

    async def check(self) -> None:
        """Check whether a message could be accepted now.

        Raises:
            Unavailable: it could not.
        """
        if (refusal := self._refusal()) is not None:
            raise refusal
        is_proven = not self._writers.are_none and monotonic() < self._committed_at + PROOF_S
        if is_proven and self._full_at is None:
            return
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe(), name="probe")
            self._probing.add_done_callback(_hear)
        await asyncio.shield(self._probing)
        if self._full_at is not None and monotonic() < self._full_at + FULL_S:
            raise StorageFull(DISK_FULL)
        self._full_at = None

    def _refusal(self) -> Unavailable | None:
        for holder in self._obstacles.standing:
            if holder.table in _NEEDED:
                return DatabaseLocked(f"in the database {self._name} {holder}", retryAfterMs=RETRY_AFTER_MS)
        return None

    async def _probe(self) -> None:
        try:
            await try_commit(self._watch.run if self._full_at is None else self._run_with_room)
        except StorageFull:
            self.was_full()
            raise

    def _run_with_room(self, unit: Callable[..., None], *args: Any) -> asyncio.Future[None]:
        return self._watch.run(_with_room, unit, *args)

    def problems(self) -> Iterator[DriverProblem]:
        """List problems that do not stop the gateway."""
        for holder in self._obstacles.standing:
            yield _locked(self._name, holder)
        if missing := self._writers.missing:
            message = (
                f"The database {self._name} refuses {missing} of the {self._writers.count} connections that write."
            )
            hint = "Everything goes on over the others, slower. Raise max_connections of the server."
            yield DriverProblem(code="database_connections", message=message, hint=hint)


def _with_room(tx: Tx, unit: Callable[..., None], *args: Any) -> None:
    """Run a unit if the disk has room for new pages."""
    tx.run("SET LOCAL work_mem = 64")
    tx.one(_SORT_ON_DISK)
    unit(tx, *args)


def _locked(name: str, holder: LockHolder) -> DriverProblem:
    hint = "What needs it is refused, and goes on when the lock is gone. End that transaction"
    hint += f", or its process: SELECT pg_terminate_backend({holder.pid})." if holder.pid else "."
    return DriverProblem(code="database_locked", message=f"In the database {name} {holder}.", hint=hint)


def _hear(done: asyncio.Task[None]) -> None:
    """Retrieve an outcome that nobody may wait for, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()
