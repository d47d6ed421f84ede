"""Events that are held back until another message was sent.

`HeldEnds`: an internal run says nothing by itself. Its text may become a delivery in the commit that ends it, and a
client that got an empty end first would show an empty message. So the end waits for the other facts of its commit. If
there is a delivery, the end waits until that is sent and carries its text, or until it is clear that nothing is sent.

`UnansweredRequests`: a run may say something before the request that started it is answered. Clients take what comes
after the answer for the reply, so those events wait for the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from backchannel.core.runs import Run
from backchannel.gateway.events.audiences import Subscriber
from backchannel.wire.events import ShownMessage


@dataclass(slots=True)
class HeldEnd:
    """The unsent end of a run, its audience, and how it is written with a message."""

    run: Run
    audience: set[Subscriber]
    show: Callable[[ShownMessage | None], str]
    is_posted: bool = False


class HeldEnds:
    """The unsent ends, by run."""

    def __init__(self, send: Callable[[Run, set[Subscriber], str], None]) -> None:
        self._send = send
        self._held: dict[str, HeldEnd] = {}

    def hold(self, end: HeldEnd) -> None:
        """Hold an end at least until the other facts of its commit were published."""
        self._held[end.run.id] = end
        asyncio.get_running_loop().call_soon(self._send_unless_posted, end.run.id)

    def _send_unless_posted(self, run_id: str) -> None:
        end = self._held.get(run_id)
        if end is not None and not end.is_posted:
            self.send_empty(run_id)

    def wait_for_delivery(self, run_id: str) -> None:
        """Note that the text of a run is being delivered."""
        if (end := self._held.get(run_id)) is not None:
            end.is_posted = True

    def take(self, run_id: str) -> HeldEnd | None:
        """Take an end out, to be sent with a message."""
        return self._held.pop(run_id, None)

    def send_empty(self, run_id: str) -> None:
        """Send an end without a message, if it is held."""
        if (end := self.take(run_id)) is not None:
            self._send(end.run, end.audience, end.show(None))

    def forget(self, subscriber: Subscriber) -> None:
        """Send nothing more to a connection."""
        for end in self._held.values():
            end.audience.discard(subscriber)


@dataclass(slots=True)
class _Kept:
    requests: int = 0
    heads: list[tuple[str, bool]] = field(default_factory=list)
    """The events in order, and whether each may be dropped."""


class UnansweredRequests:
    """Connections with an unanswered request for a session, and the events that wait for its answer."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Subscriber, str], _Kept] = {}

    @contextmanager
    def keep(self, subscriber: Subscriber, key: str) -> Iterator[None]:
        """Hold the events of a session for a connection until its present request is answered.

        The answer has to be queued in the same step of the event loop in which this ends, as by returning it.
        """
        self._kept.setdefault((subscriber, key), _Kept()).requests += 1
        try:
            yield
        finally:
            asyncio.get_running_loop().call_soon(self._release, subscriber, key)

    def send(self, subscriber: Subscriber, key: str, head: str, *, droppable: bool) -> None:
        """Send an event of a session, after the answer if one is awaited."""
        kept = self._kept.get((subscriber, key)) if self._kept else None
        if kept is None:
            subscriber.send_event(head, droppable=droppable)
        else:
            kept.heads.append((head, droppable))

    def forget(self, subscriber: Subscriber) -> None:
        """Send nothing more to a connection."""
        for place in [place for place in self._kept if place[0] is subscriber]:
            del self._kept[place]

    def _release(self, subscriber: Subscriber, key: str) -> None:
        kept = self._kept.get((subscriber, key))
        if kept is None:
            return
        kept.requests -= 1
        if not kept.requests:
            del self._kept[subscriber, key]
            for head, droppable in kept.heads:
                subscriber.send_event(head, droppable=droppable)
