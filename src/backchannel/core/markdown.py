"""The little Markdown that reference pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write rows under their columns, a line each; a bar in a text does not end its cell."""
    shown = [_row([cell.replace("|", "\\|") for cell in row]) for row in rows]
    return [_row(columns), "|" + "---|" * len(columns), *shown]


def _row(cells: Iterable[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def replace_between(page: str, begin: str, end: str, made: str) -> str:
    """Replace what stands between two marks of a page.

    Raises:
        ValueError: the page lacks a mark.
    """
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page needs the marks {begin!r} and {end!r}")
    return f"{before}{begin}\n\n{made}\n{end}{after}"
