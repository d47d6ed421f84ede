"""The picture of `watch`: problems, counts, then sessions, runs and deliveries.

Each part gets the lines that it can use, as far as the window allows, and counts the rows that are left out. Every row
is one line, however long the names in it are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backchannel.cli import answers
from backchannel.cli.commands.deliveries import place_of
from backchannel.cli.commands.runs import result_of
from backchannel.cli.commands.sessions import kind_of, name_of
from backchannel.cli.live import ScreenDrawing, hint_line
from backchannel.cli.options import Options
from backchannel.cli.output import age, clean, until
from backchannel.cli.overview import OverviewSnapshot
from backchannel.cli.short_forms import Long, short_ids, short_key
from backchannel.cli.tables import RowTable, TableRows
from backchannel.core.text import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_LEAST = 2
"""The fewest lines of a part: its columns, and one row."""
LONGEST = 200
_SHORT_NAME = 12
_COLOURS = {"ok": "green", "degraded": "yellow", "unavailable": "red"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the tables. Its first column has the name of the part."""

    table: TableRows
    total: int
    """The number of rows, with those that were not read."""

    @property
    def height(self) -> int:
        count = len(self.table.rows)
        return 1 + count + (count < self.total) if count else 1

    def lines(self, room: int) -> list[RenderableType]:
        """Draw the part in this number of lines."""
        from rich.text import Text

        if not self.table.rows:
            return [Text(self.table.empty, "dim", no_wrap=True, overflow="ellipsis")]
        read = len(self.table.rows)
        is_cut = room < self.height or read < self.total
        count = min(read, max(1, room - 1 - (is_cut and room > _LEAST)))
        table = self.table.build(count, is_flat=True)
        return [table, Text(f"… {self.total - count} more", "dim")] if is_cut and room > _LEAST else [table]


