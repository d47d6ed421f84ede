"""Interests: who is told of what, for how long, and what is told again to those who ask a moment too late."""

from __future__ import annotations

from backchannel.core.cluster.echoes import EVERYTHING, Echo, run_topic, session_topic
from backchannel.core.cluster.interests import (
    AGAIN_S,
    RUN_AGAIN_S,
    WANTED_S,
    Interests,
    is_want,
    read_wants,
    write_wants,
)

RUN = Echo(("run", "r1"), (run_topic("r1"), session_topic("agent:main:a")))
OTHER = Echo(("run", "r2"), (run_topic("r2"), session_topic("agent:main:b")))


def test_those_are_told_who_asked_for_the_run_the_session_or_everything() -> None:
    interests = Interests()
    interests.take(1, [run_topic("r1")], 0.0)
    interests.take(2, [session_topic("agent:main:a")], 0.0)
    interests.take(3, [EVERYTHING], 0.0)
    interests.take(4, [], 0.0)

    assert interests.audience(RUN, 1.0) == {1, 2, 3}
    assert interests.audience(OTHER, 1.0) == {3}


def test_an_interest_that_is_not_told_again_ends() -> None:
    interests = Interests()
    interests.take(1, [EVERYTHING], 0.0)
    interests.take(2, [EVERYTHING], 0.0)
    interests.take(2, [EVERYTHING], WANTED_S / 2)

    assert interests.audience(RUN, WANTED_S + 1) == {2}
    interests.expire([1, 2], WANTED_S + 1)
    assert interests.audience(RUN, WANTED_S + 1) == {2}


def test_a_gateway_that_has_said_nothing_is_unknown_until_it_does_and_once_it_is_gone() -> None:
    interests = Interests()
    assert interests.are_unknown([1])

    interests.take(1, [], 0.0)
    assert not interests.are_unknown([1])
    assert interests.are_unknown([1, 2])

    interests.expire([2], 0.0)
    assert interests.are_unknown([1])


def test_who_asks_for_a_run_that_has_just_ended_is_told_of_it() -> None:
    interests = Interests()
    interests.audience(RUN, 10.0)
    interests.audience(OTHER, 10.0)

    assert interests.take(1, [run_topic("r1")], 10.0 + RUN_AGAIN_S / 2) == [RUN.word]
    assert interests.take(2, [run_topic("r1")], 10.0 + RUN_AGAIN_S + 1) == []


def test_who_asks_for_a_session_is_told_again_of_what_happened_a_moment_before_and_not_of_more() -> None:
    interests = Interests()
    interests.audience(RUN, 10.0)

    assert interests.take(1, [session_topic("agent:main:a")], 10.0 + AGAIN_S / 2) == [RUN.word]
    assert interests.take(1, [session_topic("agent:main:a")], 10.0 + AGAIN_S / 2) == []  # it asks on
    assert interests.take(2, [session_topic("agent:main:a")], 10.0 + 2 * AGAIN_S) == []
    assert interests.take(3, [EVERYTHING], 10.0 + AGAIN_S / 2) == [RUN.word]


def test_who_says_since_when_it_asks_is_told_of_all_since_then_however_late_the_word_comes() -> None:
    interests = Interests()
    interests.audience(RUN, 10.0)
    interests.audience(OTHER, 20.0)

    assert interests.take(1, [EVERYTHING], 90.0, since=19.0) == [OTHER.word]
    assert interests.take(1, [EVERYTHING], 90.0, since=9.0) == [RUN.word, OTHER.word]  # it may have missed some
    assert interests.take(1, [EVERYTHING], 90.0) == []


def test_what_is_written_of_wants_is_read_again_also_none() -> None:
    topics = [EVERYTHING, session_topic("agent:main:a"), run_topic("r1")]

    assert read_wants(write_wants(topics)) == (topics, None)
    assert read_wants(write_wants(topics, 12) + write_wants([], 11)) == (topics, 11)
    assert all(map(is_want, write_wants([], 12)))
    assert write_wants([]) and read_wants(write_wants([])) == ([], None)
    assert not is_want(RUN.word)
