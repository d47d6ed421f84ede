"""The contract between the units of work and the database: what a unit sees, and what runs it.

A unit is a plain function over a `Tx`. It touches nothing but the database, may be run twice, and records facts
that are handed on only after its commit. SQL is the part both dialects share, with `?` for values.

`look`, `read` and `write` make a unit a method of the store: the class body of `Store` is the list of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from backchannel.core.facts import Fact, PolicyShadowed
from backchannel.core.keys import KeyScheme
from backchannel.core.send_policy import SendDecision
from backchannel.core.sessions import Session
from backchannel.storage.events import UnitEvent

P = ParamSpec("P")
T = TypeVar("T")
Row = tuple[Any, ...]


class Outlets(Protocol):
    """Where deliveries can go: the channels of this process, and what the send policy says of them."""

    @property
    def names(self) -> Sequence[str]: ...

    def limit(self, channel: str) -> int | None:
        """Tell how long a message of this channel may be; None when there is no such channel."""
        ...

    def decide(self, key: str, override: str | None, channel: str) -> SendDecision:
        """Ask whether a session's text may go there; `override` is the session's own policy."""
        ...


class NoOutlets:
    """Null object: no channel at all."""

    names: Sequence[str] = ()

    def limit(self, channel: str) -> int | None:
        return None

    def decide(self, key: str, override: str | None, channel: str) -> SendDecision:
        return SendDecision(True, "nothing is asked")


NO_OUTLETS = NoOutlets()

TranscriptPath = Callable[[str, str], str | None]
"""Tells where the transcript of an agent's session id is kept as a file; None where there are no files."""


def no_transcripts(agent_id: str, session_id: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitContext:
    """What every unit may need besides the database; the store gives it to the driver, and `Tx` shows it."""

    scheme: KeyScheme
    number: int = 0
    """This process's start number: the fencing token of every run it holds."""
    outlets: Outlets = NO_OUTLETS
    tells_failures: bool = True
    """Whether somebody whose message could not be answered is told so."""
    transcript: TranscriptPath = no_transcripts
    reactions: Mapping[type, Sequence[Reaction]] = field(default_factory=dict)
    """What follows the events of a unit, in the same commit."""


class Tx(Protocol):
    """One transaction, or one unit inside a group of them."""

    now: int
    """The time of the whole group, in milliseconds."""
    scheme: KeyScheme
    number: int
    outlets: Outlets
    tells_failures: bool
    transcript: TranscriptPath

    def one(self, sql: str, *values: Any) -> Row | None:
        """Read the first row."""
        ...

    def all(self, sql: str, *values: Any) -> list[Row]: ...

    def run(self, sql: str, *values: Any) -> int:
        """Write, and return how many rows changed."""
        ...

    def tell(self, fact: Fact) -> None:
        """Record what changed; handed on after the commit."""
        ...

    def happened(self, event: UnitEvent) -> None:
        """Do at once what follows from an event, as the table of reactions says."""
        ...


Reaction = Callable[[Tx, Any], None]


Unit = Callable[[Tx], T]
Check = Callable[[Session], SendDecision | None]
"""Raises when a message may not be accepted for this session, as it is in the accepting unit; else says why it may."""


def tell_shadowed(tx: Tx, key: str, decision: SendDecision | None) -> None:
    """Record that a decision which is followed was only let through by `shadow`."""
    if decision is not None and decision.would_deny:
        tx.tell(PolicyShadowed(key, decision.reason))


class Driver(Protocol):
    """Runs units on one database."""

    context: UnitContext
    commits: int
    """How many commits this process has made; `units` is how many units of work they held."""
    units: int
    slowest: tuple[float, str]
    """The unit that took longest since this was last cleared, in seconds, and its name."""
    is_closed: bool
    is_full: bool

    def write(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a unit in a transaction; the future is done once it is durable."""
        ...

    def read(
        self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a unit that only reads and may take long; it sees one state, with every commit answered before."""
        ...

    def look(
        self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a unit that reads a row or a few; each of its statements sees the newest commit."""
        ...

    async def close(self) -> None:
        """Finish what waits, then close."""
        ...


class _HasDriver(Protocol):
    @property
    def driver(self) -> Driver: ...


class _Method(Generic[P, T]):
    """A unit as a method of the store: a descriptor that binds it to the store's driver at its first use."""

    def __init__(self, unit: Callable[Concatenate[Tx, P], T]) -> None:
        self.unit = unit
        self.__doc__ = unit.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _bind(self, store: _HasDriver, how: Any) -> Any:
        # Kept in the instance, which comes before this descriptor: the second use costs nothing.
        store.__dict__[self._name] = bound = partial(how, self.unit)
        return bound


class write(_Method[P, T]):  # noqa: N801 - reads as a verb in the table of the store
    """A unit that changes something: durable when its future is done."""

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, asyncio.Future[T]]:
        return cast(Callable[P, "asyncio.Future[T]"], self._bind(store, store.driver.write))


class read(_Method[P, T]):  # noqa: N801
    """A unit that only reads and may take long: it runs beside the event loop."""

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, Coroutine[Any, Any, T]]:
        return cast(Callable[P, Coroutine[Any, Any, T]], self._bind(store, store.driver.read))


class look(_Method[P, T]):  # noqa: N801
    """A unit that reads a row or a few."""

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, Coroutine[Any, Any, T]]:
        return cast(Callable[P, Coroutine[Any, Any, T]], self._bind(store, store.driver.look))


# Runs that are not finished, in the words of their index: with `state = 'queued'` alone it would not be used.
LIVE = "state IN ('queued', 'running')"
QUEUED = f"{LIVE} AND state = 'queued'"
READY = f"{QUEUED} AND resume_at IS NULL"
RUNNING = f"{LIVE} AND state = 'running'"


def columns(names: Sequence[str], prefix: str = "") -> str:
    """List columns for a SELECT, in the order of a struct's fields."""
    return ", ".join(prefix + name for name in names)


def required(row: Row | None) -> Row:
    """Take a row that must be there, by the database's own constraints."""
    if row is None:
        raise LookupError("a row that other rows point to is missing: the database was changed by another program")
    return row
