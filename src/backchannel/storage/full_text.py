"""The seam for full-text search: what a database with an index of words can do.

`Tx.full_text` is one of these. Which words a text has, what a query means and how messages are ranked is the same for
all databases, in `core/full_text/`. A database keeps the words, and finds the messages that have those of a query.

Messages that are not in the index yet *wait*. Searches read them one by one (`storage/views/searching.py`). So a
message is found from the commit on that wrote it, even if the index takes it in later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from backchannel.core.full_text.queries import SearchQuery
from backchannel.core.full_text.ranking import SearchText
from backchannel.core.messages import Message

_NO_LETTER = re.compile(r"[^a-z0-9]+")


class IndexEntry(NamedTuple):
    """The words of one message, and their owners."""

    position: int
    id: str
    text: SearchText
    owners: tuple[str, ...]


class IndexMatch(NamedTuple):
    """The part of a SELECT that finds the messages `m` with the words of a query."""

    source: str
    """What stands behind FROM."""
    condition: str
    position: str
    value: str
    """What the one placeholder of `condition` stands for."""


class Executes(Protocol):
    """The part of a `Tx` that an index writes with."""

    def all(self, sql: str, *values: Any) -> list[tuple[Any, ...]]: ...

    def run(self, sql: str, *values: Any) -> None: ...

    def run_long(self, sql: str, *values: Any) -> None: ...


class FullText(Protocol):
    """An index of words."""

    position: str
    """The column that numbers the messages `m` in the order in which they were written."""
    waiting: str
    """What stands behind FROM for the messages `m` that are not indexed."""
    waiting_position: str
    """The same as `position`, for those that wait."""

    def columns(self, message: Message, key: str, session_id: str) -> Mapping[str, Any]:
        """Make the columns of a new message that index it in the same statement, if that is cheap here."""
        ...

    def match(self, query: SearchQuery, owners: Sequence[str], *, with_tools: bool) -> IndexMatch:
        """Find messages by words, of any of these owners; of all if there are none."""
        ...

    def add(self, tx: Executes, entries: Sequence[IndexEntry]) -> int:
        """Index messages that wait, and return how many; the others are gone, or indexed already."""
        ...

    def remove(self, tx: Executes, entries: Sequence[IndexEntry]) -> None:
        """Remove the words of messages that are about to be removed and do not wait."""
        ...


def session_owner(session_id: str) -> str:
    """Name a transcript as an owner of words: letters and digits only, and short."""
    return "s" + _NO_LETTER.sub("", session_id.lower())[:12]


def agent_owner(agent_id: str) -> str:
    """Name an agent as an owner of words. Two may have one name: whoever searches compares their ids too."""
    return "a" + _NO_LETTER.sub("", agent_id.lower())


def owners_of(key: str, session_id: str) -> tuple[str, str]:
    """Name the owners of a message."""
    return session_owner(session_id), agent_owner(key.split(":", 2)[1])
