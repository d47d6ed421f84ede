"""What is done to texts everywhere: cutting, quoting, bringing to one line, finding the word that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ELLIPSIS = "…"
_LONGEST_WORD = 64


def cut(text: str, limit: int) -> str:
    """Cut a text to at most `limit` characters; one that was cut ends with an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def one_line(text: str, limit: int) -> str:
    """Bring a text to one line of at most `limit` characters."""
    # Only its beginning is looked at: a text may be megabytes long, and most of it is cut anyway.
    return cut(" ".join(text[: limit * 8].split()), limit)


def quoted(text: str, limit: int = 80) -> str:
    """Quote what somebody wrote, for an error message; a long text is cut."""
    return repr(cut(text, limit))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Find the known word that was most likely meant."""
    if len(word) > _LONGEST_WORD:
        return None
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None
