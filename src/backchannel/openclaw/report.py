"""What became of an import: a line for each session, and everything that was not as it should be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from backchannel.cli.output import say, show_facts, show_table
from backchannel.core.keys import SessionKey

MOST_PROBLEMS = 50
"""How many lines of one file are named; of the others only the number is told."""
MOST_SHOWN = 200
MOST_TYPES = 20


class Action(StrEnum):
    """What was done with a session, or would be."""

    NEW = "new"
    MORE = "more"
    UNCHANGED = "unchanged"
    SKIPPED = "skipped"


@dataclass(slots=True)
class Result:
    """What became of one session."""

    name: str
    file: str
    line: int
    key: str | None = None
    session_id: str | None = None
    action: Action = Action.SKIPPED
    messages: int = 0
    written: int = 0
    reason: str | None = None
    remarks: list[str] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """Show it as JSON does; what is not known is absent."""
        told = {
            "from": self.name,
            "where": f"{self.file}:{self.line}",
            "key": self.key,
            "sessionId": self.session_id,
            "action": self.action.value,
            "messages": self.messages,
            "written": self.written,
            "reason": self.reason,
            "remarks": self.remarks,
        }
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a file that was passed over."""

    file: str
    line: int
    what: str


@dataclass(slots=True)
class Report:
    """Everything there is to tell about an import."""

    results: list[Result] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unnamed: Counter[str] = field(default_factory=Counter)
    """Of each file, how many problems are not among the `problems`."""
    silent: Counter[str] = field(default_factory=Counter)
    """Lines that are no messages, by their type."""
    unknown: Counter[str] = field(default_factory=Counter)
    """The same, of types that nobody here has heard of."""
    blocks_left_out: int = 0
    strays: int = 0
    """Transcripts that no session points to."""

    def add_problem(self, problem: Problem) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.unnamed[problem.file] += 1

    def add_silent(self, type: str, *, is_known: bool) -> None:
        types = self.silent if is_known else self.unknown
        types[type if type in types or len(types) < MOST_TYPES else "of other types"] += 1

    def add_file(self, other: Report) -> None:
        """Add what was found in one file."""
        self.problems += other.problems
        for mine, others in (
            (self.unnamed, other.unnamed),
            (self.silent, other.silent),
            (self.unknown, other.unknown),
        ):
            mine.update(others)
        self.blocks_left_out += other.blocks_left_out

    def count(self, action: Action) -> int:
        return sum(result.action is action for result in self.results)

    @property
    def changed(self) -> int:
        """How many sessions are new, or have something new."""
        return self.count(Action.NEW) + self.count(Action.MORE)

    @property
    def has_work(self) -> bool:
        """Whether anything is new."""
        return self.changed > 0

    @property
    def messages(self) -> int:
        return sum(result.written for result in self.results)

    @property
    def agents(self) -> list[str]:
        """The agents whose sessions are taken."""
        taken = (result for result in self.results if result.action is not Action.SKIPPED)
        return sorted({SessionKey.stored(result.key).agent for result in taken if result.key is not None})

    def told(self) -> dict[str, Any]:
        """Show it as JSON does."""
        return {
            "counts": {**{action.value: self.count(action) for action in Action}, "messages": self.messages},
            "sessions": [result.told() for result in self.results],
            "problems": [{"file": one.file, "line": one.line, "what": one.what} for one in self.problems],
            "moreProblems": dict(self.unnamed),
            "otherLines": dict(self.silent),
            "unknownLines": dict(self.unknown),
            "blocksLeftOut": self.blocks_left_out,
            "transcriptsWithoutSession": self.strays,
        }


def show_report(report: Report, *, unconfigured: list[str]) -> None:
    """Print a report for people."""
    shown = report.results[:MOST_SHOWN]
    rows = [[one.action, one.key or one.name, one.written, one.messages, _note(one)] for one in shown]
    show_table(["what", "session", "new messages", "of", "note"], rows, empty="There are no sessions.")
    if len(report.results) > MOST_SHOWN:
        say(f"… and {len(report.results) - MOST_SHOWN} more: --json shows all of them.")
    if report.problems:
        say()
        places = [[f"{one.file}:{one.line}", one.what] for one in report.problems]
        show_table(["passed over", "why"], places, empty="")
        for file, number in report.unnamed.items():
            say(f"… and {number} more in {file}.")
    say()
    show_facts(
        {
            "sessions": ", ".join(f"{report.count(action)} {action}" for action in Action if report.count(action)),
            "messages": f"{report.messages} new",
            "other lines": _counted(report.silent),
            "unknown lines": _counted(report.unknown),
            "unknown blocks": report.blocks_left_out or None,
            "left alone": f"{report.strays} transcripts that no session points to" if report.strays else None,
            "agents to configure": ", ".join(unconfigured),
        }
    )


def _note(result: Result) -> str:
    renamed = [f"was {result.name}"] if result.key is not None and result.key != result.name else []
    reason = [result.reason] if result.reason else []
    return "; ".join([*reason, *renamed, *result.remarks])


def _counted(types: Counter[str]) -> str:
    return ", ".join(f"{number} {type}" for type, number in types.most_common())
