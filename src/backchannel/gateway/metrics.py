"""Numbers for `/metrics`, in Prometheus' text form.

Runs that end are counted as the hub tells of them; everything else is read where it is known, when it is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from backchannel.core.facts import RunChanged
from backchannel.core.runs import RunState
from backchannel.runtime.events import Event, Hub

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from backchannel.gateway.websocket import Door

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts what has no row of its own, and shows it with the rest."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._ended: Counter[RunState] = Counter()

    def listen_to(self, hub: Hub) -> Callable[[], None]:
        """Start counting; the function returned stops it."""
        return hub.listen(self._heard)

    def _heard(self, event: Event) -> None:
        if isinstance(event, RunChanged) and event.run.is_finished:
            self._ended[event.run.state] += 1

    async def show(self) -> bytes:
        """Write all numbers."""
        from prometheus_client import CollectorRegistry, generate_latest

        counts = await self._door.gateway.store.run_counts()
        registry = CollectorRegistry()
        registry.register(_Collected(list(self._families(counts))))
        return generate_latest(registry)

    def _families(self, counts: dict[str, int]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        gateway = self._door.gateway
        live = GaugeMetricFamily("backchannel_runs", "Runs that have not ended.", labels=["state"])
        for state in (RunState.QUEUED, RunState.RUNNING):
            live.add_metric([state.value], counts.get(state.value, 0))
        yield live
        ended = CounterMetricFamily("backchannel_runs_ended", "Runs that ended since the start.", labels=["state"])
        for state in RunState:
            if state.is_finished:
                ended.add_metric([state.value], self._ended[state])
        yield ended
        yield GaugeMetricFamily("backchannel_connections", "Open connections.", self._door.connections)
        yield GaugeMetricFamily("backchannel_runs_at_work", "Runs at work in this process.", gateway.runtime.running)
        yield CounterMetricFamily("backchannel_commits", "Commits since the start.", gateway.store.commits)
        yield CounterMetricFamily("backchannel_units", "Units of work in those commits.", gateway.store.units)
        yield GaugeMetricFamily("backchannel_uptime_seconds", "Time since the start.", self._door.uptime_ms / 1000)


class _Collected:
    """Families that are complete already, as the registry wants them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
