"""Queries of a search: words, phrases and beginnings of words.

A query is a list of terms, and a message must have all of them. A term is some words in a row; the last may be only the
beginning of a word. People write words, `"a phrase"` and `word*`. Nothing else has a meaning: there are no operators,
so any text is a query, as long as it has a letter, a digit or an emoji.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from backchannel.core.full_text.words import Word, words_of
from backchannel.core.policy.visibility import VisibleScope
from backchannel.core.text import quoted
from backchannel.errors import InvalidRequest

LONGEST_QUERY = 512
"""Letters of a query, at every door."""
_PARTS = re.compile(r'"([^"]*)(?:"|$)|([^\s"]+)')
_QUOTES = str.maketrans(dict.fromkeys("“”„‟«»＂", '"'))


AFTER_ALL = 1 << 62
"""Above the number of any message."""
_Position = Annotated[int, msgspec.Meta(ge=0, le=AFTER_ALL)]


class Term(msgspec.Struct, frozen=True):
    """Words in a row."""

    words: tuple[str, ...]
    is_prefix: bool = False
    """Whether the last word may go on."""


class SearchQuery(msgspec.Struct, frozen=True):
    terms: tuple[Term, ...]


class SearchWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages are searched; all given conditions must hold."""

    query: SearchQuery
    with_tools: bool = False
    """Whether calls of tools and their results count too."""
    visible: VisibleScope | None = None
    """What the caller may see; None is everything."""
    keys: tuple[str, ...] | None = None
    """Only these sessions."""
    kinds: tuple[str, ...] = ()
    agent_id: str | None = None
    roles: tuple[str, ...] = ()
    is_current: bool = False
    """Whether only the transcript counts that a session has now, and none that was replaced."""
    session_id: str | None = None
    """Only this transcript."""
    archived: bool | None = None
    """Only archived sessions, or only others; None is both."""


class SearchPlace(msgspec.Struct, frozen=True, array_like=True):
    """A place among ranked matches. It travels in cursors, so it may be forged."""

    below: _Position = AFTER_ALL
    """Where the window begins: only older messages are in it."""
    now: _Position = 0
    """The time by which messages are ranked, the same for all pages."""
    low: _Position = 0
    """The last message of the window; 0 for a window that was not read yet."""
    rank: float | None = None
    """The last match that was given."""
    position: _Position | None = None


def parse_query(text: str, *, is_open: bool = False) -> SearchQuery:
    """Read what was written; with `is_open` its last word may be unfinished, as while somebody types.

    Raises:
        InvalidRequest: there is nothing to search for.
    """
    terms: list[Term] = []
    parts = [*_PARTS.finditer(text.translate(_QUOTES))]
    for part in parts:
        phrase, word = part.group(1), part.group(2)
        goes_on = word is not None and (word.endswith("*") or (is_open and part is parts[-1]))
        term = _term([*words_of(word if phrase is None else phrase)], goes_on=goes_on)
        if term is not None and term not in terms:
            terms.append(term)
    if not terms:
        raise InvalidRequest(
            f'query: expected words, "a phrase" or the beginning of a word with *, got {quoted(text, 64)}',
            param="query",
        )
    return SearchQuery(tuple(terms))


def _term(found: Sequence[Word], *, goes_on: bool) -> Term | None:
    """Make a term of words in a row. At its end, a run without spaces may always go on."""
    if not found:
        return None
    texts = [word.text for word in found]
    if not found[-1].is_rest:
        return Term(tuple(texts), goes_on)
    is_pair = len(found) > 1 and len(texts[-2]) == 2 and texts[-2].endswith(texts[-1]) and not found[-2].is_rest
    return Term(tuple(texts[:-1])) if is_pair else Term(tuple(texts), True)


def find_terms(text: str, query: SearchQuery) -> list[tuple[int, int]] | None:
    """Find where each term stands first; None if one of them is missing."""
    found = [*words_of(text)]
    texts = [word.text for word in found]
    places: list[tuple[int, int]] = []
    for term in query.terms:
        at = _place(texts, term)
        if at is None:
            return None
        places.append((found[at].start, found[at + len(term.words) - 1].end))
    return places


def _place(texts: Sequence[str], term: Term) -> int | None:
    *first, last = term.words
    count = len(first)
    for at in range(len(texts) - count):
        end = texts[at + count]
        if (end == last or (term.is_prefix and end.startswith(last))) and list(texts[at : at + count]) == first:
            return at
    return None


def all_places(text: str, query: SearchQuery) -> list[tuple[int, int]]:
    """Find all places of all terms, in order and joined where they touch: what a reader is shown in bold."""
    found = [*words_of(text)]
    texts = [word.text for word in found]
    spans: list[tuple[int, int]] = []
    for term in query.terms:
        count = len(term.words)
        for at in range(len(texts) - count + 1):
            if _place(texts[at : at + count], term) == 0:
                spans.append((found[at].start, found[at + count - 1].end))
    return _joined(sorted(spans))


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
