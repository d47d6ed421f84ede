"""Full-text search over one table: its bounds, and a scan.

Views ask `Tx.search`. The answer is a row that may contain the text; the view looks closer. A driver with an index of
words answers from that. `scan` is for the others: it reads rows, newest first, until it has read enough for one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from backchannel.storage.tables import Table

_MOST_ROWS = 5000
_MOST_BYTES = 8 * 1024 * 1024
_READ_AT_ONCE = 16


class SearchEffort:
    """Counts what one call has read, in one search or several."""

    def __init__(self) -> None:
        self.reached: int | None = None
        """The lowest place that the last search has looked at; None if it has looked at everything."""
        self._rows = self._bytes = 0

    def count(self, place: int, text: str) -> None:
        self.reached = place or None
        self._rows, self._bytes = self._rows + 1, self._bytes + len(text)

    @property
    def is_spent(self) -> bool:
        return self._rows >= _MOST_ROWS or self._bytes > _MOST_BYTES


def scan(
    read: Callable[..., list[tuple[Any, ...]]],
    table: Table[Any],
    text: str,
    owner: str,
    below: int,
    effort: SearchEffort,
) -> Iterator[tuple[int, str]]:
    """Read the rows of an owner below a place, and give those with the text in any case: each with its place.

    `owner` and the place are the two columns of the table's key.
    """
    column, place = table.key
    where = f"{column} = ? AND {place} < ?"
    sql = f"SELECT {place}, {table.text} FROM {table.name} WHERE {where} ORDER BY {place} DESC LIMIT ?"
    written = msgspec.json.encode(text)[1:-1].decode().lower()  # as it stands in JSON
    while True:
        rows = read(sql, owner, below, _READ_AT_ONCE)
        for below, body in rows:
            effort.count(below, body)
            if written in body.lower():
                yield below, body
            if effort.is_spent:
                return
        if len(rows) < _READ_AT_ONCE:
            effort.reached = None
            return
