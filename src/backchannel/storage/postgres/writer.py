"""One of the threads that write to PostgreSQL: it commits the units that wait for it in groups, on its own connection.

All units that wait are run in one transaction, each in a savepoint of its own; a unit that raises is rolled back alone.
So a round trip to the disk is shared by all that wait for it. Nobody is answered before COMMIT returned.

A group in which every unit is about one session locks those sessions; any other locks everything. A unit that said it
is about one session and is about to change something else is run again with everything locked, and so is a group that
the server found fault with. When the connection breaks, another is opened, and only then does this thread go on:

- Broken before COMMIT was sent: nothing of the group counts, and it is run again.
- Broken while COMMIT was under way: the mark that the transaction would have left tells whether it was committed, on
  whichever server answers now (`marks.py`). It was: all are answered. It was not: the group is run again.
- Commits that were answered are not there (a standby has taken over that did not have them): this process's memory is
  ahead of the database. Its units are refused until it has dropped all its work and entered once more.
- No connection for a while: what waits and what comes is refused as unavailable, until there is one again.
- Another program holds a row or a table: the units of the group are run again one by one, each waits for a moment
  only, and those that need what is locked are refused, naming the holder (`obstacles.py`).
- A full disk, or units that got in each other's way: the units of the group are run again one by one.
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
"""How many units about one session each are a group: the server has room for some thousands of locks."""
_LONGEST_GROUP_S = 0.1
"""How long units are added to a group; the last one is run to its end."""
LOCK_LIMIT_S = 5.0
"""How long a group of units is tried while others hold locks that it needs, before it is refused."""
KNOWN_LOCK_MS = 50
"""How long a row is waited for while another program is known to hold a lock."""
_MOST_TRIES = 5
"""How often a unit that others got in the way of is run."""
AHEAD = "the database has gone back behind what this gateway knew: it stops its work and begins anew in a moment"


class WriterHost(Protocol):
    """What a lane asks of the driver that hands it units; all of it is called in the lane's thread."""

    is_ending: threading.Event
    """Set when nothing is waited for any more."""
    is_ahead: bool
    """Whether commits that were answered, by any lane, are not in the database any more."""
    writers: Writers
    obstacles: Obstacles

    def context_and_time(self) -> tuple[UnitContext, int]: ...

    def before_commit(self) -> None: ...

    def after_commit(self) -> None: ...

    def take_number(self, number: int) -> None:
        """Take the number that a unit has given this process, before any other unit is run."""
        ...

    def note_time(self, took: float, name: str) -> None: ...

    def settled(self, group: Sequence[WaitingUnit]) -> None: ...

    def cast_out(self) -> None: ...

    def died(self, group: Sequence[WaitingUnit], cause: BaseException) -> None: ...


