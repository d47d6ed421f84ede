"""The contract between the store and a database: what a driver does, and what is asked before one is opened.

`tx.py` is what a unit of work sees; this is what runs it. A kind of database is a class that fulfils `Database`, found
by the scheme of its URL in `databases.py`. Its dialect, its files and its errors stay in its own modules.

`look`, `read` and `write` make a unit a method of the store: the class body of `Store` is the list of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from backchannel.core.contracts import Clock
from backchannel.core.facts import Fact
from backchannel.storage.files.folder import StateFolder
from backchannel.storage.tx import Tx, UnitContext

P = ParamSpec("P")
T = TypeVar("T")


class Faults(Protocol):
    """Where tests make the disk or the process fail; both are called with the commit's number, where it is made."""

    def before_commit(self, number: int) -> None: ...

    def after_commit(self, number: int) -> None: ...


class ProcessKilled(BaseException):
    """Raised by faults: from here on this process does nothing any more."""


@dataclass(frozen=True, slots=True)
class DriverContext:
    """What a driver works with besides its database."""

    on_facts: Callable[[Sequence[Fact]], None]
    """Called on the event loop after each commit."""
    on_fatal: Callable[[BaseException], None]
    """Called when it is not known whether a commit was made."""
    context: UnitContext
    faults: Faults | None = None


class DriverProblem(NamedTuple):
    """Something that keeps a driver from working as it should, for people who look after it."""

    code: str
    message: str
    hint: str


class Driver(Protocol):
    """Runs units on one database."""

    context: UnitContext
    commits: int
    """How many commits this process has made; `units` is how many units of work they held."""
    units: int
    slowest: tuple[float, str]
    """The unit that took longest since this was last cleared, in seconds, and its name."""
    is_closed: bool
    on_ended: Callable[[], None]
    """Called on the event loop when other processes have taken this one for dead, and its units are refused."""

    def write(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a unit in a transaction; the future is done once it is durable, and its facts have been handed on."""
        ...

    def write_within(
        self, key: str | None, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run a unit that is about one session: units about others may be run beside it.

        What it reads of other sessions may change meanwhile, so it must decide nothing by that. With None it may be
        about everything, as with `write`.
        """
        ...

    def write_beside(
        self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run a unit that waits for no other, however many there are.

        It may be run, and committed, twice. What it reads may change meanwhile. Its facts are not told.
        """
        ...

    def enter(
        self, unit: Callable[Concatenate[Tx, P], int], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, int]:
        """Run the unit that gives this process its number; every later unit has it."""
        ...

    def read(
        self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a unit that only reads and may take long, beside the event loop.

        It sees one state, with every commit that was answered before.
        """
        ...

    def look(
        self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a unit that reads a row or a few; each of its statements sees the newest commit."""
        ...

    async def check_writable(self) -> None:
        """Find out whether a message could be accepted now.

        Raises:
            Unavailable
        """
        ...

    def problems(self) -> Sequence[DriverProblem]:
        """List what is wrong, as far as it works all the same."""
        ...

    async def close(self) -> None:
        """Finish what waits, then close."""
        ...


class Reader(Protocol):
    """A connection that only reads, for one thread. Its reads raise `Unavailable` when they fail."""

    @property
    def newest(self) -> Tx:
        """Each statement sees the newest commit."""
        ...

    def snapshot(self) -> AbstractContextManager[Tx]:
        """See one state for as long as the context lasts, whatever is committed meanwhile."""
        ...


class Wakeups(Protocol):
    """Texts that go to all gateways on a database; one may be lost, or come late or twice."""

    def send(self, texts: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


class Database(Protocol):
    """A database as a URL names it; nothing is opened yet. All but `connect` may block: not for the event loop."""

    @property
    def name(self) -> str:
        """How people know it; a password is not in it."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether several gateways may work on it at once."""
        ...

    def exists(self) -> bool:
        """Whether there is anything to read."""
        ...

    def is_whole(self) -> bool:
        """Whether no move into it has been broken off."""
        ...

    def hold(self, folder: StateFolder) -> None:
        """Keep away whoever may not work on it beside this one: other gateways, where it cannot serve several.

        Raises:
            StateFolderInUse: another process holds it.
            StartupError: the lock cannot be written.
        """
        ...

    def prepare(self, *, has_past: Callable[[], bool]) -> None:
        """Make it current, creating it if there is none; `has_past` tells whether sessions have left transcripts.

        Raises:
            DatabaseUnusable: it is corrupt, not ours, emptied, or newer than this program.
        """
        ...

    async def connect(self, clock: Clock, around: DriverContext) -> Driver:
        """Begin to work on a prepared database."""
        ...

    def open_wakeups(self, on_text: Callable[[str], None], *, polls: bool) -> Wakeups | None:
        """Listen to other gateways, where there may be some; `on_text` is called on the event loop.

        With `polls` nothing is asked of the database but tables.
        """
        ...

    def open_reader(self, *, is_at_work: bool = False) -> AbstractContextManager[Reader]:
        """Read beside whoever writes; a gateway that is at work goes on when a newer program has added to the schema.

        Raises:
            DatabaseUnusable: it is corrupt, not ours, or of another version.
            Unavailable: it cannot be reached.
        """
        ...

    def file_beside(self, folder: StateFolder, ending: str) -> Path:
        """Name a file of this process that belongs to the database."""
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


class write_beside(_Method[P, T]):  # noqa: N801
    """A unit that changes a row of this process alone, and waits for no other unit."""

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, asyncio.Future[T]]:
        return cast(Callable[P, "asyncio.Future[T]"], self._bind(store, store.driver.write_beside))


class write_within(_Method[P, T]):  # noqa: N801
    """A unit that changes what is one session's own; `within` tells from its arguments which, or None if any."""

    def __init__(self, unit: Callable[Concatenate[Tx, P], T], within: Callable[..., str | None]) -> None:
        super().__init__(unit)
        self._within = within

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, asyncio.Future[T]]:
        return cast(Callable[P, "asyncio.Future[T]"], self._bind(store, partial(_write_within, store, self._within)))


def _write_within(
    store: _HasDriver, within: Callable[..., str | None], unit: Callable[..., T], *args: Any, **kwargs: Any
) -> asyncio.Future[T]:
    return store.driver.write_within(within(*args), unit, *args, **kwargs)


class read(_Method[P, T]):  # noqa: N801
    """A unit that only reads and may take long: it runs beside the event loop."""

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, Coroutine[Any, Any, T]]:
        return cast(Callable[P, Coroutine[Any, Any, T]], self._bind(store, store.driver.read))


class look(_Method[P, T]):  # noqa: N801
    """A unit that reads a row or a few."""

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, Coroutine[Any, Any, T]]:
        return cast(Callable[P, Coroutine[Any, Any, T]], self._bind(store, store.driver.look))
