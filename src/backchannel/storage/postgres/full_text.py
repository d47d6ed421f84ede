"""The index of words in PostgreSQL: a column of vectors with a GIN index.

The vectors are written here, word by word, so that no configuration of the server decides what a word is. Words of
people and agents have the weight A, words of tools have D, and an owner is a word that begins with `@`. A message is
written with its vector, in one statement. Only messages of older versions wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backchannel.core.full_text.queries import SearchQuery, Term
from backchannel.core.full_text.ranking import SearchText, search_text
from backchannel.core.full_text.words import words_of
from backchannel.core.messages import Message
from backchannel.storage.full_text import Executes, IndexEntry, IndexMatch, owners_of

_LAST_PLACE = 16_383
"""PostgreSQL counts places no further."""
_MOST_PLACES = 255
_GAP = 10
"""Places between what was said and what tools said: no phrase goes from one into the other."""


class PostgresFullText:
    """The column `words` of the table of messages."""

    position = "m.position"
    waiting = "(SELECT * FROM messages WHERE words IS NULL) AS m"
    waiting_position = "m.position"

    def columns(self, message: Message, key: str, session_id: str) -> Mapping[str, Any]:
        return {"words": _vector(search_text(message), owners_of(key, session_id))}

    def match(self, query: SearchQuery, owners: Sequence[str], *, with_tools: bool) -> IndexMatch:
        words = " & ".join(_written(term, "" if with_tools else "A") for term in query.terms)
        if owners:
            words = f"({' | '.join(_quoted(f'@{owner}') for owner in owners)}) & {words}"
        return IndexMatch("messages m", "m.words @@ CAST(? AS tsquery)", "m.position", words)

    def add(self, tx: Executes, entries: Sequence[IndexEntry]) -> int:
        for entry in entries:
            tx.run(
                "UPDATE messages SET words = CAST(? AS tsvector) WHERE position = ? AND id = ? AND words IS NULL",
                _vector(entry.text, entry.owners),
                entry.position,
                entry.id,
            )
        return len(entries)

    def remove(self, tx: Executes, entries: Sequence[IndexEntry]) -> None:
        """Do nothing: the words go with the row."""


def _written(term: Term, weight: str) -> str:
    *first, last = term.words
    mark = f":{'*' if term.is_prefix else ''}{weight}".rstrip(":")
    places = [*(f"{_quoted(word)}{f':{weight}' if weight else ''}" for word in first), f"{_quoted(last)}{mark}"]
    return f"({' <-> '.join(places)})"


def _quoted(word: str) -> str:
    return f"'{word}'"


def _vector(text: SearchText, owners: Sequence[str]) -> str:
    places: dict[str, list[str]] = {f"@{owner}": [] for owner in owners}
    place = 0
    for part, weight in ((text.said, "A"), (text.tools, "")):
        for word in words_of(part):
            place += 1
            found = places.setdefault(word.text, [])
            if len(found) < _MOST_PLACES:
                found.append(f"{min(place, _LAST_PLACE)}{weight}")
        place += _GAP
    return " ".join(_quoted(word) + (f":{','.join(found)}" if found else "") for word, found in places.items())
