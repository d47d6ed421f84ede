"""Slots: the number of calls that work at once, and the order of the queue.

Every kind of work (runs, sub-agents, `exec`, background commands, calls of one MCP server, model calls) has a number of
slots. The rule is the same for all of them:

1. Half of the slots are kept for agents: each agent has the same number of them, at least one, which no other agent
   gets. The rest is for everyone. So an agent that has less than its own number starts at once.
2. Those who wait go on in turns: first the agent with the fewest slots, then its session with the fewest. Between two
   alike, the one whose turn is longest ago. One session has a maximum.

Rule 1 needs a slot for each agent. Kinds whose number nobody has set grow with the number of agents. Where a setting
gives fewer than two slots per agent, first slots are given in turns too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class SlotShares:
    """Counts who has slots of one kind, and decides who may have another."""

    def __init__(
        self, limit: int, count_agents: Callable[[], int], *, of_session: int | None = None, grows: bool = False
    ) -> None:
        """Make a number of slots; with `grows` there are at least two for each agent."""
        self._limit = limit
        self._count_agents = count_agents
        self._grows = grows
        self.of_session = of_session
        """How many one session may have at most."""
        self.used = 0
        self._of_agents: dict[str, int] = {}
        self._of_sessions: dict[str, int] = {}
        """Counted only where a session may have a certain number."""

    @property
    def limit(self) -> int:
        return max(self._limit, 2 * self._count_agents()) if self._grows else self._limit

    @property
    def own(self) -> int:
        """How many are kept for each agent."""
        return max(1, self.limit // (2 * max(1, self._count_agents())))

    def held_by(self, agent: str) -> int:
        return self._of_agents.get(agent, 0)

    def held_in(self, session: str) -> int:
        return self._of_sessions.get(session, 0)

    def may_take(self, agent: str, session: str) -> bool:
        return not self.is_full(session) and self.is_open_to(agent)

    def is_full(self, session: str) -> bool:
        """Whether a session has as many as one may have."""
        return self.of_session is not None and self.held_in(session) >= self.of_session

    def is_open_to(self, agent: str) -> bool:
        """Whether an agent may have another: one of its own, or one that is kept for nobody."""
        limit = self.limit
        free = limit - self.used
        if free <= 0 or free > limit // 2:  # no more than half is ever kept
            return free > 0
        own = self.own
        return self.held_by(agent) < own or free > self._kept_from(agent, own)

    def _kept_from(self, agent: str, own: int) -> int:
        """Count the free slots that are kept for other agents; never more than half of all."""
        others = max(0, max(self._count_agents(), len(self._of_agents)) - 1)
        taken = sum(min(own, held) for other, held in self._of_agents.items() if other != agent)
        return min(others * own - taken, self.limit // 2)

    def take(self, agent: str, session: str = "") -> None:
        """Count a slot as taken, whether or not it may be."""
        self._count(agent, session, 1)

    def give_back(self, agent: str, session: str = "") -> None:
        self._count(agent, session, -1)

    def _count(self, agent: str, session: str, by: int) -> None:
        self.used += by
        _add(self._of_agents, agent, by)
        if self.of_session is not None:
            _add(self._of_sessions, session, by)


def _add(counts: dict[str, int], name: str, by: int) -> None:
    count = counts.get(name, 0) + by
    if count:
        counts[name] = count
    else:
        del counts[name]


class SlotQueue(Generic[T]):
    """Those who wait for a slot of one kind."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, deque[T]]] = {}
        """By agent and session; whoever had a turn stands last."""

    def __len__(self) -> int:
        return sum(len(items) for sessions in self._waiting.values() for items in sessions.values())

    def add(self, agent: str, session: str, item: T) -> None:
        self._waiting.setdefault(agent, {}).setdefault(session, deque()).append(item)

    def remove(self, agent: str, session: str, item: T) -> None:
        sessions = self._waiting[agent]
        sessions[session].remove(item)
        self._tidy(agent, session)

    def clear(self) -> None:
        self._waiting.clear()

    def __iter__(self) -> Iterator[T]:
        return (item for sessions in self._waiting.values() for items in sessions.values() for item in items)

    def next(self, shares: SlotShares, may_start: Callable[[T], bool] = lambda item: True) -> T | None:
        """Give the one whose turn it is, with its slot taken; None if nobody who waits may have one.

        `may_start` is asked besides; one that it refuses holds nobody back.
        """
        for agent in sorted(self._waiting, key=shares.held_by):
            if not shares.is_open_to(agent):
                continue
            session = self._session(agent, shares, may_start)
            if session is not None:
                shares.take(agent, session)
                return self._pop(agent, session)
        return None

    def _session(self, agent: str, shares: SlotShares, may_start: Callable[[T], bool]) -> str | None:
        first, fewest = None, 0
        for session, items in self._waiting[agent].items():
            held = shares.held_in(session)
            if (first is None or held < fewest) and not shares.is_full(session) and may_start(items[0]):
                first, fewest = session, held
                if not held:
                    break
        return first

    def _pop(self, agent: str, session: str) -> T:
        sessions = self._waiting.pop(agent)
        items = sessions.pop(session)
        item = items.popleft()
        sessions[session] = items
        self._waiting[agent] = sessions
        self._tidy(agent, session)
        return item

    def _tidy(self, agent: str, session: str) -> None:
        sessions = self._waiting[agent]
        if not sessions[session]:
            del sessions[session]
        if not sessions:
            del self._waiting[agent]
