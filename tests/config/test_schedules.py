"""Schedules: what may be written, and when it comes next, on the days when clocks are changed too."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.config.schedules import Every, Once, Schedule, read_schedule, show_moment
from backchannel.errors import InvalidSchedule

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kathmandu")
FROM, TO = 1_700_000_000_000, 1_900_000_000_000


def berlin(text: str, fold: int = 0) -> int:
    """Read a time of day in Berlin; `fold` 1 is the second of two."""
    return int(datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp() * 1000)


def times(schedule: Schedule, after: int, count: int) -> list[str]:
    """List what comes, as clocks in Berlin show it."""
    shown = []
    for _ in range(count):
        at = schedule.next_after(after)
        assert at is not None
        assert at > after
        shown.append(f"{datetime.fromtimestamp(at / 1000, BERLIN):%d %H:%M %z}")
        after = at
    return shown


def test_five_fields_are_read_in_their_time_zone() -> None:
    assert times(read_schedule("0 9 * * MON-FRI", "Europe/Berlin"), berlin("2026-06-05T09:00"), 2) == [
        "08 09:00 +0200",
        "09 09:00 +0200",
    ]
    assert times(read_schedule("0 9 * * *", None), berlin("2026-06-05T09:00"), 1) == ["05 11:00 +0200"]


def test_a_time_that_the_clocks_skip_comes_once_right_after_the_gap() -> None:
    night = berlin("2026-03-29T00:00")
    for fields in ("30 2 * * *", "*/30 2 * * *"):
        assert times(read_schedule(fields, "Europe/Berlin"), night, 1) == ["29 03:00 +0200"]
    assert times(read_schedule("30 2 * * *", "Europe/Berlin"), night, 2)[1] == "30 02:30 +0200"
    assert times(read_schedule("0 2,3 * * *", "Europe/Berlin"), night, 2) == ["29 03:00 +0200", "30 02:00 +0200"]


def test_a_time_that_happens_twice_comes_the_first_time_only() -> None:
    night = berlin("2026-10-25T00:00")
    assert times(read_schedule("30 2 * * *", "Europe/Berlin"), night, 2) == ["25 02:30 +0200", "26 02:30 +0100"]
    assert times(read_schedule("0 */2 * * *", "Europe/Berlin"), night, 2) == ["25 02:00 +0200", "25 04:00 +0100"]


def test_in_the_second_of_two_equal_hours_nothing_comes_again() -> None:
    second = berlin("2026-10-25T02:10", fold=1)
    assert times(read_schedule("30 2 * * *", "Europe/Berlin"), second, 1) == ["26 02:30 +0100"]


def test_every_hour_is_every_hour_on_such_days_too() -> None:
    hourly = read_schedule("30 * * * *", "Europe/Berlin")
    assert times(hourly, berlin("2026-03-29T01:00"), 2) == ["29 01:30 +0100", "29 03:30 +0200"]
    assert times(hourly, berlin("2026-10-25T02:00"), 3) == ["25 02:30 +0200", "25 02:30 +0100", "25 03:30 +0100"]


def test_an_interval_is_counted_from_its_anchor() -> None:
    every = read_schedule("every 10m", "Europe/Berlin", anchor=1_000)
    assert every == Every(600_000, 1_000)
    assert [every.next_after(after) for after in (-5, 0, 1_000, 1_001, 601_000, 6_000_999)] == [
        1_000, 1_000, 601_000, 601_000, 1_201_000, 6_001_000,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "interval"),
    [("every 1s", 1000), ("EVERY  1.5 M", 90_000), ("every 2h", 7_200_000), ("every 1d", 86_400_000)],
)
def test_intervals_are_seconds_minutes_hours_or_days(text: str, interval: int) -> None:
    assert read_schedule(text, None) == Every(interval, 0)


def test_a_moment_is_in_its_own_offset_or_in_the_time_zone() -> None:
    assert read_schedule("2026-06-05T09:00", "Europe/Berlin") == Once(berlin("2026-06-05T09:00"))
    assert read_schedule("2026-06-05T09:00+05:00", "Europe/Berlin") == Once(berlin("2026-06-05T06:00"))
    assert read_schedule("2026-06-05T09:00:00Z", None) == read_schedule("2026-06-05 09:00", None)


def test_a_moment_that_the_clocks_skip_or_repeat_is_like_any_other_time_of_day() -> None:
    assert read_schedule("2026-03-29T02:30", "Europe/Berlin") == Once(berlin("2026-03-29T03:00"))
    assert read_schedule("2026-10-25T02:30", "Europe/Berlin") == Once(berlin("2026-10-25T02:30", fold=0))


def test_a_moment_comes_once() -> None:
    once = Once(5_000)
    assert [once.next_after(after) for after in (0, 4_999, 5_000, 5_001)] == [5_000, 5_000, None, None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 0 30 2 *", "no such day ever comes"),
        ("0 0 31 2,4,6 *", "no such day ever comes"),
        ("* * */20 * 1L", "no such day ever comes"),
        ("61 * * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 0 32 * *", "bad day-of-month"),
        ("0 0 * 13 *", "bad month"),
        ("0 0 * * 8", "bad day-of-week"),
        ("0 0 * * * *", "expected"),
        ("every 0s", "the shortest interval is 1 s"),
        ("every 0.999s", "the shortest interval is 1 s"),
        ("every -5m", "expected"),
        ("every 99999999999999999999d", "the longest interval is 3660 d"),
        ("every ٣m", "expected"),
        ("2026-02-30T09:00", "expected"),
        ("0001-01-01T00:00+14:00", "expected a year from 1971 to 9998"),
        ("9999-12-31T23:59-14:00", "expected a year from 1971 to 9998"),
        ("1" * 300, "at most 256 characters"),
        ("*/" + "9" * 5000 + " * * * *", "at most 256 characters"),
        ("\ud800 * * * *", "bad minute"),
        ("@daily", "expected"),
        ("", "expected"),
    ],
)
def test_what_is_no_schedule_says_why(text: str, said: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        read_schedule(text, "Europe/Berlin")
    assert said in refused.value.message
    assert refused.value.details == {"param": "schedule"}
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../../etc/passwd", "Europe/Berlin\0", "x" * 5000, "/etc/localtime"])
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match="expected a time zone such as `Europe/Berlin`") as refused:
        read_schedule("0 9 * * *", zone)
    assert refused.value.details == {"param": "tz"}


def test_moments_are_shown_in_utc() -> None:
    assert show_moment(0) == "1970-01-01T00:00:00Z"
    assert show_moment(1_774_746_000_500) == "2026-03-29T01:00:00.500Z"


minutes = st.sampled_from(["0", "30", "*", "*/7", "5-50/9", "0,59"])
hours = st.sampled_from(["2", "*", "*/3", "0,1,2,3", "23", "0-23", "*/1"])
days = st.sampled_from(["*", "25-31", "L", "29", "*/5"])
months = st.sampled_from(["*", "3,10", "4-11", "2"])
weekdays = st.sampled_from(["*", "SUN", "0", "MON-FRI", "7L", "5#4"])
moments = st.integers(FROM, TO)


@given(minutes, hours, days, months, weekdays, st.sampled_from(ZONES), moments, st.integers(0, 10**9))
def test_what_comes_next_is_later_and_never_goes_back(
    minute: str, hour: str, day: str, month: str, weekday: str, zone: str, moment: int, later: int
) -> None:
    schedule = read_schedule(f"{minute} {hour} {day} {month} {weekday}", zone)
    first, second = schedule.next_after(moment), schedule.next_after(moment + later)
    assert first is not None
    assert second is not None
    assert first > moment
    assert first % 60_000 == 0
    assert second >= first
    # Nothing lies between a moment and what comes next: whoever asks later, but before it, hears the same.
    if moment + later < first:
        assert second == first


@given(st.integers(1000, 10**10), st.integers(0, TO), moments)
def test_an_interval_comes_exactly_once_in_every_interval(interval: int, anchor: int, moment: int) -> None:
    every = Every(interval, anchor)
    at = every.next_after(moment)
    assert moment < at
    assert at - moment <= interval
    assert (at - anchor) % interval == 0
    assert every.next_after(at) == at + interval


@given(st.text(max_size=40), st.none() | st.text(max_size=20))
def test_no_text_does_worse_than_being_refused(text: str, zone: str | None) -> None:
    try:
        schedule = read_schedule(text, zone)
    except InvalidSchedule:
        return
    schedule.next_after(FROM)


def test_a_read_schedule_of_utc_and_none_is_the_same() -> None:
    assert read_schedule("0 9 * * *", None).next_after(FROM) == read_schedule("0 9 * * *", "UTC").next_after(FROM)
    assert datetime.fromtimestamp((read_schedule("0 9 * * *", None).next_after(FROM) or 0) / 1000, UTC).hour == 9
