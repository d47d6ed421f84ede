"""The barrier: when a requester is woken, with what, and that each post is handed over exactly once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from enum import Enum, auto

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backchannel.core.flows.barrier import (
    Barrier,
    add_child,
    barrier_for,
    child_settled,
    deadline_passed,
    forgotten,
    give_up,
    read_barrier,
    run_ended,
    stopped,
    told,
    wake,
    write_barrier,
)
from backchannel.core.flows.spawn_texts import child_title, wake_text
from backchannel.core.flows.spawn_values import Spawn
from backchannel.core.messages import ProvenanceKind
from backchannel.core.runs import Chain, RunKind

from .spawns import ADDRESS, RULES, A, sibling, spawned

ONE, TWO, THREE = (sibling(number) for number in (1, 2, 3))


def waiting_for(*children: Spawn) -> Barrier:
    barrier = barrier_for(children[0])
    for child in children:
        barrier = add_child(barrier, child)
    return barrier


def settled(barrier: Barrier, *children: Spawn) -> Barrier:
    """Let children end, each with a post."""
    for child in children:
        barrier = child_settled(barrier, child, post_of(child))
    return barrier


def post_of(child: Spawn) -> str:
    return f"Status: success\nResult: of {child.id}"


def held(barrier: Barrier) -> list[str]:
    return [post.spawn_id for post in barrier.posts]


# When it opens


def test_a_barrier_stands_on_what_was_frozen_for_its_first_child() -> None:
    barrier = barrier_for(ONE)
    assert (barrier.id, barrier.requester, barrier.address) == ("r9", A, ADDRESS)
    assert (barrier.chain, barrier.path, barrier.rules) == (ONE.chain, ONE.path, RULES)
    assert not barrier.has_run_ended
    assert not barrier.is_over, "the run may spawn more"


def test_it_opens_only_when_the_run_has_ended_and_all_children_are_settled() -> None:
    ends: list[Spawn | None] = [None, ONE, TWO, THREE]  # None is the run's own
    for order in itertools.permutations(ends):
        barrier = waiting_for(ONE, TWO, THREE)
        for child in order:
            assert not barrier.opens
            barrier = run_ended(barrier) if child is None else settled(barrier, child)
        assert barrier.opens
        assert barrier.waiting == ()


def test_a_spawn_from_outside_a_run_waits_for_no_run() -> None:
    outside = spawned(requester_run=None)
    barrier = waiting_for(outside)
    assert barrier.id == outside.id
    assert not barrier.opens
    assert settled(barrier, outside).opens


def test_at_the_deadline_it_opens_for_what_there_is_and_the_rest_share_one_more_wake() -> None:
    barrier = settled(run_ended(waiting_for(ONE, TWO, THREE)), ONE)
    assert not barrier.opens
    barrier, first = wake(deadline_passed(barrier))
    assert post_of(ONE) in first.texts[0]
    barrier = settled(barrier, TWO)
    assert not barrier.opens, "the second wake waits for all"
    barrier = settled(barrier, THREE)
    assert barrier.opens
    barrier, second = wake(barrier)
    assert (first.id, second.id) == ("r9/wake/1", "r9/wake/2")
    assert post_of(ONE) not in second.texts[0]
    assert post_of(TWO) in second.texts[0]
    assert post_of(THREE) in second.texts[0]
    assert barrier.is_over


def test_when_the_deadline_finds_nothing_the_first_post_after_it_wakes() -> None:
    barrier = deadline_passed(run_ended(waiting_for(ONE, TWO, THREE)))
    assert not barrier.opens
    barrier, _ = wake(settled(barrier, ONE))
    assert not settled(barrier, TWO).opens
    assert settled(barrier, TWO, THREE).opens


def test_a_deadline_counts_from_the_end_of_the_run_only() -> None:
    barrier = settled(deadline_passed(waiting_for(ONE, TWO)), ONE)
    assert not barrier.is_late
    assert not run_ended(barrier).opens


def test_a_run_that_spawns_once_more_is_waited_for_once_more() -> None:
    barrier = add_child(deadline_passed(run_ended(waiting_for(ONE))), TWO)
    assert not barrier.has_run_ended
    barrier = run_ended(settled(barrier, ONE))
    assert not barrier.opens, "the deadline begins anew"
    assert deadline_passed(barrier).opens
    assert settled(barrier, TWO).opens


def test_when_all_children_are_silent_there_is_no_wake() -> None:
    barrier = run_ended(waiting_for(ONE, TWO))
    for child in (ONE, TWO):
        assert not barrier.is_over
        barrier = deadline_passed(child_settled(barrier, child, None))
        assert not barrier.opens
    assert barrier.is_over


def test_a_silent_child_is_not_in_the_wake_of_the_others() -> None:
    barrier, run = wake(child_settled(settled(run_ended(waiting_for(ONE, TWO)), ONE), TWO, None))
    assert child_title(ONE) in run.texts[0]
    assert child_title(TWO) not in run.texts[0]
    assert barrier.is_over


@pytest.mark.parametrize("text", [post_of(ONE), "another text", None])
@pytest.mark.parametrize("has_posted", [True, False])
def test_a_second_signal_of_one_child_changes_nothing(text: str | None, has_posted: bool) -> None:
    barrier = child_settled(waiting_for(ONE, TWO), ONE, post_of(ONE) if has_posted else None)
    assert child_settled(barrier, ONE, text) == barrier
    assert child_settled(barrier, THREE, text) == barrier, "nor does that of a stranger"


# The wake


def test_the_wake_is_one_run_of_the_requester_one_hop_further_to_the_frozen_address() -> None:
    before = settled(run_ended(waiting_for(ONE, TWO)), TWO, ONE)
    barrier, run = wake(before)
    assert (run.id, run.kind, run.key, run.reply_to) == ("r9/wake/1", RunKind.WAKE, A, ADDRESS)
    assert (run.chain, run.timeout_s) == (Chain("cause", 3), None)
    assert run.provenance.kind is ProvenanceKind.INTERNAL_SYSTEM
    assert run.provenance.source_tool == "sessions_spawn"
    in_order = ((child_title(TWO), post_of(TWO)), (child_title(ONE), post_of(ONE)))
    assert run.texts[0] == wake_text(in_order, has_chat=True)
    assert (held(barrier), barrier.wakes, barrier.is_over) == ([], 1, True)


def test_a_requester_without_a_chat_is_woken_all_the_same() -> None:
    _, run = wake(settled(run_ended(replace(waiting_for(ONE), address=None)), ONE))
    assert run.reply_to is None
    assert run.texts[0] == wake_text(((child_title(ONE), post_of(ONE)),), has_chat=False)


def test_what_a_run_was_told_is_named_in_the_wake_and_not_repeated() -> None:
    barrier = told(settled(run_ended(waiting_for(ONE, TWO)), ONE))
    assert barrier.untold == ()
    barrier = settled(barrier, TWO)
    assert [post.spawn_id for post in barrier.untold] == ["s2"]
    _, run = wake(barrier)
    assert run.texts[0] == wake_text(((child_title(ONE), None), (child_title(TWO), post_of(TWO))), has_chat=True)


def test_a_requester_that_was_told_everything_is_still_woken_to_carry_on() -> None:
    barrier = told(settled(waiting_for(ONE), ONE))
    assert held(barrier) == ["s1"]
    assert run_ended(barrier).opens


def test_being_told_twice_is_being_told_once() -> None:
    barrier = told(settled(waiting_for(ONE, TWO), ONE))
    assert told(barrier) == barrier


def test_a_wake_that_may_not_be_leaves_nothing_held() -> None:
    barrier = give_up(settled(run_ended(waiting_for(ONE)), ONE))
    assert (held(barrier), barrier.wakes, barrier.opens, barrier.is_over) == ([], 1, False, True)


# Stopped


def test_nothing_wakes_a_requester_that_was_stopped() -> None:
    barrier = stopped(settled(waiting_for(ONE, TWO), ONE))
    assert held(barrier) == ["s1"], "what is held becomes notes first"
    for now in (barrier, run_ended(barrier), deadline_passed(run_ended(barrier)), run_ended(settled(barrier, TWO))):
        assert not now.opens
    barrier = told(barrier)
    assert held(barrier) == []
    assert run_ended(child_settled(barrier, TWO, None)).is_over


def test_a_stopped_run_that_is_started_again_and_spawns_can_be_woken() -> None:
    barrier = told(stopped(settled(run_ended(waiting_for(ONE)), ONE)))
    barrier = run_ended(settled(add_child(barrier, TWO), TWO))
    assert barrier.opens


# Rows


@pytest.mark.parametrize(
    "barrier",
    [
        barrier_for(ONE),
        barrier_for(spawned(requester_run=None, address=None, path=())),
        stopped(told(settled(deadline_passed(run_ended(waiting_for(ONE, TWO, THREE))), TWO))),
        wake(settled(run_ended(waiting_for(ONE)), ONE))[0],
    ],
)
def test_a_barrier_is_read_as_it_was_written(barrier: Barrier) -> None:
    assert read_barrier(write_barrier(barrier)) == barrier


# Whatever happens


class What(Enum):
    RUN_ENDS = auto()
    DEADLINE = auto()
    TELL = auto()
    STOP = auto()


Happening = What | tuple[int, bool]
"""One of these, or: which child is settled, and whether it has a post."""


class BarrierWorld:
    """Does to a barrier what may happen, as the store does it, and writes down where each post went."""

    def __init__(self, count: int, *, may_wake: bool = True) -> None:
        self.children = [sibling(number) for number in range(count)]
        self.barrier = waiting_for(*self.children)
        self.may_wake = may_wake
        self.posted: set[str] = set()
        self.handed: list[str] = []
        self.woken: list[list[str]] = []
        self.has_stopped = False

    def happens(self, what: Happening) -> None:
        match what:
            case (number, has_post):
                self._settle(self.children[number], has_post=has_post)
            case What.RUN_ENDS:
                self.barrier = run_ended(self.barrier)
            case What.DEADLINE:
                self.barrier = deadline_passed(self.barrier)
            case What.TELL:
                self._tell()
            case What.STOP:
                self.has_stopped = True
                self.barrier = stopped(self.barrier)
                self._tell()
        if self.barrier.opens:
            self._open()
        assert not self.barrier.opens
        assert read_barrier(write_barrier(self.barrier)) == self.barrier
        if self.barrier.is_over:
            assert held(self.barrier) == []

    def _settle(self, child: Spawn, *, has_post: bool) -> None:
        if has_post and child.id in self.barrier.waiting:
            self.posted.add(child.id)
        self.barrier = child_settled(self.barrier, child, post_of(child) if has_post else None)

    def _tell(self) -> None:
        self.handed += [post.spawn_id for post in self.barrier.untold]
        self.barrier = told(self.barrier)

    def _open(self) -> None:
        before = self.barrier
        assert before.has_run_ended
        assert not self.has_stopped
        assert before.waiting == () or before.is_late
        if not self.may_wake:
            self.handed += [post.spawn_id for post in before.untold]
            self.barrier = give_up(before)
            return
        self.barrier, run = wake(before)
        self.handed += [child.id for child in self.children if post_of(child) in run.texts[0]]
        self.woken.append([child.id for child in self.children if child_title(child) in run.texts[0]])
        assert sorted(self.woken[-1]) == sorted(held(before))

    def drain(self) -> None:
        """Let everything end that is still open; a later run of the requester is told what nothing woke it for."""
        for number in range(len(self.children)):
            self.happens((number, True))
        self.happens(What.RUN_ENDS)
        if held(self.barrier):
            assert self.has_stopped
            self.happens(What.TELL)
        assert self.barrier.is_over
        assert held(self.barrier) == []

    def check(self) -> None:
        assert sorted(self.handed) == sorted(self.posted), "each post is handed over exactly once"
        assert self.barrier.wakes <= 2
        assert len(self.woken) <= self.barrier.wakes
        assert all(self.woken), "no wake is empty"
        named = [child for run in self.woken for child in run]
        assert len(named) == len(set(named)), "no child is in two wakes"


def live(world: BarrierWorld, happenings: Iterable[Happening]) -> BarrierWorld:
    for what in happenings:
        world.happens(what)
    world.drain()
    world.check()
    return world


HAPPENINGS = st.lists(
    st.one_of(st.tuples(st.integers(0, 4), st.booleans()), st.sampled_from(What)),
    max_size=16,
)


@settings(max_examples=300, deadline=None)
@given(HAPPENINGS, st.booleans())
def test_whatever_happens_each_post_is_handed_over_exactly_once(happenings: list[Happening], may_wake: bool) -> None:
    live(BarrierWorld(5, may_wake=may_wake), happenings)


@settings(max_examples=200, deadline=None)
@given(HAPPENINGS.map(lambda happenings: [what for what in happenings if what is not What.STOP]))
def test_a_requester_that_is_not_stopped_is_woken_for_every_post(happenings: list[Happening]) -> None:
    world = live(BarrierWorld(5), happenings)
    assert {child for run in world.woken for child in run} == world.posted
    assert len(world.woken) >= bool(world.posted)


@pytest.mark.parametrize("has_posts", list(itertools.product([True, False], repeat=2)))
def test_no_order_of_two_children_a_run_a_deadline_a_telling_and_a_stop_loses_or_doubles_a_post(
    has_posts: tuple[bool, bool],
) -> None:
    happenings: list[Happening] = [(0, has_posts[0]), (1, has_posts[1]), *What]
    for order in itertools.permutations(happenings):
        live(BarrierWorld(2), order)


def test_a_requester_that_was_reset_is_told_again_what_only_its_old_transcript_has() -> None:
    barrier = told(settled(waiting_for(ONE, TWO), ONE))
    assert barrier.untold == ()
    assert [post.spawn_id for post in forgotten(barrier).untold] == [ONE.id]
