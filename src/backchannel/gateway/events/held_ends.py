"""The last `chat` events of internal runs, held until it is known whether what was said is delivered to webchat.

A run of a flow says nothing by itself: its text may become a delivery, in the commit that ends it, and a client that
got an empty end first would show an empty message. That commit tells of the run, then of its delivery, one right after
the other. So an end waits for the rest of what its commit tells; if it has heard of a delivery by then, it waits until
that is sent, and carries its text, or until nothing will be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from backchannel.core.runs import Run
from backchannel.gateway.events.audiences import Subscriber
from backchannel.wire.events import ShownMessage


@dataclass(slots=True)
class HeldEnd:
    """An end that is not sent yet: of which run, to whom, and how it is written with what was said."""

    run: Run
    audience: set[Subscriber]
    show: Callable[[ShownMessage | None], str]
    is_posted: bool = False


class HeldEnds:
    """The ends that are not sent yet, by run."""

    def __init__(self, send: Callable[[Run, set[Subscriber], str], None]) -> None:
        self._send = send
        self._held: dict[str, HeldEnd] = {}

    def hold(self, end: HeldEnd) -> None:
        """Keep an end until all that its commit tells was heard, at least."""
        self._held[end.run.id] = end
        asyncio.get_running_loop().call_soon(self._send_unless_posted, end.run.id)

    def _send_unless_posted(self, run_id: str) -> None:
        end = self._held.get(run_id)
        if end is not None and not end.is_posted:
            self.send_empty(run_id)

    def wait_for_delivery(self, run_id: str) -> None:
        """Hear that what a run said is on its way."""
        if (end := self._held.get(run_id)) is not None:
            end.is_posted = True

    def take(self, run_id: str) -> HeldEnd | None:
        """Give an end away, to be sent with what was said."""
        return self._held.pop(run_id, None)

    def send_empty(self, run_id: str) -> None:
        """Send an end, if it is held, with nothing said."""
        if (end := self.take(run_id)) is not None:
            self._send(end.run, end.audience, end.show(None))

    def forget(self, subscriber: Subscriber) -> None:
        """Send nothing more to a connection."""
        for end in self._held.values():
            end.audience.discard(subscriber)
