"""Interests: the commits that each other gateway wants to hear about.

A gateway tells the others which topics somebody waits for there, and repeats that while the wait lasts. An interest is
never taken back: it expires when it is not repeated. A gateway that has named no interests gets every echo. Such a
gateway has just started, or is of an older version.

An interest arrives after it began, on a busy machine seconds later. So it comes with the time when it began, by the
database's clock, and commits since then are echoed again to the gateway that asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from backchannel.core.cluster.echoes import EVERYTHING, Echo, EchoId, Topic

WANTED_S = 15.0
"""How long an interest lasts that is not told again."""
AGAIN_S = 0.5
"""How long before an interest began the commits are that its gateway is told of all the same."""
RUN_AGAIN_S = 5.0
"""The same, for those who ask for a run: they wait for its end, and hear nothing else twice."""
MOST_RECENT = 4096
"""How many commits are remembered for them."""
_HELLO: Topic = ("", "")
_SINCE = "since"
_WANTS = "wants-"


class Interests:
    """Who is to be told of what; every method is given the time, in seconds of any clock that does not jump."""

    def __init__(self) -> None:
        self._wanted: dict[Topic, dict[int, float]] = {}
        """Until when which gateway wants to hear of a topic."""
        self._known: set[int] = set()
        self._recent: deque[tuple[float, Echo]] = deque(maxlen=MOST_RECENT)

    def take(self, gateway: int, topics: Collection[Topic], now: float, *, since: float | None = None) -> list[EchoId]:
        """Take note of what a gateway wants; returns what it is to be told again.

        With `since`, that is all from shortly before then. Without, it is what is recent, about topics new to it.
        """
        self._known.add(gateway)
        new = set()
        for topic in topics:
            until = self._wanted.setdefault(topic, {})
            if since is not None or until.get(gateway, 0.0) <= now:
                new.add(topic)
            until[gateway] = now + WANTED_S
        return self._again(new, now, now if since is None else since) if new else []

    def _again(self, topics: set[Topic], now: float, since: float) -> list[EchoId]:
        words: dict[EchoId, None] = {}
        for at, (word, about) in self._recent:
            asked = topics.intersection(about) or topics & {EVERYTHING}
            is_run = any(kind == "run" for kind, _ in asked)
            if asked and at > min(since - AGAIN_S, now - RUN_AGAIN_S if is_run else since):
                words[word] = None
        return list(words)

    def audience(self, echo: Echo, now: float) -> frozenset[int]:
        """Name the gateways that have asked for what an echo is about, and remember it for those who ask too late."""
        self._recent.append((now, echo))
        if not self._wanted:
            return frozenset()
        asking = (self._wanted.get(topic, {}).items() for topic in (EVERYTHING, *echo.about))
        return frozenset(gateway for until in asking for gateway, ends in until if ends > now)

    def are_unknown(self, gateways: Iterable[int]) -> bool:
        """Whether any of these gateways has said nothing yet."""
        return not self._known.issuperset(gateways)

    def expire(self, gateways: Collection[int], now: float) -> None:
        """Forget what is no longer wanted, and gateways that are not among these."""
        self._known.intersection_update(gateways)
        lasting = (
            (topic, {g: ends for g, ends in until.items() if ends > now}) for topic, until in self._wanted.items()
        )
        self._wanted = {topic: until for topic, until in lasting if until}


def write_wants(topics: Iterable[Topic], since_ms: int | None = None) -> list[EchoId]:
    """Write down topics for other gateways; also none is an answer. `since_ms` is when they were first wanted."""
    began = () if since_ms is None else ((_SINCE, str(since_ms)),)
    return [(_WANTS + kind, ref) for kind, ref in (_HELLO, *began, *topics)]


def is_want(word: EchoId) -> bool:
    """Whether a word says what a gateway wants."""
    return word[0].startswith(_WANTS)


def read_wants(words: Iterable[EchoId]) -> tuple[list[Topic], int | None]:
    """Read what another gateway wants, and since when, if it says so."""
    found = [(kind.removeprefix(_WANTS), ref) for kind, ref in words]
    since_ms = min((int(ref) for kind, ref in found if kind == _SINCE), default=None)
    return [topic for topic in found if topic != _HELLO and topic[0] != _SINCE], since_ms
