"""The new part of a run on another gateway, from two reads of its stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backchannel.core.runs import Run
from backchannel.runtime.cluster.growing import MOST_GROWING_CALLS, Growth, news
from backchannel.runtime.events import ModelRetried, Progress, ReplyGrew, ThinkingGrew, ToolEnded, ToolStarted

BLANK: dict[str, Any] = dict.fromkeys(Run.__struct_fields__)
FIRST = Run(**BLANK | {"id": "r", "step": 0})
SECOND = msgspec.structs.replace(FIRST, step=1)


def grown(*events: Progress) -> Growth:
    growth = Growth()
    for event in events:
        growth.take(event)
    return msgspec.json.decode(msgspec.json.encode(growth), type=Growth)


def told(run: Run, before: Growth | None, now: Growth) -> Sequence[Progress]:
    return list(news(run, before, now))


def said(text: str, run: Run = FIRST) -> ReplyGrew:
    return ReplyGrew(run, text, "")


def test_only_what_was_added_is_new() -> None:
    before, now = grown(said("Once ")), grown(said("Once "), said("Once upon "))
    assert told(FIRST, Growth(), before) == [ReplyGrew(FIRST, "Once ", "Once ")]
    assert told(FIRST, before, now) == [ReplyGrew(FIRST, "Once upon ", "upon ")]
    assert told(FIRST, now, now) == []


def test_a_reply_that_is_begun_anew_is_told_whole_after_the_retry() -> None:
    before = grown(said("Once "))
    retried = ModelRetried(FIRST, "busy", 1, 9, 5)
    now = grown(said("Once "), retried, said("Twice "))
    assert told(FIRST, before, now) == [retried, ReplyGrew(FIRST, "Twice ", "Twice ")]


def test_whoever_comes_midway_hears_of_a_retry_that_lasts_and_of_no_other() -> None:
    retried = ModelRetried(FIRST, "busy", 1, 9, 5)
    assert told(FIRST, None, grown(said("Once "), retried)) == [retried]
    assert told(FIRST, None, grown(retried, said("Twice "))) == [ReplyGrew(FIRST, "Twice ", "Twice ")]
    assert told(SECOND, None, grown(retried)) == []
    assert told(SECOND, None, grown(retried, said("", SECOND))) == []


def test_the_text_of_a_step_that_is_committed_is_not_told_again() -> None:
    now = grown(said("Once "), said("Then "))
    assert told(SECOND, None, now) == []
    assert told(SECOND, now, grown(said("Once "), said("Then ", SECOND))) == [ReplyGrew(SECOND, "Then ", "Then ")]


def test_thoughts_are_told_as_they_are_added() -> None:
    before = grown(ThinkingGrew(FIRST, "Hm. "))
    now = grown(ThinkingGrew(FIRST, "Hm. "), ThinkingGrew(FIRST, "Oh."))
    assert told(FIRST, before, now) == [ThinkingGrew(FIRST, "Oh.")]


def test_a_call_that_began_and_ended_between_two_looks_is_told_in_full() -> None:
    began, ended = ToolStarted(SECOND, "c", "look", {"at": "it"}), ToolEnded(SECOND, "c", "look", True)
    now = grown(began, ended)
    assert told(SECOND, Growth(), now) == [began, ended]
    assert told(SECOND, grown(began), now) == [ended]
    assert told(SECOND, now, now) == []


def test_whoever_comes_midway_hears_of_calls_that_are_under_way() -> None:
    over = (ToolStarted(SECOND, "a", "look", {}), ToolEnded(SECOND, "a", "look", False))
    at_work = ToolStarted(SECOND, "b", "look", {})
    assert told(SECOND, None, grown(*over, at_work)) == [at_work]


def test_of_many_calls_the_last_are_kept() -> None:
    calls = [ToolStarted(SECOND, str(n), "look", {}) for n in range(MOST_GROWING_CALLS + 5)]
    assert [call.id for call in grown(*calls).calls] == [str(n) for n in range(5, MOST_GROWING_CALLS + 5)]
