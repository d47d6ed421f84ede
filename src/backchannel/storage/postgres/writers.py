"""The pool of connections that write, one slot for each writer thread.

A server may have no room for all of them. A thread without a connection borrows a free one, so a gateway with one
connection works, only slower. Without any connection, waiting units are refused after a while.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

import psycopg
import structlog

from backchannel.core.seldom import Seldom
from backchannel.errors import DatabaseUnusable
from backchannel.storage.groups import WaitingUnit
from backchannel.storage.postgres.connection import Connection, describe_error, is_lost
from backchannel.storage.postgres.marks import CommitMark, are_missing
from backchannel.storage.postgres.server import Server, Writer

log = structlog.get_logger(__name__)

GONE_LIMIT_S = 5.0
"""How long units wait for a connection before they are refused."""
RECONNECT_PAUSE_S = 0.2
SHORT_PAUSE_S = 2.0
"""The pause before the next try for a connection while others are open."""


class WritersHost(Protocol):
    """The driver as the pool sees it, from any thread."""

    is_ending: threading.Event
    """Set when the driver closes, so that nothing waits any more."""
    is_ahead: bool
    """Whether answered commits of any thread are missing in the database."""

    def connection_lost(self) -> None: ...

    def died(self, group: Sequence[WaitingUnit], cause: BaseException) -> None: ...


class Slot:
    """A slot for one connection. Its commit mark stays when the connection is replaced."""

    __slots__ = ("busy_since", "is_taken", "mark", "next_try", "refused_since", "writer")

    def __init__(self, mark: CommitMark, writer: Writer | None = None) -> None:
        self.mark = mark
        self.writer = writer
        self.is_taken = False
        self.busy_since = 0.0
        """When its user took it."""
        self.next_try = 0.0
        self.refused_since: float | None = None
        """Since when the server refuses its connection."""

    @property
    def connection(self) -> Connection:
        assert self.writer is not None
        return self.writer.connection


class Writers:
    """Hands out connections that write, each to one user at a time."""

    def __init__(self, server: Server, host: WritersHost, count: int, mark: CommitMark, writer: Writer) -> None:
        self.count = count
        self._server = server
        self._host = host
        self._slots = [Slot(mark, writer), *(Slot(CommitMark()) for _ in range(1, count))]
        self._changed = threading.Condition()
        self._gone_since: float | None = None
        """Since when no connection is open."""
        self._tries = 0
        """The number of refused connections."""
        self._told = Seldom()

    @contextmanager
    def taken(self, number: int) -> Iterator[Slot]:
        """Use a connection: the one of this number if it is open, else any free one.

        Raises:
            NoConnection: there is none for so long that whoever waits is told.
        """
        slot = self._take(number)
        slot.busy_since = monotonic()
        try:
            yield slot
        finally:
            self._give_back(slot)

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """Lend a connection for something else than the units of a writer thread.

        Raises:
            NoConnection
        """
        with self.taken(0) as slot:
            try:
                yield slot.connection
            except psycopg.Error as error:
                if is_lost(slot.connection, error):
                    self.drop(slot)
                raise

    def _take(self, number: int) -> Slot:
        before = self._tries
        while True:
            slot = self._next(number)
            if slot is not None:
                if self._is_usable(slot):
                    return slot
                continue
            with self._changed:
                is_tried = self._tries > before  # by anybody: a server that does not answer takes long to tell
                if (self._are_gone_for_long and is_tried) or (self.are_none and self._host.is_ending.is_set()):
                    raise NoConnection("there is no connection")
                self._changed.wait(RECONNECT_PAUSE_S)

    def _is_usable(self, slot: Slot) -> bool:
        """Check whether a taken slot has a connection, or gets one. If not, give it back."""
        is_usable = False
        try:
            is_usable = slot.writer is not None or self._connected(slot)
        finally:
            if not is_usable:
                self._give_back(slot)
        return is_usable

    def _next(self, number: int) -> Slot | None:
        """Take a free slot: one with a connection, or the own one to open it."""
        now = monotonic()
        with self._changed:
            own = self._slots[number]
            if not own.is_taken and (own.writer is not None or now >= own.next_try):
                found: Slot | None = own
            else:
                found = next((slot for slot in self._slots if not slot.is_taken and slot.writer is not None), None)
            if found is not None:
                found.is_taken = True
            return found

    @property
    def _are_gone_for_long(self) -> bool:
        """Whether no connection has been open for so long that waiting units are refused."""
        return self._gone_since is not None and monotonic() > self._gone_since + GONE_LIMIT_S

    def _give_back(self, slot: Slot) -> None:
        with self._changed:
            slot.is_taken = False
            self._changed.notify_all()

    def _connected(self, slot: Slot) -> bool:
        """Try once to open the connection of a taken slot.

        Raises:
            DatabaseUnusable: a newer program has changed the database so that this one cannot go on.
        """
        try:
            slot.writer = writer = self._server.join(slot.mark)
            are_any_missing = are_missing(writer.connection, self.marks)
        except psycopg.OperationalError as error:
            self._refused(slot, error)
            return False
        except DatabaseUnusable as error:
            self._host.died((), error)  # whoever asked for it: this program is of no use here any more
            raise
        if self._gone_since is not None:
            log.info("the database is back", database=self._server.name)
            self._told.forget()
        self._gone_since = slot.refused_since = None
        if are_any_missing:
            log.warning(
                "commits are missing: a server has taken over that did not have them", database=self._server.name
            )
            self._host.is_ahead = True
        slot.mark.last = writer.found
        return True

    def _refused(self, slot: Slot, error: psycopg.OperationalError) -> None:
        self.drop(slot)
        self._tries += 1
        words, now = describe_error(error), monotonic()
        slot.refused_since = slot.refused_since or now
        slot.next_try = now + (RECONNECT_PAUSE_S if self.are_none else SHORT_PAUSE_S)
        if self._told.lets(words, now):
            log.warning("the database cannot be reached", database=self._server.name, error=words)

    def drop(self, slot: Slot) -> None:
        """Close the connection of a taken slot."""
        if slot.writer is not None:
            slot.writer.connection.close()
            slot.writer = None
            self._host.connection_lost()
        if self.are_none:
            self._gone_since = self._gone_since or monotonic()

    def find_mark(self, slot: Slot) -> int | None:
        """Read the commit mark of a slot, on any connection; None if there is none."""
        if self._connected(slot):
            return slot.writer.found if slot.writer is not None else None
        with self._changed:
            other = next((each for each in self._slots if not each.is_taken and each.writer is not None), None)
            if other is None:
                return None
            other.is_taken = True
        try:
            slot.mark.last = slot.mark.load(other.connection)
            return slot.mark.last
        except psycopg.OperationalError as error:
            if is_lost(other.connection, error):
                self.drop(other)
            return None
        finally:
            self._give_back(other)

    def fill(self) -> None:
        """Try again to open refused connections, while others are open."""
        if self.are_none:
            return
        now = monotonic()
        for slot in self._slots:
            with self._changed:
                if slot.is_taken or slot.refused_since is None or now < slot.next_try:
                    continue
                slot.is_taken = True
            try:
                self._connected(slot)
            finally:
                self._give_back(slot)

    @property
    def marks(self) -> Sequence[CommitMark]:
        return [slot.mark for slot in self._slots]

    @property
    def are_none(self) -> bool:
        return all(slot.writer is None for slot in self._slots)

    @property
    def missing(self) -> int:
        """The number of connections that the server has refused for a while."""
        before = monotonic() - GONE_LIMIT_S
        return sum(slot.refused_since is not None and slot.refused_since < before for slot in self._slots)

    def standing(self, for_s: float) -> list[int]:
        """List the server's processes of connections in use for at least as long."""
        before = monotonic() - for_s
        found = [(slot.is_taken and slot.busy_since < before, slot.writer) for slot in self._slots]
        return [writer.pid for is_slow, writer in found if is_slow and writer is not None]

    def close(self) -> None:
        for slot in self._slots:
            if slot.writer is not None:
                slot.writer.connection.close()


class NoConnection(psycopg.OperationalError):
    """No connection has been open for a while. Nothing was changed."""
