"""Group commit: the parts that both drivers share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import structlog

from backchannel.core.facts import Fact
from backchannel.core.keys import KeyScheme
from backchannel.storage.events import UnitEvent
from backchannel.storage.full_text import FullText
from backchannel.storage.tables import Table
from backchannel.storage.tx import Row, UnitContext, required

log = structlog.get_logger(__name__)
NO_CONTEXT = UnitContext(scheme=KeyScheme())


class UnitTx(ABC):
    """The part of a `Tx` that is the same on every database."""

    __slots__ = (
        "facts",
        "now",
        "number",
        "outlets",
        "reactions",
        "rules",
        "scheme",
        "transcript",
    )
    free_rows = ""
    full_text: FullText

    def __init__(self, context: UnitContext, now: int) -> None:
        self.facts: list[Fact] = []
        self.now = now
        self.scheme = context.scheme
        self.number = context.number
        self.outlets = context.outlets
        self.rules = context.rules
        self.transcript = context.transcript
        self.reactions = context.reactions

    @property
    def shared_now(self) -> int:
        return self.now

    @abstractmethod
    def one(self, sql: str, *values: Any) -> Row | None: ...

    @abstractmethod
    def all(self, sql: str, *values: Any) -> list[Row]: ...

    @abstractmethod
    def run(self, sql: str, *values: Any) -> None: ...

    def run_long(self, sql: str, *values: Any) -> None:
        self.run(sql, *values)

    def insert(self, table: Table[Any], then: str = "", /, **values: Any) -> None:
        self.run(table.inserts[then, *values], *values.values())

    def insert_one(self, table: Table[Any], then: str, /, **values: Any) -> Row | None:
        return self.one(table.inserts[then, *values], *values.values())

    def insert_numbered(self, table: Table[Any], /, **values: Any) -> int:
        row = self.one(table.inserts[f"RETURNING {table.counts}", *values], *values.values())
        return int(required(row)[0])

    def lock_ledger(self) -> None:
        return  # a database with one writer needs no lock

    def tell(self, fact: Fact) -> None:
        self.facts.append(fact)

    def happened(self, event: UnitEvent) -> None:
        for react in self.reactions[type(event)]:
            react(self, event)


class WaitingUnit:
    """A unit that waits for the writer, and its outcome."""

    __slots__ = ("args", "error", "facts", "future", "is_entry", "is_widened", "key", "kwargs", "result", "unit")

    def __init__(
        self, unit: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], future: asyncio.Future[Any]
    ) -> None:
        self.unit = unit
        self.args = args
        self.kwargs = kwargs
        self.future = future
        self.is_entry = False
        """Whether it gives this process its number."""
        self.key: str | None = None
        """The session that it is about; None means that it may be about everything."""
        self.is_widened = False
        """Whether it turned out to be about more than its session."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.facts: list[Fact] = []

    @property
    def is_narrow(self) -> bool:
        return self.key is not None and not self.is_widened

    def refuse(self, error: Exception) -> None:
        self.error, self.facts = error, []

    @property
    def name(self) -> str:
        function = self.unit.func if isinstance(self.unit, partial) else self.unit
        return f"{function.__module__.rpartition('.')[2]}.{getattr(function, '__qualname__', 'unit')}"


def answer(group: Iterable[WaitingUnit], on_facts: Callable[[Sequence[Fact]], None]) -> None:
    """Hand on the facts of committed units, and answer their callers, on the event loop."""
    for entry in group:
        try:
            if entry.facts:
                on_facts(entry.facts)
        except Exception:  # the edge of whoever listens
            # The change is durable: its caller, and the rest of the group, must be answered.
            log.exception("facts of a commit were not taken")
        if entry.future.done():
            continue
        if entry.error is not None:
            entry.future.set_exception(entry.error)
        else:
            entry.future.set_result(entry.result)


def refused(future: asyncio.Future[Any], error: Exception) -> asyncio.Future[Any]:
    """Refuse a unit before it is taken. An error that nobody retrieves is not logged."""
    future.set_exception(error)
    future.exception()  # marked as retrieved, so that asyncio does not log it
    return future
