"""Audiences: the connections that want an event."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

MAX_WATCHED = 4096
"""The most sessions that one connection watches; the oldest is dropped for a new one."""


class Subscriber(Protocol):
    """A connection that gets events."""

    @property
    def is_for_people(self) -> bool:
        """Whether it shows messages without changing them; it then gets them as people read them."""
        ...

    def send_event(self, head: str, *, droppable: bool) -> None:
        """Queue an event, written up to its number; a droppable one may be dropped for a slow client."""
        ...


class Audiences:
    """Subscribers by name, and names by subscriber."""

    def __init__(self) -> None:
        self._subscribers: dict[str, dict[Subscriber, None]] = {}
        self._names: dict[Subscriber, dict[str, None]] = {}

    def of(self, name: str) -> Set[Subscriber]:
        found = self._subscribers.get(name)
        return found.keys() if found else frozenset()

    @property
    def names(self) -> Set[str]:
        """All names with a subscriber."""
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
        """Forget a name that has no more events."""
        for subscriber in self._subscribers.pop(name, {}):
            self._names[subscriber].pop(name, None)

    def forget(self, subscriber: Subscriber) -> None:
        for name in list(self._names.pop(subscriber, {})):
            self.remove(name, subscriber)
