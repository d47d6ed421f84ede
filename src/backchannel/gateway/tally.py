"""What is counted as it happens, because no row has it: ends of runs and deliveries, tokens, HTTP requests.

Labels are words of ours, or names that the configuration has: nobody outside can make new ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator

from starlette.types import Message, Scope, Send

from backchannel.core.delivery import DeliveryState
from backchannel.core.facts import DeliveryChanged, MessageAppended, RunChanged
from backchannel.core.messages import Role, Usage
from backchannel.core.runs import Run, RunKind, RunState
from backchannel.runtime.events import Event

DURATION_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DELIVERY_ENDS = (DeliveryState.SENT, DeliveryState.FAILED, DeliveryState.UNCERTAIN)

_DOORS = {
    "/": "page",
    "/healthz": "health",
    "/readyz": "health",
    "/metrics": "metrics",
    "/tools/invoke": "tools",
    "/mcp": "mcp",
}
_DOORS_BELOW = {"/v1/": "openai", "/hooks/": "hooks", "/channels/": "channels"}


class Durations:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(DURATION_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(DURATION_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> Iterator[tuple[str, float]]:
        """Give each bound with how many are not above it, as Prometheus wants them."""
        total = 0
        for bound, count in zip((*map(str, DURATION_BUCKETS_S), "+Inf"), self._counts, strict=True):
            total += count
            yield bound, total


class Tally:
    """The counts of one gateway since its start."""

    def __init__(self) -> None:
        self.runs: Counter[RunState] = Counter()
        self.cron_runs: Counter[RunState] = Counter()
        self.durations = Durations()
        self.tokens: Counter[tuple[str, str]] = Counter()
        """By provider and direction."""
        self.cost: defaultdict[str, float] = defaultdict(float)
        """In dollars, by provider."""
        self.deliveries: Counter[DeliveryState] = Counter()
        self.requests: Counter[tuple[str, int]] = Counter()
        """By door and status."""

    @property
    def failed_logins(self) -> Counter[str]:
        """Wrong tokens and signatures over HTTP, by door."""
        return Counter({door: count for (door, status), count in self.requests.items() if status == 401})

    def heard(self, event: Event) -> None:
        if isinstance(event, RunChanged):
            if event.run.is_finished:
                self._ended(event.run)
        elif isinstance(event, MessageAppended):
            said = event.message
            if said.role is Role.ASSISTANT and said.usage is not None:
                self._used(said.model, said.usage)
        elif isinstance(event, DeliveryChanged) and event.delivery.state in DELIVERY_ENDS:
            self.deliveries[event.delivery.state] += 1

    def _ended(self, run: Run) -> None:
        self.runs[run.state] += 1
        self.durations.add(run.ran_ms / 1000)
        if run.kind is RunKind.CRON:
            self.cron_runs[run.state] += 1

    def _used(self, model: str | None, usage: Usage) -> None:
        provider = (model or "unknown").partition("/")[0]
        self.tokens[provider, "input"] += usage.input
        self.tokens[provider, "output"] += usage.output
        if usage.cost is not None:
            self.cost[provider] += usage.cost

    def watch(self, scope: Scope, send: Send) -> Send:
        """Count an HTTP request by the answer that it gets."""
        door = _door_of(scope["path"])

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.requests[door, message["status"]] += 1
            await send(message)

        return counting


def _door_of(path: str) -> str:
    known = _DOORS.get(path)
    return known or next((door for start, door in _DOORS_BELOW.items() if path.startswith(start)), "other")
