"""Texts: cutting, quoting, cleaning names, patterns of names, and suggestions for a misspelt word.

Others choose names, and can write anything: control characters, text that runs backwards, a book. A name is
cleaned when it comes in, and again where it is shown, because older databases hold names as they came.

A text of others inside a text of ours stands between Markdown fences. A fence is longer than any run of backticks
inside, so nothing between two fences can pretend to be outside.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable

ELLIPSIS = "…"
STORED_LIMIT = 256
"""How much of a name is kept."""
SHOWN_LIMIT = 64
"""How much of a name lists, terminals and models are shown; a label may be as long."""
ANY = "*"
"""In a pattern: any characters."""

_LONGEST_WORD = 64
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zs", "Zl", "Zp"})
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}\x07?)?|\x9b[0-?]{0,32}[@-~]?")
"""What a terminal would obey: colours, movements of the cursor, titles."""
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""Also what turns a text about, and letters that nobody sees but models."""
_LONE_RETURN = re.compile(r"\r(?!\n)")
_BACKTICKS = re.compile("`+")
_FENCE = re.compile("`{3,}")


def cut(text: str, limit: int) -> str:
    """Cut a text to at most `limit` characters; one that was cut ends with an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + ELLIPSIS


def one_line(text: str, limit: int = 60) -> str:
    """Bring a text to one line of at most `limit` characters; so many fit into a table."""
    # Only its beginning is looked at: a text may be megabytes long, and most of it is cut anyway.
    return cut(" ".join(text[: limit * 8].split()), limit)


def quoted(text: str, limit: int = 80) -> str:
    """Quote what came, for an error message; a long text is cut."""
    return repr(cut(text, limit))


def storable_text(text: str) -> str:
    """Join surrogate pairs, and replace lone surrogates: no encoding takes them."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Find the known word that was most likely meant; at a `cutoff` of 1 that is the same word only."""
    if len(word) > _LONGEST_WORD:
        return None
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def clean_name(text: str, *, limit: int = SHOWN_LIMIT) -> str:
    """Bring a name to one line of what can be seen, cut at `limit` characters; empty when nothing of it can."""
    if len(text) <= limit and text.isprintable() and "  " not in text:
        return text.strip()
    start = _ESCAPES.sub(" ", text[: limit * 16])  # a name this long is nonsense; no need to look at all of it
    seen = "".join(" " if unicodedata.category(char) in _UNSEEN else char for char in start)
    name = " ".join(seen.split())
    return cut(name, limit)


def without_controls(text: str) -> str:
    """Leave out what a terminal would obey, what turns a text about, and what is hidden in it; it has lines and tabs.

    A line that was written over itself, as programs show how far they are, becomes several.
    """
    if not _CONTROLS.search(text) and "\r" not in text:
        return text
    return _CONTROLS.sub("", _ESCAPES.sub("", _LONE_RETURN.sub("\n", text)))


def made_visible(text: str) -> str:
    """Write what cannot be seen, or turns the text around it about, as JSON escapes it; a plain space stays."""
    if text.isprintable():
        return text
    return "".join(
        char if char == " " or unicodedata.category(char) not in _UNSEEN else _escape(ord(char)) for char in text
    )


def _escape(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def stored_name(text: str | None) -> str | None:
    """Give a name as it is kept; None when there is none, or nothing of it can be seen."""
    return None if text is None else clean_name(text, limit=STORED_LIMIT) or None


def shown_name(text: str | None) -> str | None:
    """Give a name as it is shown to people and in lists; None when there is none."""
    return None if text is None else clean_name(text) or None


def fenced(text: str | None) -> str:
    """Put a text between fences; one that says nothing is said to be empty."""
    if text is None or not text.strip():
        return "(empty)"
    longest = max(map(len, _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def unfenced(text: str) -> list[str]:
    """Give the texts that stand between fences, in order."""
    found: list[str] = []
    inside: list[str] = []
    fence = ""
    for line in text.split("\n"):
        if not fence and _FENCE.fullmatch(line):
            fence, inside = line, []
        elif fence and line == fence:
            found.append("\n".join(inside))
            fence = ""
        elif fence:
            inside.append(line)
    return found


def joined(*lines: str) -> str:
    """Join lines, leaving out those that have nothing to say."""
    return "\n".join(line for line in lines if line)


def matches(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern of the settings, whatever its case, in time that grows with their lengths only."""
    first, *rest = pattern.strip().lower().split(ANY)
    name = name.lower()
    if not rest:
        return name == first
    *middle, last = rest
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:  # the earliest place is always good: it leaves the most for the others
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
