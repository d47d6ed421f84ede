"""Figures beside their floors and goals, curves, and the sizes of a run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec


class Goal(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a figure has to hold; all that is given must be."""

    at_most: float | None = None
    at_least: float | None = None
    times_floor: float | None = None

    def is_met(self, value: float, ratio: float | None) -> bool:
        return (
            (self.at_most is None or value <= self.at_most)
            and (self.at_least is None or value >= self.at_least)
            and (self.times_floor is None or (ratio is not None and ratio <= self.times_floor))
        )


class Figure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One number, with the least that it could be."""

    name: str
    value: float
    unit: str
    """`ms`, `s`, `KiB`, `MiB`, `×`, `%`, or something per second, where more is better."""
    floor: float | None = None
    floor_is: str = ""
    goal: Goal | None = None
    detail: dict[str, float] = {}
    """Other numbers of the same measurement, such as p95 and p99."""

    @property
    def ratio(self) -> float | None:
        """How many times the floor it costs."""
        if not self.floor or not self.value:
            return None
        return self.floor / self.value if self.unit.endswith("/s") else self.value / self.floor

    @property
    def is_met(self) -> bool | None:
        """Whether the goal holds; None where there is none."""
        return None if self.goal is None else self.goal.is_met(self.value, self.ratio)


class Curve(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a cost grows with a size."""

    name: str
    size_is: str
    unit: str
    points: list[tuple[int, float]]
    floor: list[tuple[int, float]] = []


Finding = Figure | Curve | str
"""What a row tells as it goes: figures, curves, and in plain words what it does now."""
Findings = AsyncGenerator[Finding, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    rounds: int = 5
    """How often figure and floor are measured in turn; the median of the rounds counts."""
    calls: int = 100
    """Calls in a round."""
    growing_runs: int = 400
    conversations: tuple[int, ...] = (1_000, 10_000)
    """Messages in the sessions whose runs are measured beside those in new ones."""
    load_rounds: int = 3
    load_s: float = 2.0
    parallel: int = 64
    sessions: tuple[int, ...] = (1_000, 10_000, 100_000)
    messages: tuple[int, ...] = (1_000, 10_000, 100_000)
    waiting: int = 1_000
    starts: int = 5
    strangers: int = 1_100


FULL = Sizes()
QUICK = Sizes(
    rounds=3,
    calls=40,
    growing_runs=120,
    conversations=(100, 1_000),
    load_rounds=1,
    sessions=(1_000, 20_000),
    messages=(1_000, 20_000),
    starts=2,
)


def percentile(values: Sequence[float], percent: float) -> float:
    """Give the smallest value that so many percent of all are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@dataclass(slots=True)
class Timings:
    """The rounds of one measurement, in milliseconds."""

    rounds: list[list[float]] = field(default_factory=list)

    def add(self, values: list[float]) -> None:
        self.rounds.append(values)

    def at(self, percent: float) -> float:
        """Give the median over the rounds of a percentile: a moment in which the machine was busy does not count."""
        return statistics.median(percentile(values, percent) for values in self.rounds)

    @property
    def p50(self) -> float:
        return self.at(50)

    @property
    def tail(self) -> dict[str, float]:
        return {"p95": self.at(95), "p99": self.at(99)}


def growth(few: Timings, many: Timings) -> float:
    """Tell how many times as long it takes with many, round by round."""
    pairs = zip(few.rounds, many.rounds, strict=True)
    return statistics.median(statistics.median(many) / statistics.median(few) for few, many in pairs)


def time_calls(call: Callable[[], object], count: int) -> list[float]:
    """Time a call so many times, in milliseconds."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        took.append((time.perf_counter() - began) * 1000)
    return took


async def time_awaits(call: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Time an asynchronous call so many times, one after the other, in milliseconds."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        took.append((time.perf_counter() - began) * 1000)
    return took
