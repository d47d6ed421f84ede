"""The picture of `watch`: what is wrong, how much there is to do, and then sessions, runs and deliveries.

Each part gets the lines that it can use, as far as the window reaches, and says how many more there are. Nothing in it
takes more than a line, whatever others have called their chats.
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
from backchannel.cli.live import ScreenDrawing
from backchannel.cli.naming import short_ids, short_key
from backchannel.cli.options import Options
from backchannel.cli.output import Long, Rows, age, build_table, clean, until
from backchannel.cli.overview import OverviewSnapshot
from backchannel.core.text import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_LEAST = 2
"""The fewest lines that a part can use: what its columns are, and one row."""
LONGEST = 200
_SHORT_NAME = 12
_COLOURS = {"ok": "green", "degraded": "yellow", "unavailable": "red"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the tables. Its first column has the name of the part."""

    columns: tuple[str, ...]
    spare: tuple[str, ...]
    rows: Rows
    total: int
    """How many there are, also those that were not read."""
    empty: str

    @property
    def height(self) -> int:
        return 1 + len(self.rows) + (len(self.rows) < self.total) if self.rows else 1

    def lines(self, room: int) -> list[RenderableType]:
        """Draw it in so many lines."""
        from rich.text import Text

        if not self.rows:
            return [Text(self.empty, "dim", no_wrap=True, overflow="ellipsis")]
        is_cut = room < self.height or len(self.rows) < self.total
        count = min(len(self.rows), max(1, room - 1 - (is_cut and room > _LEAST)))
        table = build_table(self.columns, self.rows[:count], self.spare, is_flat=True)
        return [table, Text(f"… {self.total - count} more", "dim")] if is_cut and room > _LEAST else [table]


class Board(ScreenDrawing[OverviewSnapshot]):
    """The picture on a terminal."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options

    def picture(self, snapshot: OverviewSnapshot | None, note: str, since_ms: int) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        hint = Text(note, "bold yellow") if note else Text(f"{time.strftime('%H:%M:%S')} · Ctrl-C ends", "dim")
        if snapshot is None:
            return hint
        return Group(*self._lines(snapshot, since_ms, hint, is_away=bool(note)))

    def last(self, snapshot: OverviewSnapshot, since_ms: int) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(*self._lines(snapshot, since_ms, Text(f"as it was at {time.strftime('%H:%M:%S')}", "dim")))

    def _lines(
        self, seen: OverviewSnapshot, since_ms: int, hint: Text, *, is_away: bool = False
    ) -> list[RenderableType]:
        from rich.text import Text

        width = self._console.width
        head = _head(seen, hint, width, is_away=is_away)
        head += [] if is_away else _problem(seen, self._options, width)
        for line in head:
            line.no_wrap, line.overflow = True, "ellipsis"
        parts = (_sessions(seen, since_ms), _runs(seen, since_ms), _deliveries(seen, since_ms))
        room = self._console.height - len(head)
        is_spaced = room >= sum(min(part.height, _LEAST + 1) for part in parts) + len(parts)
        shares = share(room - (len(parts) if is_spaced else 0), [part.height for part in parts])
        lines: list[RenderableType] = list(head)
        for part, lines_given in zip(parts, shares, strict=True):
            if lines_given:
                lines += [*([Text()] if is_spaced else []), *part.lines(lines_given)]
        return lines


def share(room: int, wanted: Sequence[int]) -> list[int]:
    """Divide lines among parts: first each gets the least that it can use, then one each in turn.

    Where there is not even that, those at the end come first: what went wrong stands there.
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


