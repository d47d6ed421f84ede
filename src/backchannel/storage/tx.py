"""The small window through which a unit of work sees the database.

A unit is a plain function over a `Tx`. It touches nothing but the database, may be run twice, and tells facts
that are handed on only after its commit. SQL is the part both dialects share, with `?` for values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from backchannel.core.facts import Fact
from backchannel.core.sessions import Session

T = TypeVar("T")
Row = tuple[Any, ...]


class Tx(Protocol):
    """One transaction, or one unit inside a group of them."""

    def one(self, sql: str, *values: Any) -> Row | None:
        """Read the first row."""
        ...

    def all(self, sql: str, *values: Any) -> list[Row]: ...

    def run(self, sql: str, *values: Any) -> int:
        """Write, and tell how many rows changed."""
        ...

    def tell(self, fact: Fact) -> None:
        """Record what changed; handed on after the commit."""
        ...


Unit = Callable[[Tx], T]
Check = Callable[[Session], None]
"""Raises when a message may not be accepted for this session, as it is in the accepting unit."""

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
