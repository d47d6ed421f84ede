"""Patterns of names, as settings write them: `*` stands for any characters, case is ignored."""

from __future__ import annotations

ANY = "*"


def matches(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern, in time that grows with their lengths only."""
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