def _head(seen: OverviewSnapshot, hint: Text, width: int, *, is_away: bool) -> list[Text]:
    """Say which gateway this is, how it is and how much there is to do, on more lines where it is narrow.

    Of one that is away nobody knows how it is: what it said last would contradict the hint beside it.
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
    return [*_joined(gateway, hint, width), *_joined(runs, deliveries, width)]


def _joined(first: Text, second: Text, width: int) -> list[Text]:
    is_narrow = len(first) + len(second) + 2 > width
    return [first, second] if is_narrow else [first.append("  ").append_text(second)]


def _warned(count: int, word: str) -> tuple[str, str]:
    return (f", {count} {word}", "bold red") if count else ("", "")


def _problem(seen: OverviewSnapshot, options: Options, width: int) -> list[Text]:
    """Name the first problem and what to do about it, or how to see the others too."""
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


def _sessions(seen: OverviewSnapshot, since_ms: int) -> Panel:
    now_ms = seen.ts + since_ms
    rows = [
        [
            _short(short_key(row.key)),
            _named(row),
            kind_of(row),
            _flat(row.channel),
            row.status,
            age(row.updated_at, now_ms),
            tokens_in_short((row.input_tokens or 0) + (row.output_tokens or 0)),
            "" if row.estimated_cost_usd is None else f"${row.estimated_cost_usd:.4f}",
            _doing(seen, row),
        ]
        for row in seen.sessions
    ]
    columns = ("sessions", "name", "kind", "channel", "status", "age", "tokens", "cost", "doing")
    return Panel(columns, ("kind", "channel", "name", "cost"), rows, len(rows), "sessions: none yet")


def _doing(seen: OverviewSnapshot, session: answers.SessionRow) -> str:
    run = seen.run_of(session.key) if session.status == "running" else None
    return _flat(seen.doing.get(run.run_id, "")) if run is not None else ""


def _named(session: answers.SessionRow) -> Long:
    name = _flat(name_of(session) or "")
    return Long(name, one_line(name, _SHORT_NAME))


def _runs(seen: OverviewSnapshot, since_ms: int) -> Panel:
    now_ms = seen.ts + since_ms
    rows = [
        [
            _flat(run_id.short),
            _short(short_key(run.session_key)),
            run.status if run.resume_at is None else "set aside",
            age(run.ended_at or run.started_at or run.accepted_at, now_ms),
            _what_of(seen, run, now_ms),
        ]
        for run_id, run in zip(short_ids([run.run_id for run in seen.runs]), seen.runs, strict=True)
    ]
    total = max(len(rows), seen.counts.runs)
    columns = ("runs", "session", "status", "age", "doing")
    return Panel(columns, ("age",), rows, total, "runs: none at work, none failed in 24 hours")


def _what_of(seen: OverviewSnapshot, run: answers.RunRow, now_ms: int) -> str:
    if run.status == "running":
        return _flat(seen.doing.get(run.run_id, ""))
    return _flat(result_of(run)) if run.resume_at is None else f"tried again in {until(run.resume_at, now_ms)}"


def _deliveries(seen: OverviewSnapshot, since_ms: int) -> Panel:
    now_ms = seen.ts + since_ms
    rows = [
        [
            _flat(delivery_id.short),
            delivery.state,
            age(delivery.created_at, now_ms),
            _flat(place_of(delivery)),
            "" if delivery.due_at is None else until(delivery.due_at, now_ms),
            _flat(delivery.error or delivery.text or ""),
        ]
        for delivery_id, delivery in zip(
            short_ids([delivery.id for delivery in seen.deliveries]), seen.deliveries, strict=True
        )
    ]
    total = max(len(rows), sum(seen.counts.deliveries.values()))
    columns = ("deliveries", "state", "age", "to", "next try", "error or text")
    return Panel(columns, ("age", "next try", "to"), rows, total, "deliveries: none waiting, failed or uncertain")


def tokens_in_short(count: int) -> str:
    """Show a number of tokens in a few characters."""
    if not count:
        return ""
    return str(count) if count < 10_000 else f"{count // 1000}k"


def _short(name: Long) -> Long:
    return Long(_flat(name.text), _flat(name.short))


def _flat(text: str) -> str:
    """Put what others wrote on one line that controls nothing."""
    return one_line(clean(text), LONGEST)
