"""One of the threads that write to PostgreSQL: it commits the units that wait for it in groups, on its own connection.

All units that wait are run in one transaction, each in a savepoint of its own; a unit that raises is rolled back alone.
So a round trip to the disk is shared by all that wait for it. Nobody is answered before COMMIT returned.

A group in which every unit is about one session locks those sessions; any other locks everything. A unit that said it
is about one session and is about to change something else is run again with everything locked, and so is a group that
the server found fault with. When the connection breaks, another is opened, and only then does this thread go on:

- Broken before COMMIT was sent: nothing of the group counts, and it is run again.
- Broken while COMMIT was under way: the mark that the transaction would have left tells whether it was committed, on
  whichever server answers now (`postgres_marks.py`). It was: all are answered. It was not: the group is run again.
- Commits that were answered are not there (a standby has taken over that did not have them): this process's memory is
  ahead of the database. Its units are refused until it has dropped all its work and entered once more.
- No connection for a while: what waits and what comes is refused as unavailable, until there is one again.
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

from backchannel.errors import Unavailable
from backchannel.storage.cluster import TAKEN_FOR_DEAD
from backchannel.storage.groups import WaitingUnit
from backchannel.storage.postgres_attempt import Attempt, ConcernsOthers
from backchannel.storage.postgres_connection import (
    RETRY_AFTER_MS,
    as_refusal,
    in_words,
    is_in_transaction,
    is_kept_waiting,
    is_lost,
    runs_again,
    unavailable,
)
from backchannel.storage.postgres_marks import CommitMark, are_missing
from backchannel.storage.postgres_server import Server, Writer
from backchannel.storage.tx import UnitContext

log = structlog.get_logger(__name__)

LARGEST_GROUP = 512
MOST_SESSIONS = 64
"""How many units about one session each are a group: the server has room for some thousands of locks."""
LONGEST_GROUP_S = 0.1
"""How long units are added to a group; the last one is run to its end."""
GONE_LIMIT_S = 5.0
"""How long units wait for a connection before they are refused."""
RECONNECT_PAUSE_S = 0.2
MOST_TRIES = 5
"""How often a unit that others got in the way of is run."""
AHEAD = "the database has gone back behind what this gateway knew: it stops its work and begins anew in a moment"


class Desk(Protocol):
    """What a lane asks of the driver that hands it units; all of it is called in the lane's thread."""

    is_ending: threading.Event
    """Set when nothing is waited for any more."""
    is_ahead: bool
    """Whether commits that were answered, by any lane, are not in the database any more."""
    marks: Sequence[CommitMark]
    """Those of all lanes."""

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


