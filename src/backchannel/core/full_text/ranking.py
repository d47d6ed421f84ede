"""Ranking: the searched text of a message, its rank, and its snippet.

The rank is a pure function of one message, the query and a time. No count over all messages enters it. So it is the
same on every database, and pages stay in order while new messages come. It grows with the number of matches, less with
each further one, and falls with the length of the text, as bm25 does. Newer messages are mildly preferred.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from backchannel.core.full_text.queries import SearchQuery, Term, find_terms
from backchannel.core.full_text.words import fold
from backchannel.core.messages import Message, Role, text_of
from backchannel.core.readable import text_for_people
from backchannel.core.text import ELLIPSIS

SEARCHED_CHARS = 32_000
"""How much of what was said, and as much of calls and results, is searched of one message."""
_USUAL_CHARS = 400
_SATURATION, _BY_LENGTH = 1.2, 0.75
"""As in bm25: how soon further matches count less, and how much the length matters."""
_HALF_LIFE_MS = 90 * 24 * 3_600_000
_FOR_NEWS = 0.25
"""The share of the rank that a message loses with age."""
_BEFORE, _AFTER = 60, 140


class SearchText(NamedTuple):
    """The words of a message for the search: those of people and agents, and those of tools."""

    said: str
    tools: str

    def text(self, *, with_tools: bool) -> str:
        return f"{self.said}\n{self.tools}" if with_tools and self.tools else self.said


def search_text(message: Message) -> SearchText:
    """Read what a message says for the search: no prompts of the gateway, no thinking, no pictures."""
    if message.role is Role.TOOL_RESULT:
        return SearchText("", f"{message.tool_name or ''} {text_of(message.content)}"[:SEARCHED_CHARS])
    said = text_for_people(message)[:SEARCHED_CHARS]
    calls = message.tool_calls
    if not calls:
        return SearchText(said, "")
    written = (f"{call.name} {msgspec.json.encode(call.arguments).decode()}" for call in calls)
    return SearchText(said, "\n".join(written)[:SEARCHED_CHARS])


class Ranking:
    """Ranks messages for one query, at one time."""

    def __init__(self, query: SearchQuery, now_ms: int) -> None:
        self._now_ms = now_ms
        self._counts = [_counter(term) for term in query.terms]

    def rank(self, text: str, at_ms: int) -> float:
        """Rank a text, from 0 to 1."""
        folded = fold(text)
        room = _SATURATION * (1 - _BY_LENGTH + _BY_LENGTH * len(folded) / _USUAL_CHARS)
        counts = [count(folded) for count in self._counts]
        match = sum(found / (found + room) for found in counts) / len(counts)
        age = max(0, self._now_ms - at_ms) / _HALF_LIFE_MS
        return match * (1 - _FOR_NEWS + _FOR_NEWS * math.exp2(-age))


def _counter(term: Term) -> Callable[[str], int]:
    """Count a term in a folded text, about: by its rarest word, without a look at the order."""
    *first, last = term.words
    counters = [_word_counter(word, goes_on=False) for word in first]
    counters.append(_word_counter(last, goes_on=term.is_prefix))
    return lambda folded: min(count(folded) for count in counters)


def _word_counter(word: str, *, goes_on: bool) -> Callable[[str], int]:
    if not word.isascii():
        return lambda folded: folded.count(word)  # a pair of letters has no spaces around it
    pattern = word_pattern(word, goes_on=goes_on)
    return lambda folded: len(pattern.findall(folded))


def word_pattern(word: str, *, goes_on: bool) -> re.Pattern[str]:
    """Compile the pattern of a whole word, or of its beginning."""
    end = "" if goes_on else r"(?![^\W_])"
    return re.compile(rf"(?<![^\W_]){re.escape(word)}{end}")


def snippet(text: str, query: SearchQuery) -> str | None:
    """Cut what stands around the first match, on one line; None if a term is missing."""
    places = find_terms(text, query)
    if places is None:
        return None
    start, end = _around(min(places), text)
    line = " ".join(text[start:end].split())
    return f"{ELLIPSIS if start else ''}{line}{ELLIPSIS if end < len(text) else ''}"


def _around(place: Sequence[int], text: str) -> tuple[int, int]:
    at, until = place[0], min(place[1], place[0] + _AFTER)
    return max(0, at - _BEFORE), min(len(text), until + _AFTER)
