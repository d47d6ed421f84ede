"""The windows of budgets, where clocks are changed."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from zoneinfo import ZoneInfo

import pytest

from backchannel.config.zones import period_at
from backchannel.core.money.budgets import FOREVER, BudgetPeriod, BudgetRules

BERLIN = ZoneInfo("Europe/Berlin")
HOUR_MS = 3_600_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("start", "hours"),
    [("2026-03-28T23:00", 23), ("2026-10-24T22:00", 25), ("2026-06-01T22:00", 24)],
    ids=["clocks go forward", "clocks go back", "a plain day"],
)
def test_a_day_begins_at_midnight_and_has_as_many_hours_as_it_has(start: str, hours: int) -> None:
    begins = ms(start)
    for hour in range(hours):
        for now in (begins + hour * HOUR_MS, begins + (hour + 1) * HOUR_MS - 1):
            assert period_at(BERLIN, BudgetPeriod.DAY, now) == (begins, begins + hours * HOUR_MS)
            assert period_at(BERLIN, BudgetPeriod.HOUR, now) == (
                begins + hour * HOUR_MS,
                begins + (hour + 1) * HOUR_MS,
            ), "an hour that comes twice is two hours"
    assert period_at(BERLIN, BudgetPeriod.DAY, begins + hours * HOUR_MS).start == begins + hours * HOUR_MS


def test_a_month_ends_where_the_next_begins_and_a_total_never_does() -> None:
    october = period_at(BERLIN, BudgetPeriod.MONTH, ms("2026-10-31T22:59:59"))
    assert october == (ms("2026-09-30T22:00"), ms("2026-10-31T23:00"))
    assert period_at(BERLIN, BudgetPeriod.TOTAL, 5) == FOREVER


def test_a_clock_that_is_set_back_finds_the_window_of_its_time_again() -> None:
    rules = BudgetRules([], partial(period_at, BERLIN))
    first, second = (rules.period(BudgetPeriod.HOUR, ms(f"2026-06-01T{at}")) for at in ("08:59", "09:00"))
    assert first.end == second.start
    assert rules.period(BudgetPeriod.HOUR, ms("2026-06-01T08:59")) == first
