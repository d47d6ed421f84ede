"""Numbers for `/metrics`, in Prometheus' text form.

What was counted as it happened comes from the tally; everything else is read where it is known, when it is asked for.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from backchannel.core.runs import RunState
from backchannel.gateway.connections import Connections
from backchannel.gateway.health import Condition, examine
from backchannel.gateway.tally import DELIVERY_ENDS, Tally
from backchannel.runtime.events import Hub
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
        return hub.listen(self.tally.heard)

    async def show(self) -> bytes:
        """Write all numbers."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        parts = self._connections.parts
        counts, condition = await parts.store.run_counts(), await examine(parts)
        registry = CollectorRegistry()
        registry.register(_Collected([*self._now(counts, condition), *self._since_start()]))
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    def _now(self, runs: dict[str, int], condition: Condition) -> Iterator[Metric]:
        parts, troubles = self._connections.parts, condition.troubles
        states, waiting = (RunState.QUEUED, RunState.RUNNING), troubles.deliveries
        in_line = waiting.get("pending", 0) + waiting.get("sending", 0)
        lost = [((state,), waiting.get(state, 0)) for state in ("failed", "uncertain")]
        build = (__version__, platform.python_version())
        yield _gauge("build_info", "What is running.", [(build, 1)], ("version", "python"))
        yield _gauge("uptime_seconds", "Time since the start.", self._connections.uptime_ms / 1000)
        yield _gauge("ready", "Whether messages can be accepted.", float(condition.refusal is None))
        problems = [((problem.code,), 1.0) for problem in condition.problems]
        yield _gauge(
            "problems", "What is wrong, as status tells it; absent when it is not.", dict(problems).items(), ("code",)
        )
        yield _gauge(
            "runs", "Runs that have not ended.", [((s.value,), runs.get(s.value, 0)) for s in states], ("state",)
        )
        yield _gauge("runs_at_work", "Runs at work in this process.", parts.runtime.running)
        yield _gauge("runs_set_aside", "Queued runs that wait for another try.", troubles.runs_set_aside)
        yield _gauge("deliveries", "Deliveries that are not settled.", [(("waiting",), in_line), *lost], ("state",))
        yield _gauge("cron_jobs", "Jobs that come by the clock.", troubles.jobs)
        yield _gauge("connections", "Open connections.", self._connections.count)
        yield _gauge("disk_free_bytes", "Room on the disk of the state folder.", condition.free_bytes)

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
        ends = [((s.value,), tally.deliveries[s]) for s in DELIVERY_ENDS]
        yield _counter(
            "deliveries_ended",
            "Deliveries by how they ended; retries count again.",
            ends,
            ("state",),
        )
        yield _counter("tokens", "Tokens that models used.", tally.tokens.items(), ("provider", "direction"))
        cost = [((provider,), dollars) for provider, dollars in tally.cost.items()]
        yield _counter("cost_dollars", "What models with a price cost.", cost, ("provider",))
        requests = [((door, str(status)), count) for (door, status), count in tally.requests.items()]
        yield _counter("http_requests", "HTTP requests that were answered.", requests, ("door", "status"))
        logins = {**tally.failed_logins, "websocket": self._connections.failed_logins}
        wrong = [((door,), count) for door, count in logins.items()]
        yield _counter("failed_logins", "Wrong tokens and signatures.", wrong, ("door",))
        yield _counter("commits", "Commits.", store.commits)
        yield _counter("units", "Units of work in those commits.", store.units)
        watchdog = self._connections.parts.runtime.watchdog
        yield _counter("loop_stalls", "How often the event loop was held.", watchdog.stalls)
        yield _gauge("loop_longest_stall_seconds", "The longest time that it was held.", watchdog.longest_s)


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
