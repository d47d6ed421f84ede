"""The events of a session, kept from who starts a run there until the answer that names the run is on its way.

A run can have said something before the request that started it is answered: a model in this process needs no more
than a turn of the event loop. Clients take for the reply what comes after the answer. One that notes a prompt when it
is accepted, as OpenClaw's ACP bridge does, would show what came before above the prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from backchannel.gateway.events.audiences import Subscriber


@dataclass(slots=True)
class _Kept:
    requests: int = 0
    heads: list[tuple[str, bool]] = field(default_factory=list)
    """What is to be sent, in order, and whether it may be left out."""


class UnansweredRequests:
    """Which connections have a request for a session that is not answered yet, and what they get after it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Subscriber, str], _Kept] = {}

    @contextmanager
    def keep(self, subscriber: Subscriber, key: str) -> Iterator[None]:
        """Keep the events of a session from a connection until the request that is being carried out is answered.

        Its answer has to be queued in the same step of the event loop in which this ends, as by returning it.
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