class Board(ScreenDrawing[OverviewSnapshot]):
    """The picture on a terminal."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options

    def picture(self, snapshot: OverviewSnapshot | None, note: str, since_ms: int) -> RenderableType:
        from rich.console import Group

        head = hint_line(note, "bold yellow")
        if snapshot is None:
            return head
        return Group(*self._lines(snapshot, since_ms, head, is_away=bool(note)))

    def last(self, snapshot: OverviewSnapshot, since_ms: int) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(*self._lines(snapshot, since_ms, Text(f"as it was at {time.strftime('%H:%M:%S')}", "dim")))

    def _lines(
        self, seen: OverviewSnapshot, since_ms: int, note: Text, *, is_away: bool = False
    ) -> list[RenderableType]:
        from rich.text import Text

        width = self._console.width
        head = _head(seen, note, width, is_away=is_away)
        head += [] if is_away else _problem(seen, self._options, width)
        for line in head:
            line.no_wrap, line.overflow = True, "ellipsis"
        parts = [part(seen, seen.ts + since_ms) for part in (_sessions, _runs, _deliveries)]
        room = self._console.height - len(head)
        is_spaced = room >= sum(min(part.height, _LEAST + 1) for part in parts) + len(parts)
        shares = share(room - (len(parts) if is_spaced else 0), [part.height for part in parts])
        lines: list[RenderableType] = list(head)
        for part, lines_given in zip(parts, shares, strict=True):
            if lines_given:
                lines += [*([Text()] if is_spaced else []), *part.lines(lines_given)]
        return lines


def share(room: int, wanted: Sequence[int]) -> list[int]:
    """Divide lines among parts: first each gets its least number, then one each in turn.

    Without room for all, the last parts come first: they show failures.
    """
    given = [0] * len(wanted)
    for index in reversed(range(len(wanted))):
        if room >= (least := min(wanted[index], _LEAST)):
            given[index], room = least, room - least
    while room > 0 and any(has and has < wants for has, wants in zip(given, wanted, strict=True)):
        for index, wants in enumerate(wanted):
            if room > 0 and given[index] and given[index] < wants:
                given[index], room = given[index] + 1, room - 1
    return given


def _head(seen: OverviewSnapshot, note: Text, width: int, *, is_away: bool) -> list[Text]:
    """Show the gateway, its state and the counts; a narrow window needs more lines.

    A gateway that is away has no known state: its last one would contradict the hint.
    """
    from rich.text import Text

    status, counts = seen.status, seen.counts
    word, colour = ("away", "yellow") if is_away else (status.status, _COLOURS[status.status])
    up = "" if is_away else f"  up {age(0, status.uptime_ms)}"
    gateway = Text.assemble("gateway ", (word, f"bold {colour}"), f"  {seen.url}{up}")
    runs = Text.assemble(
        f"sessions {len(seen.sessions)}{'+' if seen.has_more_sessions else ''}  ",
        f"runs {counts.running} running, {counts.queued} queued",
        _warned(counts.set_aside, "set aside"),
        _warned(counts.failed, "failed"),
    )
    deliveries = Text.assemble(
        f"deliveries {counts.deliveries['waiting']} waiting",
        *(_warned(counts.deliveries[state], state) for state in ("failed", "uncertain")),
        (f"  strangers {strangers} waiting" if (strangers := status.pairings["pending"]) else "", "bold yellow"),
    )
    return [*_joined(gateway, note, width), *_joined(runs, deliveries, width)]


def _joined(first: Text, second: Text, width: int) -> list[Text]:
    is_narrow = len(first) + len(second) + 2 > width
    return [first, second] if is_narrow else [first.append("  ").append_text(second)]


def _warned(count: int, word: str) -> tuple[str, str]:
    return (f", {count} {word}", "bold red") if count else ("", "")


def _problem(seen: OverviewSnapshot, options: Options, width: int) -> list[Text]:
    """Name the first problem with its hint, or how to see all problems."""
    from rich.text import Text

    problems = seen.status.problems
    if not problems:
        return []
    first, others = problems[0], len(problems) - 1
    if not others:
        return [Text(_flat(f"{first.message} {options.spell(first.hint)}"), "yellow")]
    command = options.command("status")
    more = f"; {others} more: {command if len(command) < width // 2 else 'backchannel status'}"
    return [Text(one_line(_flat(first.message.rstrip(".")), max(_SHORT_NAME, width - len(more))) + more, "yellow")]


def _sessions(seen: OverviewSnapshot, now_ms: int) -> Panel:
    table: RowTable[answers.SessionRow] = RowTable(
        {
            "sessions": lambda row: _short(short_key(row.key)),
            "name": _named,
            "kind": kind_of,
            "channel": lambda row: _flat(row.channel),
            "status": lambda row: row.status,
            "age": lambda row: age(row.updated_at, now_ms),
            "tokens": lambda row: tokens_in_short((row.input_tokens or 0) + (row.output_tokens or 0)),
            "cost": lambda row: "" if row.estimated_cost_usd is None else f"${row.estimated_cost_usd:.4f}",
            "doing": lambda row: _doing(seen, row),
        },
        empty="sessions: none yet",
        spare=("kind", "channel", "name", "cost"),
    )
    return Panel(table.of(seen.sessions), len(seen.sessions))


def _doing(seen: OverviewSnapshot, session: answers.SessionRow) -> str:
    run = seen.run_of(session.key) if session.status == "running" else None
    return _flat(seen.doing.get(run.run_id, "")) if run is not None else ""


def _named(session: answers.SessionRow) -> Long:
    name = _flat(name_of(session) or "")
    return Long(name, one_line(name, _SHORT_NAME))


def _runs(seen: OverviewSnapshot, now_ms: int) -> Panel:
    ids = {each.text: each.short for each in short_ids([run.run_id for run in seen.runs])}
    table: RowTable[answers.RunRow] = RowTable(
        {
            "runs": lambda run: _flat(ids[run.run_id]),
            "session": lambda run: _short(short_key(run.session_key)),
            "status": lambda run: _status_of(run),
            "age": lambda run: age(run.ended_at or run.started_at or run.accepted_at, now_ms),
            "doing": lambda run: _what_of(seen, run, now_ms),
        },
        empty="runs: none at work, none failed in 24 hours",
        spare=("age",),
    )
    return Panel(table.of(seen.runs), max(len(seen.runs), seen.counts.runs))


def _what_of(seen: OverviewSnapshot, run: answers.RunRow, now_ms: int) -> str:
    if run.status == "running":
        return _flat(seen.doing.get(run.run_id, ""))
    if run.resume_at is None:
        return _flat(result_of(run))
    again = f"tried again in {until(run.resume_at, now_ms)}"
    return again if run.waits_for is None else _flat(f"{again}: {run.waits_for.model}: {run.waits_for.error}")


def _status_of(run: answers.RunRow) -> str:
    if run.waits_for is not None and run.waits_for.budget is not None:
        return "waits"
    if run.resume_at is None:
        return run.status
    return "set aside" if run.waits_for is None else "waits"


def _deliveries(seen: OverviewSnapshot, now_ms: int) -> Panel:
    ids = {each.text: each.short for each in short_ids([delivery.id for delivery in seen.deliveries])}
    table: RowTable[answers.ReceiptRow] = RowTable(
        {
            "deliveries": lambda delivery: _flat(ids[delivery.id]),
            "state": lambda delivery: delivery.state,
            "age": lambda delivery: age(delivery.created_at, now_ms),
            "to": lambda delivery: _flat(place_of(delivery)),
            "next try": lambda delivery: until(delivery.due_at, now_ms),
            "error or text": lambda delivery: _flat(delivery.error or delivery.text or ""),
        },
        empty="deliveries: none waiting, failed or uncertain",
        spare=("age", "next try", "to"),
    )
    return Panel(table.of(seen.deliveries), max(len(seen.deliveries), sum(seen.counts.deliveries.values())))


def tokens_in_short(count: int) -> str:
    """Show a number of tokens in a few characters."""
    if not count:
        return ""
    return str(count) if count < 10_000 else f"{count // 1000}k"


def _short(name: Long) -> Long:
    return Long(_flat(name.text), _flat(name.short))


def _flat(text: str) -> str:
    """Put a foreign text on one line, without control characters."""
    return one_line(clean(text), LONGEST)
