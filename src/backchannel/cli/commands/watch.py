"""`backchannel watch`: keep sessions, runs and deliveries up to date in one picture.

Without a terminal to draw on, it prints lines. The first lines show all that the picture would show. Later lines show
each session, run and delivery that changed, and the gateway when its problems changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import typer

from backchannel.cli import answers
from backchannel.cli.commands.deliveries import place_of
from backchannel.cli.commands.runs import result_of
from backchannel.cli.commands.sessions import session_line
from backchannel.cli.live import PipedOutput, deleted_session, is_drawn, keep_watching
from backchannel.cli.options import AsJson, options_of
from backchannel.cli.output import clean, clock_time, counted, say, show_json
from backchannel.cli.overview import Overview, OverviewSnapshot
from backchannel.cli.watch_screen import Board


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """One thing that changed, and when."""

    at: int
    what: str
    id: str
    value: object
    line: str


class Changes(PipedOutput):
    """A line for each change since the last look."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(as_json=as_json)
        self._problems: object = None

    def show(self, snapshot: OverviewSnapshot, deleted: set[str]) -> None:
        is_first = self._problems is None
        others = snapshot.others
        sessions = {session.key: session for session in snapshot.sessions}
        changes = [_deleted(key, snapshot.ts) for key in self.deleted(deleted, sessions)]
        changes += map(_session, self.changed("session", sessions))
        # Of two rows of one thing, that which was read later counts.
        runs = {run.run_id: run for run in (*snapshot.runs, *others.runs)}
        deliveries = {delivery.id: delivery for delivery in (*snapshot.deliveries, *others.deliveries)}
        changes += map(_run, self.changed("run", runs, _run_state))
        changes += map(_delivery, self.changed("delivery", deliveries, _attempt))
        for change in self._gateway(snapshot):
            self._say(change)
        shown = {run.run_id for run in snapshot.runs} | {delivery.id for delivery in snapshot.deliveries}
        for change in sorted(changes, key=lambda change: change.at):
            if not is_first or change.what == "session" or change.id in shown:
                self._say(change)

    def _gateway(self, seen: OverviewSnapshot) -> Iterator[ChangeLine]:
        status, problems = seen.status.status, seen.status.problems
        if problems != self._problems:
            self._problems = problems
            first = f"  {counted(len(problems), 'problem')}: {problems[0].message}" if problems else ""
            yield ChangeLine(seen.ts, "status", "", status, f"gateway   {status}{first}")

    def _say(self, change: ChangeLine) -> None:
        if self._as_json:
            problems = {"problems": self._problems} if change.what == "status" else {}
            show_json({"type": change.what, change.what: change.value, **problems}, lines=True)
        else:
            say(clean(f"{clock_time(change.at)}  {change.line}").replace("\n", " "))


def _deleted(key: str, now_ms: int) -> ChangeLine:
    return ChangeLine(now_ms, "session", key, deleted_session(key, now_ms), f"session   {key}  deleted")


def _session(row: answers.SessionRow) -> ChangeLine:
    return ChangeLine(row.updated_at, "session", row.key, row, "session   " + session_line(row, with_time=False))


def _run_state(row: answers.RunRow) -> object:
    return row.status, row.error, row.resume_at, row.waits_for, row.waiting_for, row.retry


def _run(row: answers.RunRow) -> ChangeLine:
    at = row.ended_at or row.started_at or row.accepted_at
    words = ["run     ", row.run_id, row.session_key, row.status, " ".join(result_of(row).split())]
    return ChangeLine(at, "run", row.run_id, row, "  ".join(word for word in words if word))


def _attempt(row: answers.ReceiptRow) -> object:
    return row.state, row.attempts, row.error


def _delivery(row: answers.ReceiptRow) -> ChangeLine:
    words = ["delivery", row.id, row.state, place_of(row), " ".join((row.error or "").split())]
    return ChangeLine(row.updated_at, "delivery", row.id, row, "  ".join(word for word in words if word))


def watch(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Watch sessions, runs and deliveries until Ctrl-C. Piped, or with --json, it prints a line for each change."""
    options = options_of(ctx)
    if is_drawn(as_json=as_json):
        keep_watching(options, Overview(), Board(options))
    else:
        keep_watching(options, Overview(is_every_end_told=True), Changes(as_json=as_json))
