"""Numbers for `/metrics`, in Prometheus' text form.

Ends of runs and deliveries, tokens and HTTP requests are counted as they happen, since no row counts them. Everything
else is read when somebody asks for the numbers. Labels are fixed words, or names from the configuration. So nobody
outside can make new ones.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from starlette.types import Message, Scope, Send

from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.facts import DeliveryChanged, JobSkipped, MessageAppended, RunChanged
from backchannel.core.messages import Role, Usage
from backchannel.core.money.amounts import amount_in_unit
from backchannel.core.money.budgets import BudgetState, spent_share
from backchannel.core.policy.checks import JobSkip
from backchannel.core.runs import Run, RunKind, RunState
from backchannel.core.supervision import ServiceHealth
from backchannel.gateway.condition import Amounts, Condition, examine, named_models
from backchannel.gateway.ws.connections import Connections
from backchannel.runtime.events import Event, Hub
from backchannel.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[tuple[str, ...], float]]
_ENDS = tuple(state for state in RunState if state.is_finished)


class Metrics:
    """Shows how much of everything there is, and was since the start."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.tally = Tally()

    def listen_to(self, hub: Hub) -> Callable[[], None]:
        """Start counting; the function returned stops it."""
        return hub.listen(self.tally.count, RunChanged, MessageAppended, DeliveryChanged, JobSkipped)

    async def show(self) -> bytes:
        """Write all numbers."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        condition = await examine(self._connections.parts)
        counted = _counted(condition.amounts) if condition.amounts else ()  # left out while the database is away
        registry = CollectorRegistry()
        registry.register(_Collected([*self._now(condition), *counted, *self._since_start()]))
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    def _now(self, condition: Condition) -> Iterator[Metric]:
        parts = self._connections.parts
        build = (__version__, platform.python_version())
        yield _gauge("build_info", "What is running.", [(build, 1)], ("version", "python"))
        yield _gauge("uptime_seconds", "Time since the start.", self._connections.uptime_ms / 1000)
        yield _gauge("ready", "Whether messages can be accepted.", float(condition.refusal is None))
        problems = [((problem.code,), 1.0) for problem in condition.problems]
        yield _gauge(
            "problems", "What is wrong, as status tells it; absent when it is not.", dict(problems).items(), ("code",)
        )
        yield from _services(parts.supervisor.health())
        yield _gauge("runs_at_work", "Runs at work in this process.", parts.runtime.running)
        down = {each.model for each in parts.runtime.model_calls.all_down()}
        models = {((ref,), float(ref not in down)) for ref in (*(ref for _, ref in named_models(parts)), *down)}
        yield _gauge("model_up", "Whether a model is asked; 0 while it is left alone.", sorted(models), ("model",))
        yield _gauge("connections", "Open connections.", self._connections.count)
        if parts.mcp_servers is not None:
            counts = [(("up",), parts.mcp_servers.up), (("down",), len(parts.mcp_servers.down()))]
            yield _gauge("mcp_servers", "MCP servers that agents needed.", counts, ("state",))
        yield from self._slots()
        yield _gauge("disk_free_bytes", "Room on the disk of the state folder.", condition.free_bytes)

    def _slots(self) -> Iterator[Metric]:
        gates = self._connections.parts.gates
        limits = [((each.kind,), each.limit) for each in gates.counts()]
        yield _gauge("slots", "How many may work at once.", limits, ("kind",))
        used = [(each.kind, each.agent_id) for each in gates.uses() if not each.is_waiting]
        waiting = [(each.kind, each.agent_id) for each in gates.uses() if each.is_waiting]
        yield _gauge("slots_used", "Work that has a slot.", Counter(used).items(), ("kind", "agent"))
        yield _gauge("slots_waiting", "Work that waits for a slot.", Counter(waiting).items(), ("kind", "agent"))

    def _since_start(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        tally, store = self.tally, self._connections.parts.store
        yield _counter("runs_ended", "Runs that ended.", [((s.value,), tally.runs[s]) for s in _ENDS], ("state",))
        durations = tally.durations
        yield HistogramMetricFamily(
            "backchannel_run_duration_seconds",
            "How long runs that ended had run.",
            buckets=list(durations.buckets()),
            sum_value=durations.sum_s,
        )
        cron = [((s.value,), tally.cron_runs[s]) for s in _ENDS]
        yield _counter("cron_runs_ended", "Runs of jobs that ended.", cron, ("state",))
        skips = [((reason.value,), tally.skips[reason.value]) for reason in JobSkip]
        yield _counter("cron_skipped", "Times of jobs that became no run.", skips, ("reason",))
        ends = [((s.value,), tally.deliveries[s]) for s in DELIVERY_ENDS]
        yield _counter(
            "deliveries_ended",
            "Deliveries by how they ended; retries count again.",
            ends,
            ("state",),
        )
        yield _counter("tokens", "Tokens that models used.", tally.tokens.items(), ("provider", "direction"))
        shares = [((model,), used.cache_read / used.sent) for model, used in tally.inputs.items() if used.sent]
        yield _gauge("cache_share", "The part of the input that was read from a cache.", shares, ("model",))
        cost = [((provider,), dollars) for provider, dollars in tally.cost.items()]
        yield _counter("cost_dollars", "What models with a price cost.", cost, ("provider",))
        requests = [((door, str(status)), count) for (door, status), count in tally.requests.items()]
        yield _counter("http_requests", "HTTP requests that were answered.", requests, ("door", "status"))
        logins = {**tally.failed_logins, "websocket": self._connections.failed_logins}
        wrong = [((door,), count) for door, count in logins.items()]
        yield _counter("failed_logins", "Wrong tokens and signatures.", wrong, ("door",))
        yield _counter("commits", "Commits.", store.driver.commits)
        yield _counter("units", "Units of work in those commits.", store.driver.units)
        watchdog = self._connections.parts.runtime.watchdog
        yield _counter("loop_stalls", "How often the event loop was held.", watchdog.stalls)
        yield _gauge("loop_longest_stall_seconds", "The longest time that it was held.", watchdog.longest_s)


def _services(known: Mapping[str, ServiceHealth]) -> Iterator[Metric]:
    def moments(moment: Callable[[ServiceHealth], int | None]) -> Samples:
        return [((name,), ms / 1000) for name, each in known.items() if (ms := moment(each)) is not None]

    label, up = ("service",), [((name,), float(each.is_up)) for name, each in known.items()]
    yield _gauge("service_up", "Whether a part of the gateway that is kept going works.", up, label)
    since, failed = moments(lambda each: each.since_ms), moments(lambda each: each.error_at_ms)
    due = moments(lambda each: each.next_try_ms)
    yield _gauge("service_since_timestamp_seconds", "Since when it has been up, or down.", since, label)
    yield _gauge("service_last_error_timestamp_seconds", "When it failed last; absent if it never did.", failed, label)
    yield _gauge(
        "service_next_try_timestamp_seconds", "When it is tried again; absent if it does not wait for that.", due, label
    )


def _counted(amounts: Amounts) -> Iterator[Metric]:
    troubles, states = amounts.troubles, (RunState.QUEUED, RunState.RUNNING)
    runs, deliveries = [((s.value,), amounts.runs.get(s.value, 0)) for s in states], troubles.deliveries
    in_line = deliveries.get("pending", 0) + deliveries.get("sending", 0)
    lost = [((state,), deliveries.get(state, 0)) for state in ("failed", "uncertain")]
    yield _gauge("runs", "Runs that have not ended.", runs, ("state",))
    yield _gauge("runs_set_aside", "Queued runs that wait for another try.", troubles.runs_set_aside)
    yield _gauge("runs_waiting", "Queued runs that wait for a model.", troubles.runs_waiting)
    yield _gauge("deliveries", "Deliveries that are not settled.", [(("waiting",), in_line), *lost], ("state",))
    yield _gauge("cron_jobs", "Jobs that come by the clock.", troubles.jobs)
    yield from _budgets(amounts.budgets)


def _budgets(states: list[BudgetState]) -> Iterator[Metric]:
    """Show what is spent of each budget by all its subjects together: sessions and senders are too many for labels."""

    def of_each(amount: Callable[[BudgetState], float]) -> Samples:
        return [((state.budget.name, state.budget.unit), amount(state)) for state in states]

    def in_unit(state: BudgetState, amount: int) -> float:
        return amount_in_unit(amount, state.budget.unit)

    label = ("budget", "unit")
    limits = of_each(lambda state: in_unit(state, state.budget.limit))
    yield _gauge("budget_limit", "The amount that each subject of a budget may spend.", limits, label)
    spent = of_each(lambda state: in_unit(state, state.spent))
    yield _gauge("budget_spent", "What all subjects have spent in the current window.", spent, label)
    held = of_each(lambda state: in_unit(state, state.reserved))
    yield _gauge("budget_reserved", "What calls under way may cost at most, besides.", held, label)
    fullest = of_each(lambda state: max((spent_share(state.budget, row) for row in state.rows), default=0.0))
    yield _gauge("budget_fullest_share", "The part that the fullest subject has spent; 1 is all.", fullest, label)
    waiting = of_each(lambda state: state.waiting)
    yield _gauge("budget_runs_waiting", "Runs that wait for a budget.", waiting, label)


def _gauge(name: str, what: str, samples: Samples | float, labels: tuple[str, ...] = ()) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _with(GaugeMetricFamily(f"backchannel_{name}", what, labels=labels), samples)


def _counter(name: str, what: str, samples: Samples | float, labels: tuple[str, ...] = ()) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _with(CounterMetricFamily(f"backchannel_{name}", what, labels=labels), samples)


def _with(family: Metric, samples: Samples | float) -> Metric:
    for labels, value in [((), samples)] if isinstance(samples, int | float) else samples:
        family.add_metric(labels, value)  # type: ignore[attr-defined]  # both kinds have it, their base has not
    return family


class _Collected:
    """Families that are complete already, as the registry wants them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


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
_DOORS_BELOW = {"/page/": "page", "/v1/": "openai", "/hooks/": "hooks", "/channels/": "channels"}


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
        self.skips: Counter[str] = Counter()
        self.durations = Durations()
        self.tokens: Counter[tuple[str, str]] = Counter()
        """By provider and direction."""
        self.inputs: defaultdict[str, Usage] = defaultdict(Usage)
        """By model, for what providers tell of their cache."""
        self.cost: defaultdict[str, float] = defaultdict(float)
        """In dollars, by provider."""
        self.deliveries: Counter[DeliveryState] = Counter()
        self.requests: Counter[tuple[str, int]] = Counter()
        """By door and status."""

    @property
    def failed_logins(self) -> Counter[str]:
        """Wrong tokens and signatures over HTTP, by door."""
        return Counter({door: count for (door, status), count in self.requests.items() if status == 401})

    def count(self, event: Event) -> None:
        if isinstance(event, RunChanged):
            if event.run.is_finished:
                self._ended(event.run)
        elif isinstance(event, MessageAppended):
            said = event.message
            is_own = said.role is Role.ASSISTANT or said.compaction is not None  # a summary costs like a reply
            if is_own and said.usage is not None:
                self._used(said.model, said.usage)
        elif isinstance(event, JobSkipped):
            self.skips[event.reason] += 1
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
        self.tokens[provider, "cache_read"] += usage.cache_read
        self.tokens[provider, "cache_write"] += usage.cache_write
        before = self.inputs[model or "unknown"]
        self.inputs[model or "unknown"] = Usage(
            input=before.input + usage.input,
            cache_read=before.cache_read + usage.cache_read,
            cache_write=before.cache_write + usage.cache_write,
        )
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