class WriterThread:
    """A thread that writes."""

    def __init__(self, number: int, desk: WriterHost, server: Server) -> None:
        """Begin to work; a connection is opened when it is needed."""
        self.waiting: SimpleQueue[WaitingUnit | None] = SimpleQueue()
        """What is to be done; None ends the thread."""
        self._number = number
        self._desk = desk
        self._server = server
        self._thread = threading.Thread(target=self._work, name=f"postgres-write-{number}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until it has ended."""
        self.waiting.put(None)
        self._thread.join()

    def take_all(self) -> list[WaitingUnit]:
        """Take back what it has not begun with."""
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
                self._desk.died(group, cause)
                return

    def _take_group(self) -> list[WaitingUnit] | None:
        """Wait for a unit, and take those that wait behind it; None when there will be none."""
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
        """Commit all of a group, in one transaction or in several, and have it answered; what is settled leaves it."""
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
                self._desk.settled(group[:done])
                del group[:done]

    def _committed(self, group: list[WaitingUnit], ends: float) -> int:
        """Commit as many units of the group as one transaction takes; returns how many.

        Raises:
            NoConnection, psycopg.Error: none was committed.
            _Locked: none was committed, as another program holds what one of them needs, or others go on until `ends`.
        """
        tries = 0
        while True:
            with self._desk.writers.taken(self._number) as slot:
                attempt = self._attempt(slot, group)
                try:
                    self._carry_out(attempt, group)
                    return attempt.done
                except psycopg.Error as error:
                    if self._is_committed(slot, attempt, error):
                        self._desk.after_commit()
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
        """Decide what follows when others held a lock for longer than it is waited for.

        What waits for a gateway that is at work is tried again; so is what waited for one that stood still.

        Raises:
            _Locked: another program holds a row or a table, or it has taken too long.
        """
        if slot.writer is not None and self._server.end_paused(slot.connection):
            return
        holder = self._desk.obstacles.holder(attempt.writer.pid)
        is_foreign = attempt.has_locks and not holder.is_ours
        if is_foreign:
            self._desk.obstacles.met(holder)
        if is_foreign or monotonic() > ends or self._desk.is_ending.is_set():
            raise _Locked(self._server.name, holder)

    def _attempt(self, slot: Slot, group: Sequence[WaitingUnit]) -> Attempt:
        assert slot.writer is not None
        keys = {entry.key for entry in group if entry.key is not None}
        is_narrow = all(entry.is_narrow for entry in group)
        return Attempt(slot.writer, slot.mark, *self._desk.context_and_time(), keys if is_narrow else None)

    def _carry_out(self, attempt: Attempt, group: Sequence[WaitingUnit]) -> None:
        """Run units of a group, and commit them."""
        self._desk.obstacles.begins(attempt.writer.pid)
        wait_ms = KNOWN_LOCK_MS if self._desk.obstacles.are_any else None
        with attempt.writer.connection.pipeline() as pipeline:
            try:
                attempt.begin(pipeline, self._server.locks, is_group=len(group) > 1, wait_ms=wait_ms)
                self._run_units(attempt, group)
                if not attempt.is_over and attempt.keys is not None and self._is_shut_out(attempt):
                    self._turn_back(attempt, group)
                if not attempt.is_over:
                    self._desk.before_commit()
                    attempt.commit()
            except psycopg.Error:
                with suppress(psycopg.Error):  # it is the first one that matters
                    pipeline.sync()
                raise
        if not attempt.is_over:
            attempt.ended()
            self._desk.after_commit()
            self._take_number(group[: attempt.done])

    def _turn_back(self, attempt: Attempt, group: Sequence[WaitingUnit]) -> None:
        """Take back what was done about sessions that others may have taken over."""
        attempt.roll_back()
        attempt.done = len(group)
        _refuse(group, self._shut_out())
        self._desk.cast_out()

    def _is_shut_out(self, attempt: Attempt) -> bool:
        return self._desk.is_ahead or attempt.is_outcast

    def _shut_out(self) -> Unavailable:
        return Unavailable(AHEAD if self._desk.is_ahead else TAKEN_FOR_DEAD, retryAfterMs=RETRY_AFTER_MS)

    def _run_units(self, attempt: Attempt, group: Sequence[WaitingUnit]) -> None:
        if attempt.keys is None and self._is_shut_out(attempt):
            self._desk.cast_out()
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
            self._desk.note_time(took, entry.name)
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
                self._desk.take_number(entry.result)

    def _is_committed(self, slot: Slot, attempt: Attempt, error: psycopg.Error) -> bool:
        """Find out whether an attempt that failed was committed all the same; none is left open."""
        connection = attempt.writer.connection
        is_refused = error.sqlstate is not None or not attempt.is_in_doubt
        if is_refused and not is_lost(connection, error):
            if is_in_transaction(connection):
                connection.execute("ROLLBACK")
            return False
        log.warning("the connection to the database is lost", database=self._server.name, error=describe_error(error))
        self._desk.writers.drop(slot)
        if not attempt.is_in_doubt:
            return False
        while (found := self._desk.writers.find_mark(slot)) is None:
            if self._desk.is_ending.wait(RECONNECT_PAUSE_S):
                raise CommitUnknown("the gateway ends before the database told what became of a commit")
        return found == attempt.mark_number


class CommitUnknown(Exception):
    """Nobody has told yet whether a commit was made."""


class _Locked(Exception):
    """Others hold a lock that a unit needs; nothing was changed."""

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
