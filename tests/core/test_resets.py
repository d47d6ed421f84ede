"""Automatic resets: marks, time zones, types of chats."""

from __future__ import annotations

import time
from datetime import UTC, tzinfo
from functools import partial
from zoneinfo import ZoneInfo

import pytest

from backchannel.config.zones import MachineZone, last_mark
from backchannel.core.keys import KeyScheme, SessionKey
from backchannel.core.policy.resets import (
    ResetChat,
    ResetDue,
    ResetMode,
    ResetSchedule,
    ResetSettings,
    ResetTypeSettings,
    TypeResetSettings,
    reset_chat,
)
from tests.support.clocks import moment

BERLIN = ZoneInfo("Europe/Berlin")
MAIN = "agent:main:main"


def due(settings: ResetSettings, used: str, now: str, key: str = MAIN, zone: tzinfo = UTC) -> ResetDue | None:
    schedule = ResetSchedule(settings, partial(last_mark, zone))
    rule = schedule.rule_for(key, KeyScheme().kind(SessionKey.parse(key)))
    return None if rule is None else schedule.due(rule, moment(used), moment(now))


@pytest.mark.parametrize(
    ("now", "mark"),
    [
        ("2026-05-04T03:59:59", "2026-05-03T04:00"),
        ("2026-05-04T04:00:00", "2026-05-04T04:00"),
        ("2026-05-04T23:30:00", "2026-05-04T04:00"),
    ],
)
def test_the_mark_is_the_last_time_at_which_the_hour_came(now: str, mark: str) -> None:
    assert last_mark(UTC, moment(now), 4) == moment(mark)


@pytest.mark.parametrize(
    ("now", "hour", "mark"),
    [
        ("2026-03-29T00:59:59Z", 2, "2026-03-28T01:00Z"),
        ("2026-03-29T01:00:00Z", 2, "2026-03-29T01:00Z"),  # two o'clock is skipped: the mark comes right after the gap
        ("2026-03-29T05:00:00Z", 4, "2026-03-29T02:00Z"),
        ("2026-10-24T23:59:59Z", 2, "2026-10-24T00:00Z"),
        ("2026-10-25T00:00:00Z", 2, "2026-10-25T00:00Z"),  # two o'clock comes twice: the first time counts
        ("2026-10-25T01:30:00Z", 2, "2026-10-25T00:00Z"),
        ("2026-10-25T03:30:00Z", 4, "2026-10-25T03:00Z"),
    ],
)
def test_each_day_has_one_mark_where_clocks_are_changed(now: str, hour: int, mark: str) -> None:
    assert last_mark(BERLIN, moment(now), hour) == moment(mark)


def test_the_machines_zone_has_the_same_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        for now in ("2026-03-29T00:59:59Z", "2026-03-29T01:00:00Z", "2026-10-25T01:30:00Z", "2026-07-01T12:00:00Z"):
            assert last_mark(MachineZone(), moment(now), 2) == last_mark(BERLIN, moment(now), 2)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_session_that_was_used_since_the_mark_goes_on() -> None:
    daily = ResetSettings(mode=ResetMode.DAILY)

    assert due(daily, "2026-05-04T04:00:00", "2026-05-05T03:59:59") is None
    assert due(daily, "2026-05-04T03:59:59", "2026-05-04T04:00:00") == ResetDue(ResetMode.DAILY, carry=False)


def test_an_idle_session_begins_anew_after_its_minutes() -> None:
    idle = ResetSettings(mode=ResetMode.IDLE, idle_minutes=30, carry=True)

    assert due(idle, "2026-05-04T10:00:00", "2026-05-04T10:29:59") is None
    assert due(idle, "2026-05-04T10:00:00", "2026-05-04T10:30:00") == ResetDue(ResetMode.IDLE, carry=True)


def test_with_both_marks_the_first_one_counts() -> None:
    both = ResetSettings(mode=ResetMode.DAILY, idle_minutes=60)

    assert due(both, "2026-05-04T10:00:00", "2026-05-04T11:00:00") == ResetDue(ResetMode.IDLE, carry=False)
    assert due(both, "2026-05-04T03:50:00", "2026-05-04T04:00:00") == ResetDue(ResetMode.DAILY, carry=False)


def test_a_session_used_in_the_future_goes_on() -> None:
    both = ResetSettings(mode=ResetMode.DAILY, idle_minutes=1)

    assert due(both, "2026-05-05T10:00:00", "2026-05-04T10:00:00") is None  # the clock was set back


def test_a_type_has_its_own_values_and_else_those_of_all() -> None:
    settings = ResetSettings(
        mode=ResetMode.DAILY,
        at_hour=6,
        by_type=ResetTypeSettings(
            group=TypeResetSettings(mode=ResetMode.IDLE, idle_minutes=10), thread=TypeResetSettings(mode=ResetMode.OFF)
        ),
    )
    long_ago, now = "2026-05-01T00:00:00", "2026-05-04T05:00:00"

    assert settings.of(ResetChat.DIRECT) == (ResetMode.DAILY, 6, None, False)
    assert due(settings, long_ago, now, "agent:main:telegram:group:1") == ResetDue(ResetMode.IDLE, carry=False)
    assert due(settings, long_ago, now, "agent:main:telegram:group:1:topic:2") is None


@pytest.mark.parametrize(
    ("key", "chat"),
    [
        (MAIN, ResetChat.DIRECT),
        ("agent:main:telegram:direct:1", ResetChat.DIRECT),
        ("agent:main:notes", ResetChat.DIRECT),
        ("agent:main:openai:alice", ResetChat.DIRECT),
        ("agent:main:slack:channel:c1", ResetChat.GROUP),
        ("agent:main:slack:channel:c1:thread:9", ResetChat.THREAD),
        ("agent:main:telegram:direct:1:thread:9", ResetChat.THREAD),
        ("agent:main:cron:nightly", None),
        ("agent:main:hook:x", None),
        ("agent:main:node-phone", None),
        ("agent:main:subagent:6f0d", None),
    ],
)
def test_only_sessions_that_people_talk_to_have_a_type(key: str, chat: ResetChat | None) -> None:
    assert reset_chat(key, KeyScheme().kind(SessionKey.parse(key))) is chat
