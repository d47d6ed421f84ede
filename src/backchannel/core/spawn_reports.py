"""What a sub-agent says of its work, read by the labels that it brings.

A child that knows the form of a post writes one itself: `Status:`, `Result:`, `Notes:`, each at the start of a line, in
any case, perhaps in bold. Its Result and its Notes are what it has to say; its Status and its Stats are not its to
tell, since those are how the run ended and what it took. A text that only contains such a word, in a sentence or in a
block of code, is an ordinary text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LABEL = re.compile(r"(?:#{1,6} )?(\*\*|__)?(status|result|notes|stats)(\1)?:(\1)?(?!\S)[ \t]*", re.IGNORECASE)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_OUTCOMES = frozenset(
    {"success", "successful", "succeeded", "ok", "okay", "done", "complete", "completed", "finished"}
    | {"error", "failed", "failure", "timeout", "timed out", "aborted"}
)
"""What a Status says that only repeats, or contradicts, how the run ended."""


class Report(NamedTuple):
    """What a child reports: its result, and notes where it has any."""

    result: str
    notes: str


def read_report(text: str) -> Report:
    """Read a child's words by their labels; without any, all of it is the result."""
    parts = _parts(text)
    has_result = any(label == "result" for label, _ in parts)
    result: list[str] = []
    notes: list[str] = []
    for label, said in parts:
        if label == "status":
            status, _, rest = said.partition("\n")
            said = rest if has_result or _is_outcome(status) else said
        if label != "stats":  # they are counted, not claimed
            (notes if label == "notes" else result).append(said.strip())
    return Report(_joined(result), _joined(notes))


def _parts(text: str) -> list[tuple[str, str]]:
    """Cut a text where a label stands; what comes before the first has none, and of two Results the second is text."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    fence = ""
    for line in text.strip("\n").split("\n"):
        fence = _fence_after(line, fence)
        label = None if fence else _LABEL.match(line)
        name = label[2].lower() if label else ""
        if label is None or (name == "result" and any(known == "result" for known, _ in parts)):
            parts[-1][1].append(line)
        else:
            parts.append((name, [line[label.end() :]]))
    return [(name, "\n".join(lines)) for name, lines in parts]


def _fence_after(line: str, fence: str) -> str:
    """Tell which block of code is open after a line; empty is none."""
    found = _FENCE.match(line)
    if found is None:
        return fence
    if not fence:
        return found[1]
    closes = found[1].startswith(fence) and not line[found.end() :].strip()
    return "" if closes else fence


def _is_outcome(status: str) -> bool:
    return status.strip(" \t*_.!").casefold() in _OUTCOMES


def _joined(parts: list[str]) -> str:
    return "\n".join(part for part in parts if part)
