"""Names that others choose: of chats, of people, of sessions.

Whoever names a chat can write anything there: control characters, texts that run backwards, a book. A name is cleaned
when it comes in, and again where it is shown, because older databases hold names as they came.
"""

from __future__ import annotations

import re
import unicodedata

STORED_LIMIT = 256
"""How much of a name is kept."""
SHOWN_LIMIT = 64
"""How much of a name lists, terminals and models are shown; a label may be as long."""

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zs", "Zl", "Zp"})
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}\x07?)?|\x9b[0-?]{0,32}[@-~]?")
"""What a terminal would obey: colours, movements of the cursor, titles."""


def clean_name(text: str, *, limit: int = SHOWN_LIMIT) -> str:
    """Bring a name to one line of what can be seen, cut at `limit` characters; empty when nothing of it can."""
    if len(text) <= limit and text.isprintable() and "  " not in text:
        return text.strip()
    start = _ESCAPES.sub(" ", text[: limit * 16])  # a name this long is nonsense; no need to look at all of it
    seen = "".join(" " if unicodedata.category(char) in _UNSEEN else char for char in start)
    name = " ".join(seen.split())
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def stored_name(text: str | None) -> str | None:
    """Give a name as it is kept; None when there is none, or nothing of it can be seen."""
    return None if text is None else clean_name(text, limit=STORED_LIMIT) or None


def shown_name(text: str | None) -> str | None:
    """Give a name as it is shown to people and in lists; None when there is none."""
    return None if text is None else clean_name(text) or None
