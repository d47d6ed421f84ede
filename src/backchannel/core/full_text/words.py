"""Words of a text as the search index keeps them, the same for every database.

A word is a run of letters and digits. Case, accents and widths of letters do not count. Everything else separates
words, so `foo_bar.baz` is three words in a row. An emoji is a word of its own.

Some scripts have no spaces between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese. A run of such letters is kept
as overlapping pairs and its last letter: 東京都 is 東京, 京都 and 都. So any part of two or more letters is found as a
phrase, and a single letter as the beginning of a pair.

Whoever changes what a text's words are must build the index anew: a schema step that empties it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from unicodedata import normalize

LONGEST_WORD = 64
"""Longer runs of letters, such as encoded files, are known by their beginning."""

_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3"
    "\u3005-\u3007\u3031-\u3035\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_SYMBOLS = "\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001f3fa\U0001f400-\U0001faff"
_DROPPED = "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
"""Accents, and vowel signs of scripts that are mostly written without them."""
_MARKS = _DROPPED + "\u0900-\u0963\u0966-\u0dff\u0f71-\u0f84\u0f8d-\u0fbc\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff"
"""Signs that belong to the letter before them, and whole scripts that are full of such signs."""

_WORD = rf"(?:(?![{_UNSPACED}])[^\W_]|[{_MARKS}])+"
_TOKENS = re.compile(rf"(?P<run>[{_UNSPACED}]+)|(?P<symbol>[{_SYMBOLS}])|{_WORD}")
_RUN = re.compile(f"[{_UNSPACED}]")
_ASCII_TOKENS = re.compile(r"[A-Za-z0-9]+")
_ACCENTS = re.compile(f"[{_DROPPED}\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]")
_LONG = re.compile(f"[A-Za-z0-9]{{{LONGEST_WORD + 1}}}")


class Word(NamedTuple):
    """A word, and where in the text it stands."""

    text: str
    start: int
    end: int
    is_rest: bool = False
    """Whether it is the last letter of a run without spaces."""


def fold(text: str) -> str:
    """Write a text in small letters, without accents, in one form."""
    if text.isascii():
        return text.lower()
    return normalize("NFC", _ACCENTS.sub("", normalize("NFKD", text).casefold()))


def words_of(text: str) -> Iterator[Word]:
    """Read the words of a text in order."""
    if text.isascii():
        for found in _ASCII_TOKENS.finditer(text):
            yield Word(found.group()[:LONGEST_WORD].lower(), found.start(), found.end())
        return
    for found in _TOKENS.finditer(text):
        if found["run"]:
            yield from _pairs(fold(found.group()), *found.span())
        else:
            yield from _folded(found.group(), *found.span())


def _folded(token: str, start: int, end: int) -> Iterator[Word]:
    folded = fold(token)
    if folded.isalnum() and not _RUN.search(folded):
        yield Word(folded[:LONGEST_WORD], start, end)
        return
    for part in _TOKENS.finditer(folded):  # a sign such as ½ or ㍿ stands for several words
        if part["run"]:
            yield from (word._replace(start=start, end=end) for word in _pairs(part.group(), 0, 0))
        else:
            yield Word(part.group()[:LONGEST_WORD], start, end)


def _pairs(run: str, start: int, end: int) -> Iterator[Word]:
    """Read a run without spaces as overlapping pairs, and its last letter."""
    is_exact = len(run) == end - start  # some letters have another length in their one form
    for at in range(len(run)):
        first, last = (start + at, min(start + at + 2, end)) if is_exact else (start, end)
        yield Word(run[at : at + 2], first, last, is_rest=at == len(run) - 1)


def indexed_text(text: str) -> str:
    """Write the words of a text for an index that splits plain letters by itself: most texts are as they are."""
    if text.isascii() and not _LONG.search(text):
        return text
    return " ".join(word.text for word in words_of(text))
