"""The journal: what went wrong is in the log once it is committed, and which channels fail is remembered.

It lives on facts, so that nothing is told that did not happen, and each thing is told once.
"""

from __future__ import annotations

import structlog

from backchannel.core.delivery import Delivery, DeliveryState
from backchannel.core.facts import DeliveryChanged, RunChanged
from backchannel.core.runs import Run, RunState
from backchannel.runtime.events import Event

log = structlog.get_logger(__name__)

DOWN_AFTER = 3
"""A channel is down when this many attempts to send in a row have failed."""
_LONGEST_ERROR = 300


class Journal:
    """Writes failures into the log, and knows the channels that are down."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, str]] = {}

    @property
    def channels_down(self) -> dict[str, str]:
        """The channels over which nothing gets through, each with the last error."""
        return {name: error for name, (count, error) in self._failures.items() if count >= DOWN_AFTER}

    def heard(self, event: Event) -> None:
        if isinstance(event, RunChanged):
            if event.run.state in (RunState.ERROR, RunState.TIMEOUT):
                _tell_run(event.run)
        elif isinstance(event, DeliveryChanged):
            self._heard_delivery(event.delivery)

    def _heard_delivery(self, delivery: Delivery) -> None:
        match delivery.state:
            case DeliveryState.SENT:
                self._got_through(delivery.channel or "")
            case DeliveryState.PENDING if delivery.due_at is not None and delivery.error is not None:
                self._failed(delivery.channel or "", delivery.error)
            case DeliveryState.UNCERTAIN:
                self._failed(delivery.channel or "", delivery.error or "")
                _tell_delivery(delivery)
            case DeliveryState.FAILED:
                _tell_delivery(delivery)

    def _failed(self, channel: str, error: str) -> None:
        count = self._failures.get(channel, (0, ""))[0] + 1
        self._failures[channel] = (count, error[:_LONGEST_ERROR])
        if count == DOWN_AFTER:
            log.warning("a channel is down", channel=channel, attempts=count, error=error[:_LONGEST_ERROR])

    def _got_through(self, channel: str) -> None:
        count, _ = self._failures.pop(channel, (0, ""))
        if count >= DOWN_AFTER:
            log.info("a channel is up again", channel=channel)


def _tell_run(run: Run) -> None:
    log.warning(
        f"a run ended as {run.state}",
        run_id=run.id,
        session_key=run.session_key,
        kind=run.kind.value,
        code=run.error_code,
        error=(run.error or "")[:_LONGEST_ERROR],
    )


def _tell_delivery(delivery: Delivery) -> None:
    log.warning(
        f"a delivery is {delivery.state}",
        delivery=delivery.id,
        run_id=delivery.run_id,
        session_key=delivery.session_key,
        channel=delivery.channel,
        attempts=delivery.attempts,
        error=(delivery.error or "")[:_LONGEST_ERROR],
    )
