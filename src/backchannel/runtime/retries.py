"""Retries of models: the runs whose model failed and is asked again.

They are kept in memory, for readers of a run between two events. For a run on another gateway only the events are
known here.
"""

from __future__ import annotations

from backchannel.core.facts import RunChanged
from backchannel.runtime.events import Event, Hub, ModelRetried, ReplyGrew, ThinkingGrew, ToolStarted


class Retries:
    """The last retry of each run whose model has said nothing since."""

    def __init__(self, hub: Hub) -> None:
        self._by_run: dict[str, ModelRetried] = {}
        hub.listen(self._on_event, ModelRetried, ReplyGrew, ThinkingGrew, ToolStarted, RunChanged)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ModelRetried):
            self._by_run[event.run.id] = event
        elif self._by_run and isinstance(event, ReplyGrew | ThinkingGrew | ToolStarted | RunChanged):
            self._by_run.pop(event.run.id, None)

    def of(self, run_id: str) -> ModelRetried | None:
        """Tell why the model of a run is asked again; None if it is not."""
        return self._by_run.get(run_id)
