"""The index of words in SQLite: FTS5 without a copy of the texts.

A row written by a commit of its own costs FTS5 a segment: 57 µs, against 8 µs in a batch. So a new message goes into
the table `unindexed` by a trigger, and the service `search` takes some hundred into the index at once. They go over as
one JSON value: one long statement, which holds neither the event loop nor the interpreter lock.

To remove a row, FTS5 needs the same text again. It is made from the message, so its words must not change: see
`core/full_text/words.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from backchannel.core.full_text.queries import SearchQuery, Term
from backchannel.core.full_text.words import indexed_text
from backchannel.core.messages import Message
from backchannel.storage.full_text import Executes, IndexEntry, IndexMatch

_ADD = (
    "INSERT INTO message_words (rowid, said, tools, owner) SELECT json_extract(value, '$[0]'), "
    "json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]') FROM json_each(?)"
)
_REMOVE = "INSERT INTO message_words (message_words, rowid, said, tools, owner) VALUES ('delete', ?, ?, ?, ?)"
_LISTED = "(SELECT value FROM json_each(?))"
"""Numbers as one value: a connection keeps each statement, and numbers in its text would make each a new one."""
_encode = msgspec.json.Encoder().encode


class SqliteFullText:
    """The table `message_words`, whose rows have the numbers of messages."""

    position = "m.rowid"
    waiting = "unindexed u CROSS JOIN messages m ON m.rowid = u.position"
    waiting_position = "u.position"

    def columns(self, message: Message, key: str, session_id: str) -> Mapping[str, Any]:
        return {}

    def match(self, query: SearchQuery, owners: Sequence[str], *, with_tools: bool) -> IndexMatch:
        columns = "{said tools}" if with_tools else "said"
        words = f"({columns} : ({' AND '.join(map(_written, query.terms))}))"
        if owners:
            words = f"(owner : ({' OR '.join(owners)})) AND {words}"
        source = "message_words w CROSS JOIN messages m ON m.rowid = w.rowid"
        return IndexMatch(source, "message_words MATCH ?", "w.rowid", words)

    def add(self, tx: Executes, entries: Sequence[IndexEntry]) -> int:
        waiting = _waiting(tx, entries)
        taken = [entry for entry in entries if (entry.position, entry.id) in waiting]
        tx.run_long(_ADD, _encode([_row(entry) for entry in taken]).decode())
        tx.run(f"DELETE FROM unindexed WHERE position IN {_LISTED}", _places(taken))
        return len(taken)

    def remove(self, tx: Executes, entries: Sequence[IndexEntry]) -> None:
        waiting = _waiting(tx, entries)
        for entry in entries:
            if (entry.position, entry.id) not in waiting:
                tx.run(_REMOVE, *_row(entry))


def _waiting(tx: Executes, entries: Sequence[IndexEntry]) -> set[tuple[int, str]]:
    """Find which messages wait, by their ids too: the number of a removed one may have been given out again."""
    return {
        (position, id)
        for position, id in tx.all(
            "SELECT u.position, m.id FROM unindexed u JOIN messages m ON m.rowid = u.position "
            f"WHERE u.position IN {_LISTED}",
            _places(entries),
        )
    }


def _places(entries: Sequence[IndexEntry]) -> str:
    return f"[{','.join(str(entry.position) for entry in entries)}]"


def _written(term: Term) -> str:
    """Write a term for FTS5: between quotes nothing is an operator, and no word has a quote."""
    return f'"{" ".join(term.words)}"{" *" if term.is_prefix else ""}'


def _row(entry: IndexEntry) -> tuple[Any, ...]:
    said, tools = indexed_text(entry.text.said), indexed_text(entry.text.tools)
    # SQLite's JSON ends a text at a NUL. A space separates words as well.
    return entry.position, said.replace("\0", " "), tools.replace("\0", " "), " ".join(entry.owners)
