"""The contract between the store and a kind of database.

`tx.py` is a unit's view; this module runs units. A kind of database is a class that fulfils `Database`; `databases.py`
finds it by the scheme of a URL. Its dialect, files and errors stay in its own folder.

`look`, `read` and `write` make a unit a method of the store: the class body of `Store` is the list of them. `look`
reads few rows, at once; `read` may take long, and runs in a thread.
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
    """Points where tests make the disk or the process fail. Both get the commit's number, in the thread that
    commits.
    """

    def before_commit(self, number: int) -> None: ...

    def after_commit(self, number: int) -> None: ...


class ProcessKilled(BaseException):
    """Raised by faults: this process does nothing any more."""


@dataclass(frozen=True, slots=True)
class DriverContext:
    """The callbacks and values of a driver."""

    on_facts: Callable[[Sequence[Fact]], None]
    """Called on the event loop after each commit."""
    on_fatal: Callable[[BaseException], None]
    """Called when the outcome of a commit is unknown."""
    context: UnitContext
    faults: Faults | None = None


class DriverProblem(NamedTuple):
    """A problem of a driver that still works, for operators."""

    code: str
    message: str
    hint: str


class Driver(Protocol):
    """Runs units on one database."""

    context: UnitContext
    commits: int
    """The number of commits of this process; `units` is the number of units in them."""
    units: int
    slowest: tuple[float, str]
    """The slowest unit since this was cleared: its time in seconds, and its name."""
    is_closed: bool

    def listen_for_end(self, on_ended: Callable[[], None]) -> None:
        """Call a function, on the event loop, when other processes declare this one dead and its units are refused."""
        ...

    def write(self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a unit in a transaction. The future is done when the unit is durable and its facts are handed on."""
        ...

    def write_within(
        self, key: str | None, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run a unit about one session. Units about other sessions may run at the same time.

        Other sessions may change meanwhile, so the unit must decide nothing by what it reads of them. With None it may
        be about everything, as with `write`.
        """
        ...

    def write_beside(
        self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run a unit that waits for no other unit.

        It may run, and commit, twice. What it reads may change meanwhile. Its facts are not handed on.
        """
        ...

    def enter(
        self, unit: Callable[Concatenate[Tx, P], int], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, int]:
        """Run the unit that gives this process its number. Every later unit has it."""
        ...

    def read(
        self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a unit that only reads and may take long, in a thread.

        It sees one snapshot, with every commit that was answered before.
        """
        ...

    def look(
        self, unit: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """Run a unit that reads few rows. Each of its statements sees the newest commit."""
        ...

    async def check_writable(self) -> None:
        """Check whether a message could be accepted now.

        Raises:
            Unavailable
        """
        ...

    def problems(self) -> Sequence[DriverProblem]:
        """List problems that do not stop the driver."""
        ...

    async def close(self) -> None:
        """Finish the waiting units, then close."""
        ...


class Reader(Protocol):
    """A connection that only reads, for one thread. A failed read raises `Unavailable`."""

    @property
    def newest(self) -> Tx:
        """A view in which each statement sees the newest commit."""
        ...

    def snapshot(self) -> AbstractContextManager[Tx]:
        """Open a snapshot for as long as the context lasts."""
        ...


class Wakeups(Protocol):
    """Texts to all gateways on a database. A text may be lost, late or doubled."""

    def send(self, texts: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


class Database(Protocol):
    """A database as a URL names it, not opened yet. All methods but `connect` may block."""

    @property
    def name(self) -> str:
        """The name for people, without a password."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether several gateways may use it at once."""
        ...

    def exists(self) -> bool:
        """Whether there is anything to read."""
        ...

    def is_whole(self) -> bool:
        """Whether it has no incomplete move."""
        ...

    def hold(self, folder: StateFolder) -> None:
        """Lock it against gateways that may not work on it beside this one.

        Raises:
            StateFolderInUse: another process holds it.
            StartupError: the lock cannot be written.
        """
        ...

    def prepare(self, *, has_past: Callable[[], bool]) -> None:
        """Bring the schema up to date, or create it. `has_past` says whether sessions have left transcripts.

        Raises:
            DatabaseUnusable: it is corrupt, not ours, emptied, or newer than this program.
        """
        ...

    async def connect(self, clock: Clock, around: DriverContext) -> Driver:
        """Begin to work on a prepared database."""
        ...

    def open_wakeups(self, on_text: Callable[[str], None], *, polls: bool) -> Wakeups | None:
        """Listen to other gateways, if there can be some. `on_text` is called on the event loop.

        With `polls`, only tables are used.
        """
        ...

    def open_reader(self, *, is_at_work: bool = False) -> AbstractContextManager[Reader]:
        """Open a reader. With `is_at_work`, a schema that a newer program has added to is no error.

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
    """A unit as a method of the store: a descriptor that binds it to the driver at its first use."""

    def __init__(self, unit: Callable[Concatenate[Tx, P], T]) -> None:
        self.unit = unit
        self.__doc__ = unit.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _bind(self, store: _HasDriver, how: Any) -> Any:
        # The instance's attribute hides this descriptor: the second use costs nothing.
        store.__dict__[self._name] = bound = partial(how, self.unit)
        return bound


class write(_Method[P, T]):  # noqa: N801 - reads as a verb in the table of the store
    """A unit that changes something: durable when its future is done."""

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, asyncio.Future[T]]:
        return cast(Callable[P, "asyncio.Future[T]"], self._bind(store, store.driver.write))


class write_beside(_Method[P, T]):  # noqa: N801
    """A unit that changes a row of this process alone and waits for no other unit."""

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, asyncio.Future[T]]:
        return cast(Callable[P, "asyncio.Future[T]"], self._bind(store, store.driver.write_beside))


class write_within(_Method[P, T]):  # noqa: N801
    """A unit about one session; `within` returns its key from the arguments, or None for everything."""

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
    """A unit that only reads and may take long."""

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, Coroutine[Any, Any, T]]:
        return cast(Callable[P, Coroutine[Any, Any, T]], self._bind(store, store.driver.read))


class look(_Method[P, T]):  # noqa: N801
    """A unit that reads few rows."""

    def __get__(self, store: _HasDriver, owner: type) -> Callable[P, Coroutine[Any, Any, T]]:
        return cast(Callable[P, Coroutine[Any, Any, T]], self._bind(store, store.driver.look))
