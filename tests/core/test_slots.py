"""Slots are shared fairly: with any mix of agents and sessions nobody is kept out by others."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.policy.slots import SlotQueue, SlotShares


@dataclass
class Floor:
    """Slots of one kind, with those who have one and those who wait."""

    shares: SlotShares
    queue: SlotQueue[tuple[str, str, int]] = field(default_factory=SlotQueue)
    held: list[tuple[str, str, int]] = field(default_factory=list)
    waiting: list[tuple[str, str, int]] = field(default_factory=list)
    asked: int = 0

    def ask(self, agent: str, session: str = "s") -> bool:
        """Ask for a slot; whether it was given at once."""
        self.asked += 1
        who = (agent, f"{agent}:{session}", self.asked)
        if self.shares.may_take(*who[:2]):
            self.shares.take(*who[:2])
            self.held.append(who)
            return True
        self.queue.add(*who[:2], who)
        self.waiting.append(who)
        return False

    def end(self, index: int) -> list[tuple[str, str, int]]:
        """End one that has a slot; returns who got one thereby."""
        agent, session, _ = self.held.pop(index)
        self.shares.give_back(agent, session)
        given = []
        while (who := self.queue.next(self.shares)) is not None:
            self.waiting.remove(who)
            self.held.append(who)
            given.append(who)
        return given

    def leave(self, index: int) -> None:
        who = self.waiting.pop(index)
        self.queue.remove(*who[:2], who)

    def count(self, agent: str) -> int:
        return sum(each[0] == agent for each in self.held)

    def check(self) -> None:
        assert len(self.held) == self.shares.used <= self.shares.limit
        assert len(self.queue) == len(self.waiting) == len(list(self.queue))
        for agent, session, _ in self.waiting:
            assert not self.shares.may_take(agent, session), "it waits for a slot that it may have"
            assert self.shares.is_full(session) or self.count(agent) >= self.shares.own, "it waits below its share"
        for agent, session, _ in self.held:
            assert self.shares.held_by(agent) == self.count(agent)
            assert self.shares.of_session is None or self.shares.held_in(session) <= self.shares.of_session


def floor(limit: int, agents: int, *, of_session: int | None = None, grows: bool = False) -> Floor:
    return Floor(SlotShares(limit, lambda: agents, of_session=of_session, grows=grows))


MOVES = st.lists(
    st.tuples(st.sampled_from(["ask", "flood", "end", "leave"]), st.integers(0, 60), st.integers(0, 3)), max_size=40
)


@given(st.integers(1, 24), st.integers(1, 6), st.none() | st.integers(1, 5), MOVES)
def test_with_any_mix_nobody_waits_below_its_share_and_nothing_that_may_start_waits(
    limit: int, agents: int, of_session: int | None, moves: list[tuple[str, int, int]]
) -> None:
    on = floor(limit, agents, of_session=of_session, grows=True)
    for move, number, session in moves:
        if move == "ask":
            on.ask(str(number % agents), str(session))
        elif move == "flood":
            for n in range(limit):
                on.ask(str(number % agents), f"{session}{n % 3}")
        elif move == "end" and on.held:
            on.end(number % len(on.held))
        elif move == "leave" and on.waiting:
            on.leave(number % len(on.waiting))
        on.check()
    for agent in map(str, range(agents)):
        if not on.count(agent):
            assert on.ask(agent, "first"), "an agent that has nothing starts at once"
            on.check()


@given(st.integers(1, 40), st.integers(1, 60))
def test_one_agent_alone_has_at_least_half(limit: int, agents: int) -> None:
    on = floor(limit, agents)
    while on.ask("one"):
        pass
    assert on.count("one") >= limit / 2
    assert on.count("one") == limit or agents > 1


@pytest.mark.parametrize(
    ("limit", "agents", "alone", "own"), [(16, 1, 16, 8), (16, 2, 12, 4), (64, 4, 40, 8), (8, 2, 6, 2), (1, 3, 1, 1)]
)
def test_how_many_one_agent_has_and_what_is_kept_for_each(limit: int, agents: int, alone: int, own: int) -> None:
    on = floor(limit, agents)
    while on.ask("one"):
        pass
    assert (on.count("one"), on.shares.own) == (alone, own)


def test_a_slot_goes_to_the_agent_with_the_fewest_and_in_it_to_the_session_with_the_fewest() -> None:
    on = floor(8, 2, of_session=6)
    for _ in range(6):
        assert on.ask("busy")
    assert on.ask("quiet") and on.ask("quiet")
    for agent, session in (("busy", "a"), ("quiet", "s"), ("quiet", "new"), ("busy", "b")):
        assert not on.ask(agent, session)
    given = [on.end(0)[0][:2] for _ in range(3)]
    assert given == [("quiet", "quiet:new"), ("quiet", "quiet:s"), ("busy", "busy:a")]


def test_of_two_alike_the_one_goes_first_whose_turn_is_longest_ago() -> None:
    on = floor(1, 2)
    assert on.ask("a")
    for agent in "abab":
        on.ask(agent)
    assert [on.end(0)[0][0] for _ in range(4)] == ["a", "b", "a", "b"]


def test_more_agents_than_a_setting_has_slots_take_turns() -> None:
    on = floor(2, 5)
    assert on.ask("a") and not on.ask("a")
    assert on.ask("b")
    for agent in "aacde":
        on.ask(agent)
    assert [on.end(0)[0][0] for _ in range(3)] == ["a", "c", "d"]


def test_a_session_has_at_most_so_many() -> None:
    on = floor(16, 1, of_session=4)
    assert [on.ask("one", "greedy") for _ in range(6)] == [True] * 4 + [False] * 2
    assert on.ask("one", "other")
    assert [who[1] for who in on.end(4)] == []
    assert [who[1] for who in on.end(0)] == ["one:greedy"]
