"""Tables of the command line: rows under columns on a terminal, plain text elsewhere.

A `RowTable` lists the columns of a command's list: the name of each, and how its cell is made of a row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from backchannel.cli.output import clean, console, is_terminal, say, show_json
from backchannel.cli.short_forms import Long, short_ids

if TYPE_CHECKING:
    from rich.table import Table

RowT = TypeVar("RowT")
Rows: TypeAlias = Sequence[Sequence[object]]

NARROWEST = 16
"""The least room for the first column of a table, however narrow the terminal."""

PROSE = 16
"""The room that prose, the last column of a table, gets before other columns are left out."""
LEAST_PROSE = 8
"""The room that prose keeps before the first column is folded."""


_STYLES = {
    "ok": "green",
    "allowed": "green",
    "sent": "green",
    "running": "cyan",
    "announcing": "cyan",
    "sending": "cyan",
    "queued": "yellow",
    "pending": "yellow",
    "warning": "yellow",
    "aborted": "yellow",
    "suppressed": "yellow",
    "error": "red",
    "timeout": "red",
    "denied": "red",
    "failed": "red",
    "uncertain": "red",
}


@dataclass(frozen=True, slots=True)
class TableRows:
    """The cells of a table, and how it is shown."""

    columns: Sequence[str]
    rows: Rows
    empty: str
    """What is said when there are no rows."""
    spare: Sequence[str] = ()
    """The columns that are left out first where there is little room."""

    def show(self) -> None:
        """Print the rows under their columns."""
        show_table(self.columns, self.rows, empty=self.empty, spare=self.spare)

    def build(self, count: int | None = None, *, is_flat: bool = False) -> Table:
        """Build the table of all rows, or of the first ones."""
        return build_table(self.columns, self.rows[:count], self.spare, is_flat=is_flat)


@dataclass(frozen=True, slots=True)
class RowTable(Generic[RowT]):
    """The columns of a table, each with the function that makes its cell from a row."""

    columns: Mapping[str, Callable[[RowT], object]]
    empty: str
    spare: Sequence[str] = ()
    ids: str | None = None
    """The column whose cells are ids, which are shortened so that they still differ."""

    def of(self, rows: Sequence[RowT]) -> TableRows:
        """Make the cells of these rows."""
        cells = {name: [cell(row) for row in rows] for name, cell in self.columns.items()}
        if self.ids is not None:
            cells[self.ids] = [*short_ids([str(whole) for whole in cells[self.ids]])]
        return TableRows([*cells], [*zip(*cells.values(), strict=True)], self.empty, self.spare)


def show_list(answer: Any, table: TableRows, *, as_json: bool, limit: int | None = None) -> None:
    """Print the answer to a list command: its rows as a table, or with `--json` all of it."""
    if as_json:
        show_json(answer)
        return
    table.show()
    if limit is not None and answer.has_more:
        say(f"There are more: --limit {limit * 2} shows them.", err=True)


def show_table(columns: Sequence[str], rows: Rows, *, empty: str, spare: Sequence[str] = ()) -> None:
    """Print rows under their columns; without rows, print `empty`."""
    if not rows:
        say(empty)
        return
    if is_terminal(sys.stdout):
        console().print(build_table(columns, rows, spare))
        return
    cells = _cells(rows)
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in ([column.upper() for column in columns], *cells):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def build_table(columns: Sequence[str], rows: Rows, spare: Sequence[str] = (), *, is_flat: bool = False) -> Table:
    """Build a table as wide as the terminal. Empty columns are left out.

    Without enough room, texts take their short forms, the last column first. Then the `spare` columns are left out.
    The last column may hold prose: it is wrapped at its words. The first column names the row, and is folded last. A
    flat table has one line for each row: longer cells are cut, and a row with a failure stands out.
    """
    from rich.cells import chop_cells
    from rich.table import Table
    from rich.text import Text

    whole = dict(zip(columns, zip(*_cells(rows), strict=True), strict=True))
    short = dict(zip(columns, zip(*_cells(rows, is_short=True), strict=True), strict=True))
    shown = {column: texts for column, texts in whole.items() if any(texts)}
    columns = [column for column in columns if column in shown or column == columns[-1]]
    room = console().width
    for column in reversed(columns):
        if column in shown and _width(shown) > room:
            shown[column] = short[column]
    for column in spare:
        if _least_width(shown, columns) > room:
            shown.pop(column, None)
    others = _least_width(shown, columns, prose=LEAST_PROSE) - _width({columns[0]: shown[columns[0]]})
    table = Table(box=None, header_style="bold", pad_edge=False)
    if is_flat:
        return _flattened(table, shown, columns, room - others)
    for column in shown:
        table.add_column(column, overflow="fold", no_wrap=whole[column] != short[column] or column == columns[0])
    for first, *rest in zip(*shown.values(), strict=True):
        folded = "\n".join(chop_cells(first, min(room, max(NARROWEST, room - others))))
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in (folded, *rest)))
    return table


def _flattened(table: Table, shown: Mapping[str, Sequence[str]], columns: Sequence[str], first: int) -> Table:
    """Fill a flat table. Its first column has this width at most, its last column the rest."""
    from rich.text import Text

    widest = {columns[0]: max(NARROWEST, first)}
    if columns[-1] in shown:
        named = _width({columns[0]: [text[: widest[columns[0]]] for text in shown[columns[0]]]})
        others = _width({column: texts for column, texts in shown.items() if column not in (columns[0], columns[-1])})
        widest[columns[-1]] = max(LEAST_PROSE, console().width - named - others - 4)
    for column in shown:
        table.add_column(column, overflow="ellipsis", no_wrap=True, max_width=widest.get(column))
    for row in zip(*shown.values(), strict=True):
        is_wrong = any(_STYLES.get(text) == "red" for text in row)
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in row), style="bold red" if is_wrong else "")
    return table


def _width(shown: Mapping[str, Sequence[str]]) -> int:
    """Give the width of a table of these columns."""
    from rich.cells import cell_len

    widths = [max(cell_len(text) for text in (column, *texts)) for column, texts in shown.items()]
    return sum(widths) + 2 * len(widths) - 2


def _least_width(shown: Mapping[str, Sequence[str]], columns: Sequence[str], prose: int = PROSE) -> int:
    """Give the least width of a table whose last column is wrapped."""
    last = columns[-1]
    return _width({**shown, last: [text[:prose] for text in shown[last]]} if last in shown else shown)


def _cells(rows: Rows, *, is_short: bool = False) -> list[list[str]]:
    return [[_cell(cell, is_short) for cell in row] for row in rows]


def _cell(cell: object, is_short: bool) -> str:
    text = cell.short if is_short and isinstance(cell, Long) else "" if cell is None else str(cell)
    return clean(text).replace("\n", " ")
