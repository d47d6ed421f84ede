"""A thread that writes to PostgreSQL: group commit on its own connection.

All waiting units run in one transaction, each in its own savepoint. A unit that raises is rolled back alone. So they
share one wait for the disk. Nobody is answered before COMMIT returns.

A group of units that are each about one session locks those sessions. Any other group locks everything. A unit about
one session that is about to write something else runs again with everything locked. So does a group that the server
rejects. When the connection breaks, the thread opens another before it continues:

- Broken before COMMIT was sent: the group has no effect, and runs again.
- Broken during COMMIT: the mark that the transaction writes says whether it was committed, on whichever server answers
  (`marks.py`). If it was, all are answered. If not, the group runs again.
- Answered commits are missing, because a standby has taken over without them: the memory of this process is ahead of
  the database. Its units are refused until it has dropped all work and entered again.
- No connection for a while: units are refused as unavailable until there is one.
- Another program holds a row or a table: the units run again one by one, each with a short wait. Those that need the
  lock are refused, with the holder's name (`obstacles.py`).
- A full disk, or units that conflict: the units run again one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter
from typing import Protocol

import psycopg
import structlog

from backchannel.errors import DatabaseLocked, Unavailable
from backchannel.storage.groups import WaitingUnit
from backchannel.storage.postgres.attempt import Attempt, ConcernsOthers
from backchannel.storage.postgres.connection import (
    RETRY_AFTER_MS,
    as_refusal,
    describe_error,
    is_in_transaction,
    is_kept_waiting,
    is_lost,
    runs_again,
    unavailable,
)
from backchannel.storage.postgres.obstacles import LockHolder, Obstacles
from backchannel.storage.postgres.server import Server
from backchannel.storage.postgres.writers import RECONNECT_PAUSE_S, NoConnection, Slot, Writers
from backchannel.storage.tx import UnitContext
from backchannel.storage.units.cluster.members import TAKEN_FOR_DEAD

log = structlog.get_logger(__name__)

_LARGEST_GROUP = 512
MOST_SESSIONS = 64
"""The most units of sessions in a group: the server has room for some thousand locks."""
_LONGEST_GROUP_S = 0.1
"""How long units are added to a group. The last unit still runs to its end."""
LOCK_LIMIT_S = 5.0
"""How long a group waits for the locks of others before it is refused."""
KNOWN_LOCK_MS = 50
"""How long to wait for a row while another program is known to hold a lock."""
_MOST_TRIES = 5
"""How often a unit runs that conflicts with others."""
AHEAD = "the database has gone back behind what this gateway knew: it stops its work and begins anew in a moment"


class WriterHost(Protocol):
    """The driver as a writer thread sees it, in that thread."""

    is_ending: threading.Event
    """Set when the driver closes, so that nothing waits any more."""
    is_ahead: bool
    """Whether answered commits of any thread are missing in the database."""
    writers: Writers
    obstacles: Obstacles

    def context_and_time(self) -> tuple[UnitContext, int]: ...

    def before_commit(self) -> None: ...

    def after_commit(self) -> None: ...

    def take_number(self, number: int) -> None:
        """Take the number that a unit has given this process, before the next unit runs."""
        ...

    def note_time(self, took: float, name: str) -> None: ...

    def settled(self, group: Sequence[WaitingUnit]) -> None: ...

    def cast_out(self) -> None: ...

    def died(self, group: Sequence[WaitingUnit], cause: BaseException) -> None: ...


class WriterThread:
    """A thread that writes, and its queue."""

    def __init__(self, number: int, host: WriterHost, server: Server) -> None:
        """Start the thread. It opens a connection when it needs one."""
        self.waiting: SimpleQueue[WaitingUnit | None] = SimpleQueue()
        """The queue; None ends the thread."""
        self._number = number
        self._host = host
        self._server = server
        self._thread = threading.Thread(target=self._work, name=f"postgres-write-{number}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the thread to end."""
        self.waiting.put(None)
        self._thread.join()

    def take_all(self) -> list[WaitingUnit]:
        """Take back the units that the thread has not begun."""
        taken: list[WaitingUnit] = []
        with suppress(Empty):
            while (entry := self.waiting.get_nowait()) is not None:
                taken.append(entry)
        return taken

    def _work(self) -> None:
        while (group := self._take_group()) is not None:
            try:
                self._settle(group)
            except BaseException as cause:  # noqa: BLE001 - whatever it was: with a transaction left open nothing goes on
                self._host.died(group, cause)
                return

    def _take_group(self) -> list[WaitingUnit] | None:
        """Wait for a unit, and take those behind it; None at the end."""
        group: list[WaitingUnit] = []
        entry = self.waiting.get()
        while entry is not None:
            group.append(entry)
            if len(group) == _LARGEST_GROUP:
                return group
            try:
                entry = self.waiting.get_nowait()
            except Empty:
                return group
        return None

    def _settle(self, group: list[WaitingUnit]) -> None:
        """Commit a group in one or several transactions, and have it answered. Settled units leave the group."""
        largest, ends = len(group), monotonic() + LOCK_LIMIT_S
        while group:
            part = group[:largest]
            is_narrow = all(entry.is_narrow for entry in part)
            if is_narrow:
                part = part[:MOST_SESSIONS]
            try:
                done = self._committed(part, ends)
            except NoConnection as error:
                _refuse(group, unavailable(self._server.name, error))
                done = len(group)
            except _Locked as locked:
                if len(part) > 1 and monotonic() < ends:
                    largest = 1  # only those that need what is locked are refused
                    continue
                done = len(part) if monotonic() < ends else len(group)
                _refuse(group[:done], locked.refusal)
            except psycopg.Error as error:
                if is_narrow:
                    _widen(part)
                    continue
                if len(part) > 1:
                    largest = 1  # only those that cannot be done are refused
                    continue
                _refuse(part, as_refusal(self._server.name, error))
                done = 1
            if done:
                self._host.settled(group[:done])
                del group[:done]

    def _committed(self, group: list[WaitingUnit], ends: float) -> int:
        """Commit as many units of the group as one transaction takes; returns their number.

        Raises:
            NoConnection, psycopg.Error: none was committed.
            _Locked: none was committed, as another program holds what one of them needs, or others go on until `ends`.
        """
        tries = 0
        while True:
            with self._host.writers.taken(self._number) as slot:
                attempt = self._attempt(slot, group)
                try:
                    self._carry_out(attempt, group)
                    return attempt.done
                except psycopg.Error as error:
                    if self._is_committed(slot, attempt, error):
                        self._host.after_commit()
                        self._take_number(group[: attempt.done])
                        return attempt.done
                    if is_kept_waiting(error):
                        self._stand(slot, attempt, ends)
                        continue
                    tries += 1
                    is_alone = len(group) == 1 and attempt.keys is None
                    goes_on = is_lost(attempt.writer.connection, error) or (is_alone and runs_again(error))
                    if not goes_on or tries == _MOST_TRIES:
                        raise

    def _stand(self, slot: Slot, attempt: Attempt, ends: float) -> None:
        """Decide what follows when others held a lock for too long.

        A wait for another gateway is tried again, also for one that stood still.

        Raises:
            _Locked: another program holds a row or a table, or it has taken too long.
        """
        if slot.writer is not None and self._server.end_paused(slot.connection):
            return
        holder = self._host.obstacles.holder(attempt.writer.pid)
        is_foreign = attempt.has_locks and not holder.is_ours
        if is_foreign:
            self._host.obstacles.met(holder)
        if is_foreign or monotonic() > ends or self._host.is_ending.is_set():
            raise _Locked(self._server.name, holder)

    def _attempt(self, slot: Slot, group: Sequence[WaitingUnit]) -> Attempt:
        assert slot.writer is not None
        keys = {entry.key for entry in group if entry.key is not None}
        is_narrow = all(entry.is_narrow for entry in group)
        return Attempt(slot.writer, slot.mark, *self._host.context_and_time(), keys if is_narrow else None)

    def _carry_out(self, attempt: Attempt, group: Sequence[WaitingUnit]) -> None:
        """Run the units of a group, and commit them."""
        self._host.obstacles.begins(attempt.writer.pid)
        wait_ms = KNOWN_LOCK_MS if self._host.obstacles.are_any else None
        with attempt.writer.connection.pipeline() as pipeline:
            try:
                attempt.begin(pipeline, self._server.locks, is_group=len(group) > 1, wait_ms=wait_ms)
                self._run_units(attempt, group)
                if not attempt.is_over and attempt.keys is not None and self._is_shut_out(attempt):
                    self._turn_back(attempt, group)
                if not attempt.is_over:
                    self._host.before_commit()
                    attempt.commit()
            except psycopg.Error:
                with suppress(psycopg.Error):  # it is the first one that matters
                    pipeline.sync()
                raise
        if not attempt.is_over:
            attempt.ended()
            self._host.after_commit()
            self._take_number(group[: attempt.done])

    def _turn_back(self, attempt: Attempt, group: Sequence[WaitingUnit]) -> None:
        """Undo changes of sessions that others may have taken over."""
        attempt.roll_back()
        attempt.done = len(group)
        _refuse(group, self._shut_out())
        self._host.cast_out()

    def _is_shut_out(self, attempt: Attempt) -> bool:
        return self._host.is_ahead or attempt.is_outcast

    def _shut_out(self) -> Unavailable:
        return Unavailable(AHEAD if self._host.is_ahead else TAKEN_FOR_DEAD, retryAfterMs=RETRY_AFTER_MS)

    def _run_units(self, attempt: Attempt, group: Sequence[WaitingUnit]) -> None:
        if attempt.keys is None and self._is_shut_out(attempt):
            self._host.cast_out()
        ends = perf_counter() + _LONGEST_GROUP_S
        for entry in group:
            began = perf_counter()
            try:
                self._run_unit(attempt, entry)
            except ConcernsOthers:
                entry.is_widened = True
                attempt.leave()
                return
            took = perf_counter() - began
            self._host.note_time(took, entry.name)
            if began + took > ends:
                return

    def _run_unit(self, attempt: Attempt, entry: WaitingUnit) -> None:
        entry.error, entry.facts = None, []
        attempt.tx.facts = entry.facts
        if attempt.keys is None and self._is_shut_out(attempt) and not entry.is_entry:
            entry.refuse(self._shut_out())
            attempt.unit_ended(is_kept=False)
            return
        try:
            entry.result = entry.unit(attempt.tx, *entry.args, **entry.kwargs)
        except (psycopg.Error, ConcernsOthers):
            raise  # which statement it comes from is not known: of a group, none counts
        except Exception as error:  # noqa: BLE001 - the edge of a unit: its caller is told, and the rest of the group goes on
            entry.refuse(error)
        attempt.unit_ended(is_kept=entry.error is None)

    def _take_number(self, group: Sequence[WaitingUnit]) -> None:
        for entry in group:
            if entry.is_entry and entry.error is None:
                self._host.take_number(entry.result)

    def _is_committed(self, slot: Slot, attempt: Attempt, error: psycopg.Error) -> bool:
        """Find out whether a failed attempt was committed after all. No attempt stays open."""
        connection = attempt.writer.connection
        is_refused = error.sqlstate is not None or not attempt.is_in_doubt
        if is_refused and not is_lost(connection, error):
            if is_in_transaction(connection):
                connection.execute("ROLLBACK")
            return False
        log.warning("the connection to the database is lost", database=self._server.name, error=describe_error(error))
        self._host.writers.drop(slot)
        if not attempt.is_in_doubt:
            return False
        while (found := self._host.writers.find_mark(slot)) is None:
            if self._host.is_ending.wait(RECONNECT_PAUSE_S):
                raise CommitUnknown("the gateway ends before the database told what became of a commit")
        return found == attempt.mark_number


class CommitUnknown(Exception):
    """The outcome of a commit is not known yet."""


class _Locked(Exception):
    """Others hold a lock that a unit needs. Nothing was changed."""

    def __init__(self, name: str, holder: LockHolder) -> None:
        super().__init__(str(holder))
        self.refusal = DatabaseLocked(
            f"the database {name} cannot be changed now: {holder}", retryAfterMs=RETRY_AFTER_MS
        )


def _widen(group: Sequence[WaitingUnit]) -> None:
    for entry in group:
        entry.is_widened = True


def _refuse(group: Sequence[WaitingUnit], error: Exception) -> None:
    for entry in group:
        entry.refuse(error)
