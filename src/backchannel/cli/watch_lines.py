"""What `watch` prints where nothing can be drawn: a line for each thing that changed.

At first there is a line for whatever the picture would show; then one for each session, run and delivery that changed,
and for the gateway when something else is wrong than before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from backchannel.cli.client import Payload
from backchannel.cli.deliveries import place_of
from backchannel.cli.live import Piped
from backchannel.cli.output import clean, clock_time, counted, say, show_json
from backchannel.cli.overview import OverviewSnapshot
from backchannel.cli.runs import result_of
from backchannel.cli.sessions import line_of


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """One thing that changed, and when."""

    at: int
    what: str
    value: Payload
    line: str


class Changes(Piped):
    """Says what changed since the last look."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._known: dict[str, dict[str, object]] = {"session": {}, "run": {}, "delivery": {}}
        """The state of each thing in the last look."""
        self._problems: object = None

    def show(self, snapshot: OverviewSnapshot, deleted: set[str]) -> None:
        is_first = self._problems is None
        others = snapshot.others
        changes = [*self._sessions(snapshot, deleted)]
        changes += self._changed("run", _each("runId", snapshot.runs, others.runs), _run, _run_state)
        changes += self._changed("delivery", _each("id", snapshot.deliveries, others.deliveries), _delivery, _attempt)
        for change in self._gateway(snapshot):
            self._say(change)
        shown = {row["runId"] for row in snapshot.runs} | {row["id"] for row in snapshot.deliveries}
        for change in sorted(changes, key=lambda change: change.at):
            if not is_first or change.what == "session" or _id_of(change) in shown:
                self._say(change)

    def _gateway(self, seen: OverviewSnapshot) -> Iterator[ChangeLine]:
        problems = seen.status["problems"]
        if problems != self._problems:
            self._problems = problems
            told = {"status": seen.status["status"], "problems": problems}
            first = f"  {counted(len(problems), 'problem')}: {problems[0]['message']}" if problems else ""
            yield ChangeLine(seen.ts, "status", told, f"gateway   {told['status']}{first}")

    def _sessions(self, seen: OverviewSnapshot, deleted: set[str]) -> Iterator[ChangeLine]:
        rows = {session["key"]: session for session in seen.sessions}
        for key in sorted((deleted & self._known["session"].keys()) - rows.keys()):
            yield _session({"key": key, "status": "deleted", "updatedAt": seen.ts})
        yield from self._changed("session", rows, _session, lambda row: row)

    def _changed(
        self,
        what: str,
        rows: dict[str, Payload],
        change_of: Callable[[Payload], ChangeLine],
        state_of: Callable[[Payload], object],
    ) -> Iterator[ChangeLine]:
        known, self._known[what] = self._known[what], {id_: state_of(row) for id_, row in rows.items()}
        for id_, row in rows.items():
            if known.get(id_) != state_of(row):
                yield change_of(row)

    def _say(self, change: ChangeLine) -> None:
        if self._as_json:
            body = change.value if change.what == "status" else {change.what: change.value}
            show_json({"type": change.what} | body, lines=True)
        else:
            say(clean(f"{clock_time(change.at)}  {change.line}").replace("\n", " "))


def _each(name: str, *lists: Iterable[Payload]) -> dict[str, Payload]:
    """The rows by their ids; of two, the one that was read later."""
    return {row[name]: row for rows in lists for row in rows}


def _id_of(change: ChangeLine) -> str:
    return str(change.value.get("runId") if change.what == "run" else change.value.get("id"))


def _session(row: Payload) -> ChangeLine:
    return ChangeLine(row["updatedAt"], "session", row, "session   " + line_of(row, with_time=False))


def _run_state(row: Payload) -> object:
    return row["status"], row.get("error"), row.get("resumeAt"), row.get("waitingFor")


def _run(row: Payload) -> ChangeLine:
    at = row.get("endedAt") or row.get("startedAt") or row["acceptedAt"]
    words = ["run     ", row["runId"], row["sessionKey"], row["status"], " ".join(result_of(row).split())]
    return ChangeLine(at, "run", row, "  ".join(word for word in words if word))


def _attempt(row: Payload) -> object:
    return row["state"], row["attempts"], row.get("error")


def _delivery(row: Payload) -> ChangeLine:
    words = ["delivery", row["id"], row["state"], place_of(row), " ".join(row.get("error", "").split())]
    return ChangeLine(row["updatedAt"], "delivery", row, "  ".join(word for word in words if word))
