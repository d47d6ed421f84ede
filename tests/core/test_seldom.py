"""The limit on how often one cause is logged."""

from backchannel.core.seldom import EVERY_S, Seldom


def test_a_cause_is_told_once_a_minute_whatever_numbers_it_has() -> None:
    told = Seldom()
    causes = ["10 changes wait", "12 changes wait", "the disk is full", "the disk is full"]
    assert [told.lets(cause, 5.0) for cause in causes] == [True, False, True, False]
    assert not told.lets("11 changes wait", 5.0 + EVERY_S - 1)
    assert told.lets("11 changes wait", 5.0 + EVERY_S)


def test_what_is_over_is_told_anew_when_it_comes_back() -> None:
    told = Seldom()
    assert told.lets("away", 0.0)
    told.forget()
    assert told.lets("away", 1.0)
