"""Audiences: which connections want which events."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

MAX_WATCHED = 4096
"""Sessions that one connection watches at most; the one it has watched longest gives way."""


class Subscriber(Protocol):
    """A connection, as far as events are concerned."""

    @property
    def is_for_people(self) -> bool:
        """Whether it shows transcripts as they come: then it gets what people read of them."""
        ...

    def send_event(self, head: str, *, droppable: bool) -> None:
        """Queue an event, written up to its number; a droppable one may be left out when the client is slow."""
        ...


class Audiences:
    """Which subscribers want what, by name, and back."""

    def __init__(self) -> None:
        self._subscribers: dict[str, dict[Subscriber, None]] = {}
        self._names: dict[Subscriber, dict[str, None]] = {}

    def of(self, name: str) -> Set[Subscriber]:
        found = self._subscribers.get(name)
        return found.keys() if found else frozenset()

    @property
    def names(self) -> Set[str]:
        """All names that anybody wants."""
        return self._subscribers.keys()

    def add(self, name: str, subscriber: Subscriber) -> None:
        names = self._names.setdefault(subscriber, {})
        if name not in names and len(names) >= MAX_WATCHED:
            self.remove(next(iter(names)), subscriber)
        names[name] = None
        self._subscribers.setdefault(name, {})[subscriber] = None

    def remove(self, name: str, subscriber: Subscriber) -> None:
        self._names.get(subscriber, {}).pop(name, None)
        found = self._subscribers.get(name)
        if found is not None:
            found.pop(subscriber, None)
            if not found:
                del self._subscribers[name]

    def drop(self, name: str) -> None:
        """Forget a name of which no more events come."""
        for subscriber in self._subscribers.pop(name, {}):
            self._names[subscriber].pop(name, None)

    def forget(self, subscriber: Subscriber) -> None:
        for name in list(self._names.pop(subscriber, {})):
            self.remove(name, subscriber)
