"""Cache watch: long conversations that providers stopped reading from their cache.

Each request extends the one before, so a provider finds most of it in its cache. A miss now and then is normal: the cut
moves, or a person comes back after lunch. A session that misses again and again pays for the whole conversation each
time. The watch lives in memory: it knows the replies of this process, and a few of each session.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from backchannel.core.facts import MessageAppended
from backchannel.core.messages import Message, Role
from backchannel.runtime.events import Event

LONG_TOKENS = 8192
"""Shorter requests cost little, and providers cache none below a few thousand tokens."""
_REPLIES = 6
"""How many of the last replies of a session count."""
_FEWEST = 3
_LOW_SHARE = 0.5
_RECENT_MS = 3_600_000
_MOST_SESSIONS = 1000
UNKNOWN = "no reason is known here; the provider may have dropped it"


class _Asked(NamedTuple):
    sent: int
    read: int
    reason: str | None
    """Why less than half of the request before was read; None if it was read."""


@dataclass(slots=True)
class _Watched:
    session_id: str
    last: Message
    asked: deque[_Asked] = field(default_factory=lambda: deque(maxlen=_REPLIES))


class CacheFall(NamedTuple):
    """A session whose requests are hardly read from the cache any more."""

    session_key: str
    share: float
    requests: int
    reason: str


class CacheWatch:
    """Watches the replies of long conversations; a listener of messages."""

    def __init__(self, lifetime_ms: int | None) -> None:
        """Make it; `lifetime_ms` is how long providers are asked to keep what they cache, None if not at all."""
        self._lifetime_ms = lifetime_ms
        self._sessions: OrderedDict[str, _Watched] = OrderedDict()

    def on_message(self, event: Event) -> None:
        if self._lifetime_ms is None or not isinstance(event, MessageAppended):
            return
        reply = event.message
        if reply.role is not Role.ASSISTANT or reply.usage is None or reply.usage.sent < LONG_TOKENS:
            return
        watched = self._sessions.pop(event.key, None)
        if watched is None or watched.session_id != event.session_id:
            if reply.usage.cached_share is None:
                return  # a provider that tells nothing of a cache
            watched = _Watched(event.session_id, reply)
        else:
            watched.asked.append(self._judged(watched.last, reply))
            watched.last = reply
        self._sessions[event.key] = watched
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)

    def _judged(self, before: Message, reply: Message) -> _Asked:
        assert before.usage is not None
        assert reply.usage is not None
        sent, read = reply.usage.sent, reply.usage.cache_read
        return _Asked(sent, read, self._reason(before, reply) if read * 2 < before.usage.sent else None)

    def _reason(self, before: Message, reply: Message) -> str:
        if reply.moved is not None:
            return reply.moved
        if before.model != reply.model:
            return f"the model changed from {before.model} to {reply.model}"
        minutes = (reply.timestamp - before.timestamp) // 60_000
        if self._lifetime_ms is not None and minutes * 60_000 >= self._lifetime_ms:
            return f"more than {self._lifetime_ms // 60_000} minutes passed between two requests"
        return UNKNOWN

    def falls(self, now: int) -> Iterator[CacheFall]:
        """List the sessions of the last hour that read less than half of their last requests from the cache."""
        for key, watched in self._sessions.items():
            asked = watched.asked
            if len(asked) < _FEWEST or now - watched.last.timestamp > _RECENT_MS:
                continue
            share = sum(each.read for each in asked) / sum(each.sent for each in asked)
            reasons = Counter(each.reason for each in asked if each.reason is not None)
            if share < _LOW_SHARE and reasons:
                yield CacheFall(key, share, len(asked), reasons.most_common(1)[0][0])
