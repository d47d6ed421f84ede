"""Circles of waiting sessions are found, the shortest is named, and nothing else is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.policy.limits import Wait, find_circle, may_wait

SESSIONS = [f"agent:{name}:main" for name in "abcde"]
a, b, c, d, e = SESSIONS
WAITS = st.lists(st.builds(Wait, st.sampled_from(SESSIONS), st.sampled_from(SESSIONS)), max_size=12)


def chain(*keys: str) -> list[Wait]:
    return [Wait(waiter, target) for waiter, target in itertools.pairwise(keys)]


@pytest.mark.parametrize(
    ("waits", "waiter", "target", "expected"),
    [
        ([], a, b, None),
        ([], a, a, (a, a)),
        (chain(b, a), a, b, (a, b, a)),
        (chain(b, c, a), a, b, (a, b, c, a)),
        (chain(b, c, d, e, a), a, b, (a, b, c, d, e, a)),
        (chain(a, b), a, b, None),  # two calls of one run may wait for the same session
        (chain(a, b, c), a, c, None),
        (chain(c, a), a, b, None),
        (chain(b, c) + chain(b, d) + chain(d, a), a, b, (a, b, d, a)),  # one run waits for two
        (chain(b, c, d, a) + chain(b, a), a, b, (a, b, a)),
        (chain(b, c, b), a, b, None),  # a circle of others is not this one's
    ],
)
def test_the_shortest_circle_that_a_wait_would_close_is_found(
    waits: list[Wait], waiter: str, target: str, expected: tuple[str, ...] | None
) -> None:
    assert find_circle(waits, waiter, target) == expected
    assert may_wait(waits, waiter, target).allowed is (expected is None)


def test_a_refusal_names_the_circle_and_what_would_work() -> None:
    reason = may_wait(chain(b, c, a), a, b).reason
    assert f"{a} → {b} → {c} → {a}" in reason
    assert "timeoutSeconds 0" in reason


def test_a_session_that_would_wait_for_itself_is_told_so() -> None:
    assert "cannot wait for itself" in may_wait([], a, a).reason


def test_keys_are_named_as_the_caller_sees_them() -> None:
    reason = may_wait(chain(b, a), a, b, show=lambda key: key.replace("agent:a:main", "main")).reason
    assert f"main → {b} → main" in reason


@given(WAITS, st.sampled_from(SESSIONS), st.sampled_from(SESSIONS))
def test_a_circle_is_made_of_waits_that_exist(waits: list[Wait], waiter: str, target: str) -> None:
    circle = find_circle(waits, waiter, target)
    if circle is None:
        return
    assert circle[:2] == (waiter, target)
    assert circle[-1] == waiter
    assert all(Wait(*pair) in waits for pair in itertools.pairwise(circle[1:]))
    assert len(set(circle)) == len(circle) - 1


@given(WAITS)
def test_sends_that_are_checked_one_by_one_never_stand_still_together(waits: list[Wait]) -> None:
    accepted: list[Wait] = []
    for wait in waits:
        if may_wait(accepted, wait.waiter, wait.target).allowed:
            accepted.append(wait)
    left = list(accepted)
    while free := [wait for wait in left if wait.target not in {other.waiter for other in left}]:
        left = [wait for wait in left if wait not in free]
    assert left == []
