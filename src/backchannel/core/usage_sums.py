"""Sums of model usage by session, agent, day and model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from backchannel.core.keys import SessionKey
from backchannel.core.sessions import Session


class UsedTogether(NamedTuple):
    """What the runs of one session used of one model on one day of UTC."""

    session_key: str
    day: int
    """Counts days since 1970."""
    model: str
    runs: int
    failed: int
    tokens_in: int
    tokens_out: int
    cost: float
    unpriced: int
    """How many of the runs used a model whose price is not known."""
    first: int
    last: int


@dataclass(slots=True)
class UsedSum:
    """What some runs used."""

    runs: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    unpriced: int = 0

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    def add(self, used: UsedTogether | UsedSum) -> None:
        self.runs += used.runs
        self.failed += used.failed
        self.tokens_in += used.tokens_in
        self.tokens_out += used.tokens_out
        self.cost += used.cost
        self.unpriced += used.unpriced


@dataclass(slots=True)
class UsedInTime:
    """What some runs used: in all, and by days and models."""

    total: UsedSum = field(default_factory=UsedSum)
    days: dict[int, UsedSum] = field(default_factory=lambda: defaultdict(UsedSum))
    models: dict[str, UsedSum] = field(default_factory=lambda: defaultdict(UsedSum))
    models_of_days: dict[tuple[int, str], UsedSum] = field(default_factory=lambda: defaultdict(UsedSum))
    first: int | None = None
    last: int | None = None

    def add(self, used: UsedTogether) -> None:
        for each in (
            self.total,
            self.days[used.day],
            self.models[used.model],
            self.models_of_days[used.day, used.model],
        ):
            each.add(used)
        self.first = used.first if self.first is None else min(self.first, used.first)
        self.last = used.last if self.last is None else max(self.last, used.last)


@dataclass(slots=True)
class UsedBySession:
    """What all runs used together, and those of each session and agent."""

    together: UsedInTime = field(default_factory=UsedInTime)
    sessions: dict[str, UsedInTime] = field(default_factory=lambda: defaultdict(UsedInTime))
    agents: dict[str, UsedSum] = field(default_factory=lambda: defaultdict(UsedSum))
    is_part: bool = False
    """Whether not all runs were looked at."""


class UsedByTree(NamedTuple):
    """What the runs of trees of sessions used."""

    sums: UsedBySession
    trees: list[tuple[str, Session | None, UsedSum]]
    """The dearest, each by the session at its top, which may be deleted."""
    total: int
    """How many trees there are."""


def sum_up(rows: Iterable[UsedTogether], *, is_part: bool = False) -> UsedBySession:
    """Add up what was used."""
    sums = UsedBySession(is_part=is_part)
    for used in rows:
        sums.together.add(used)
        sums.sessions[used.session_key].add(used)
        sums.agents[SessionKey.stored(used.session_key).agent].add(used)
    return sums
