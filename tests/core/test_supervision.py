"""Back-off: the one formula for pauses between tries."""

from __future__ import annotations

from backchannel.core.supervision import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 60.0)
    assert [backoff.pause_s(failures) for failures in range(1, 10)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]


def test_pauses_stay_the_longest_however_often_it_fails() -> None:
    assert Backoff(1.0, 30.0).pause_s(10_000) == 30.0


def test_a_backoff_whose_first_pause_is_its_longest_never_grows() -> None:
    assert {Backoff(1.0, 1.0).pause_s(failures) for failures in range(100)} == {1.0}