class Lane:
    """A thread that writes."""

    def __init__(self, number: int, desk: Desk, server: Server, writer: Writer | None) -> None:
        """Begin to work; without a connection, one is opened when it is needed."""
        self.waiting: SimpleQueue[WaitingUnit | None] = SimpleQueue()
        """What is to be done; None ends the thread."""
        self._desk = desk
        self._mark = desk.marks[number]
        self._server = server
        self._writer = writer
        self._gone_since: float | None = None
        self._is_away_told = False
        self._thread = threading.Thread(target=self._work, name=f"postgres-write-{number}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until it has ended, and close its connection."""
        self.waiting.put(None)
        self._thread.join()
        if self._writer is not None:
            self._writer.connection.close()

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
            if len(group) == LARGEST_GROUP:
                return group
            try:
                entry = self.waiting.get_nowait()
            except Empty:
                return group
        return None

    def _settle(self, group: list[WaitingUnit]) -> None:
        """Commit all of a group, in one transaction or in several, and have it answered; what is settled leaves it."""
        largest = len(group)
        while group:
            part = group[:largest]
            is_narrow = all(entry.is_narrow for entry in part)
            if is_narrow:
                part = part[:MOST_SESSIONS]
            try:
                done = self._committed(part)
            except _Gone as error:
                _refuse(group, unavailable(self._server.name, error))
                done = len(group)
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

    def _committed(self, group: list[WaitingUnit]) -> int:
        """Commit as many units of the group as one transaction takes; returns how many.

        Raises:
            psycopg.Error: none was committed.
        """
        tries = 0
        while True:
            attempt = self._attempt(group)
            try:
                self._carry_out(attempt, group)
                return attempt.done
            except psycopg.Error as error:
                if self._is_committed(attempt, error):
                    self._desk.after_commit()
                    self._take_number(group[: attempt.done])
                    return attempt.done
                if is_kept_waiting(error) and not self._desk.is_ending.is_set():
                    self._server.end_paused(attempt.writer.connection)
                    continue
                tries += 1
                is_alone = len(group) == 1 and attempt.keys is None
                goes_on = is_lost(attempt.writer.connection, error) or (is_alone and runs_again(error))
                if not goes_on or tries == MOST_TRIES:
                    raise

    def _attempt(self, group: Sequence[WaitingUnit]) -> Attempt:
        keys = {entry.key for entry in group if entry.key is not None}
        is_narrow = all(entry.is_narrow for entry in group)
        writer = self._take_writer()
        return Attempt(writer, self._mark, *self._desk.context_and_time(), keys if is_narrow else None)

    def _carry_out(self, attempt: Attempt, group: Sequence[WaitingUnit]) -> None:
        """Run units of a group, and commit them."""
        with attempt.writer.connection.pipeline() as pipeline:
            try:
                attempt.begin(pipeline, self._server.locks, is_group=len(group) > 1)
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
        ends = perf_counter() + LONGEST_GROUP_S
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

    def _is_committed(self, attempt: Attempt, error: psycopg.Error) -> bool:
        """Find out whether an attempt that failed was committed all the same; none is left open."""
        connection = attempt.writer.connection
        is_refused = error.sqlstate is not None or not attempt.is_in_doubt
        if is_refused and not is_lost(connection, error):
            if is_in_transaction(connection):
                connection.execute("ROLLBACK")
            return False
        log.warning("the connection to the database is lost", database=self._server.name, error=in_words(error))
        self._drop()
        if not attempt.is_in_doubt:
            return False
        while (writer := self._reconnected()) is None:
            if self._desk.is_ending.wait(RECONNECT_PAUSE_S):
                raise CommitUnknown("the gateway ends before the database told what became of a commit")
        return writer.found == attempt.mark_number

    def _take_writer(self) -> Writer:
        """Return the connection, opening another when it is gone.

        Raises:
            _Gone: there is none for so long that whoever waits is told.
        """
        while self._writer is None:
            if self._reconnected() is None:
                self._gone_since = self._gone_since or monotonic()
                is_over = monotonic() > self._gone_since + GONE_LIMIT_S
                if is_over or self._desk.is_ending.wait(RECONNECT_PAUSE_S):
                    raise _Gone("there is no connection")
        return self._writer

    def _reconnected(self) -> Writer | None:
        """Try once to open another connection."""
        try:
            self._writer = writer = self._server.join(self._mark)
            are_any_missing = are_missing(writer.connection, self._desk.marks)
        except psycopg.OperationalError as error:
            self._drop()
            tell = log.debug if self._is_away_told else log.warning  # it is tried five times a second
            tell("the database cannot be reached", database=self._server.name, error=in_words(error))
            self._is_away_told = True
            return None
        if self._gone_since is not None:
            log.info("the database is back", database=self._server.name)
        self._gone_since, self._is_away_told = None, False
        if are_any_missing:
            log.warning(
                "commits are missing: a server has taken over that did not have them", database=self._server.name
            )
            self._desk.is_ahead = True
        self._mark.last = writer.found
        return writer

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.connection.close()
        self._writer = None
        self._gone_since = self._gone_since or monotonic()


class CommitUnknown(Exception):
    """Nobody has told yet whether a commit was made."""


class _Gone(psycopg.OperationalError):
    """There has been no connection for a while; nothing was changed."""


def _widen(group: Sequence[WaitingUnit]) -> None:
    for entry in group:
        entry.is_widened = True


def _refuse(group: Sequence[WaitingUnit], error: Exception) -> None:
    for entry in group:
        entry.refuse(error)
