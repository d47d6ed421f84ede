"""Fences, which keep foreign text apart in what a model is told."""

from __future__ import annotations

import re


def outside_fences(text: str) -> str:
    """Take out everything that stands between fences."""
    kept, fence = [], None
    for line in text.split("\n"):
        if fence is None and re.fullmatch("`{3,}", line):
            fence = line
        elif line == fence:
            fence = None
        elif fence is None:
            kept.append(line)
    assert fence is None, "a fence is left open"
    return "\n".join(kept)
