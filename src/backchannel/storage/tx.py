"""The transaction as a unit of work sees it, and what every unit needs besides.

A unit is a plain function over a `Tx`. It touches nothing but the database and may run twice. Its facts are handed on
after its commit. Its SQL is what all databases understand, with `?` for values. Drivers run units (`driver.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from backchannel.core.delivery.attempts import NO_RECOURSE, Recourse
from backchannel.core.delivery.splitting import Measure
from backchannel.core.facts import Fact, PolicyShadowed
from backchannel.core.keys import KeyScheme
from backchannel.core.policy.queues import DEFAULT_RULES, SessionRules
from backchannel.core.policy.send_policy import SendDecision
from backchannel.storage.events import UnitEvent
from backchannel.storage.full_text import FullText
from backchannel.storage.tables import Table

Row = tuple[Any, ...]


class Outlets(Protocol):
    """The channels of this process, with the send policy."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def owners(self) -> Sequence[tuple[str, str]]:
        """The owners of channels, as channel and id."""
        ...

    def limit(self, channel: str) -> int | None:
        """Return the longest message of a channel; None if there is no such channel."""
        ...

    def measure(self, channel: str) -> Measure:
        """Return the function that measures a message of a channel."""
        ...

    def streams(self, channel: str) -> bool:
        """True if replies are shown on this channel while they grow."""
        ...

    def file_limit(self, channel: str) -> int:
        """Return the largest file of a channel in bytes; 0 if it takes none."""
        ...

    def has_buttons(self, channel: str) -> bool:
        """True if messages of this channel may have buttons, and can be edited."""
        ...

    def recourse(self, channel: str) -> Recourse:
        """Return what a channel can do about a part that may have arrived."""
        ...

    def decide(self, key: str, override: str | None, channel: str) -> SendDecision:
        """Decide whether a session's text may go there. `override` is the session's own policy."""
        ...


class NoOutlets:
    """Null object: no channel at all."""

    names: Sequence[str] = ()
    owners: Sequence[tuple[str, str]] = ()

    def limit(self, channel: str) -> int | None:
        return None

    def measure(self, channel: str) -> Measure:
        return len

    def streams(self, channel: str) -> bool:
        return False

    def file_limit(self, channel: str) -> int:
        return 0

    def has_buttons(self, channel: str) -> bool:
        return False

    def recourse(self, channel: str) -> Recourse:
        return NO_RECOURSE

    def decide(self, key: str, override: str | None, channel: str) -> SendDecision:
        return SendDecision(True, "nothing is asked")


NO_OUTLETS = NoOutlets()

TranscriptPath = Callable[[str, str], str | None]
"""Returns the path of a transcript's file; None without files."""


def no_transcripts(agent_id: str, session_id: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitContext:
    """Values that every unit may need. The store gives them to the driver, and `Tx` shows them."""

    scheme: KeyScheme
    number: int = 0
    """This process's start number: the fencing token of every run it holds."""
    outlets: Outlets = NO_OUTLETS
    rules: SessionRules = DEFAULT_RULES
    transcript: TranscriptPath = no_transcripts
    reactions: Mapping[type, Sequence[Reaction]] = field(default_factory=dict)
    """The reactions to the events of a unit, in the same commit."""


class Tx(Protocol):
    """One transaction, or one unit inside a group of them."""

    now: int
    """The time of the whole group, in milliseconds."""
    scheme: KeyScheme
    number: int
    outlets: Outlets
    rules: SessionRules
    transcript: TranscriptPath
    free_rows: str
    """Ends a SELECT that skips rows locked by other programs, and locks the others."""
    full_text: FullText
    """The index of words."""

    @property
    def shared_now(self) -> int:
        """The time by the clock that all processes of this database share."""
        ...

    def one(self, sql: str, *values: Any) -> Row | None:
        """Read the first row."""
        ...

    def all(self, sql: str, *values: Any) -> list[Row]: ...

    def run(self, sql: str, *values: Any) -> None:
        """Write; an error may come up only at the end of the unit."""
        ...

    def run_long(self, sql: str, *values: Any) -> None:
        """Write with a statement that takes milliseconds. It runs after the unit, which cannot read the result."""
        ...

    def insert(self, table: Table[Any], then: str = "", /, **values: Any) -> None:
        """Insert a row, its values by column; `then` ends the statement, such as ON CONFLICT."""
        ...

    def insert_one(self, table: Table[Any], then: str, /, **values: Any) -> Row | None:
        """Insert a row, and read what `then` says with RETURNING; None if nothing was inserted."""
        ...

    def insert_numbered(self, table: Table[Any], /, **values: Any) -> int:
        """Insert a row into a table that the database numbers (`Table.counts`), and return its number."""
        ...

    def lock_ledger(self) -> None:
        """Let no other transaction count money until this one ends. A database with one writer has nothing to do."""
        ...

    def tell(self, fact: Fact) -> None:
        """Record a change. Listeners get it after the commit."""
        ...

    def happened(self, event: UnitEvent) -> None:
        """Run the reactions to an event at once."""
        ...


Reaction = Callable[[Tx, Any], None]


def tell_shadowed(tx: Tx, key: str, decision: SendDecision | None) -> None:
    """Record a change that the send policy would deny, but for `shadow`."""
    if decision is not None and decision.would_deny:
        tx.tell(PolicyShadowed(key, decision.reason))


# Processes without a recorded end.
ALIVE = "SELECT number FROM processes WHERE ended_at IS NULL"

# Live runs, written as in their index: `state = 'queued'` alone would not use it.
LIVE = "state IN ('queued', 'running')"
QUEUED = f"{LIVE} AND state = 'queued'"
READY = f"{QUEUED} AND resume_at IS NULL"
# Queued runs that stand in their lane: those that wait for a model too, but not those set aside after crashes.
IN_LANE = f"{QUEUED} AND (resume_at IS NULL OR waits_on IS NOT NULL)"
RUNNING = f"{LIVE} AND state = 'running'"


def marks(values: Sequence[object]) -> str:
    """Return placeholders for an IN; NULL for no values."""
    return ", ".join("?" for _ in values) or "NULL"


def filters(*given: tuple[str, Any]) -> tuple[str, list[Any]]:
    """Build a WHERE of the conditions whose value is not None; also returns the values."""
    kept = [(condition, value) for condition, value in given if value is not None]
    values = [value.value if isinstance(value, Enum) else value for _, value in kept]
    return " AND ".join(["1 = 1", *(condition for condition, _ in kept)]), values


def assignments(names: Iterable[str]) -> str:
    """Return the assignments of an UPDATE, at least one."""
    return " = ?, ".join(names) + " = ?"


def required(row: Row | None) -> Row:
    """Return a row that must exist by a constraint of the database."""
    if row is None:
        raise LookupError("a row that other rows point to is missing: the database was changed by another program")
    return row
