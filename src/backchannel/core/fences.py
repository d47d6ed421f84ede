"""Texts of others inside texts of ours: between fences that they cannot close.

A fence is longer than any run of backticks inside, so nothing that stands between two of them can pretend to be
outside.
"""

from __future__ import annotations

import re

_BACKTICKS = re.compile("`+")
_FENCE = re.compile("`{3,}")


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
