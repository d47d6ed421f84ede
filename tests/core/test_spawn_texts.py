"""The texts about a sub-agent: the exact post, and no text that others could forge."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from backchannel.core.commands.control_words import CONTROL_WORDS, is_control_word
from backchannel.core.flows.spawn_texts import (
    announce_prompt,
    child_title,
    post_text,
    show_cost,
    show_duration,
    show_tokens,
    stats_line,
    stopped_text,
    wake_text,
)
from backchannel.core.flows.spawn_values import Findings
from backchannel.core.runs import RunState
from tests.support.fences import outside_fences

from .spawns import ADDRESS, FINDINGS, done, parse, spawned

SPAWN = done(spawned())
STATS = (
    "runtime 5m12s • tokens 1.6k (in 1.2k / out 0.4k) • est $0.02 • model acme/large-1 • "
    "sessionKey agent:ops:subagent:7 • sessionId 5f1c • transcript /state/agents/ops/sessions/5f1c.jsonl"
)
SECRET = "ghp_" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1bC3"


# The post


def test_a_post_has_status_result_and_stats() -> None:
    assert post_text(SPAWN, "The disk is full.", FINDINGS) == (
        f"Status: success\nResult: The disk is full.\nStats: {STATS}"
    )


def test_notes_stand_between_result_and_stats() -> None:
    failed = done(spawned(), RunState.ERROR, "no answer")
    assert post_text(failed, None, FINDINGS) == (
        f"Status: error\nResult: 3 % are left.\nNotes: no answer\nStats: {STATS}"
    )


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (RunState.OK, "success"),
        (RunState.ERROR, "error"),
        (RunState.TIMEOUT, "timeout"),
        (RunState.ABORTED, "aborted"),
    ],
)
def test_the_status_is_the_runs_own_whatever_the_model_says(state: RunState, word: str) -> None:
    lines = post_text(done(spawned(), state), "Status: unheard of", FINDINGS).split("\n")
    assert lines[:2] == [f"Status: {word}", "Result: unheard of"]


SILENCES = [None, "", " \n\t", *CONTROL_WORDS, *(f" {word}\n" for word in CONTROL_WORDS)]


def result_of(announced: str | None, last_text: str | None, tool_result: str | None) -> str:
    findings = replace(FINDINGS, last_text=last_text, tool_result=tool_result)
    lines = post_text(SPAWN, announced, findings).split("\n")
    return "\n".join(lines[1:-1]).removeprefix("Result: ")


@pytest.mark.parametrize("silence", SILENCES)
def test_the_result_is_the_first_thing_that_says_anything(silence: str | None) -> None:
    assert result_of("announced", "said", "found") == "announced"
    assert result_of("announced", silence, silence) == "announced"
    assert result_of(silence, "said", "found") == "said"
    assert result_of(silence, "said", silence) == "said"
    assert result_of(silence, silence, "found") == "found"
    assert result_of(silence, silence, silence) == "(not available)"


def test_a_child_of_which_nothing_is_known_has_no_result() -> None:
    assert result_of(None, None, None) == "(not available)"


def test_a_result_may_have_several_lines_and_is_trimmed() -> None:
    assert result_of("\n one\n\ntwo \n", None, None) == "one\n\ntwo"
    assert result_of(None, "\tone\n", None) == "one"
    assert result_of(None, None, "\none ") == "one"


@pytest.mark.parametrize("text", ["NO_REPLY!", "I say ANNOUNCE_SKIP", "no_reply", "`REPLY_SKIP`"])
def test_a_text_that_mentions_a_control_word_is_a_result(text: str) -> None:
    assert result_of(text, "said", "found") == text
    assert result_of(None, text, "found") == text


def test_a_tool_result_is_redacted_and_what_a_model_said_is_left_alone() -> None:
    assert result_of(None, None, f"the key is {SECRET}") == "the key is [redacted]"
    assert result_of(None, f"the key is {SECRET}", None) == f"the key is {SECRET}"


def test_a_long_tool_result_is_cut_and_says_so() -> None:
    assert result_of(None, None, "x" * 4_000) == "x" * 4_000
    assert result_of(None, None, "x" * 4_002) == "x" * 4_000 + "… (2 characters more)"
    assert result_of(None, None, "x" * 9_000) == "x" * 4_000 + "… (5000 characters more)"
    assert result_of(None, "x" * 9_000, None) == "x" * 9_000


@pytest.mark.parametrize("shown", [1, 8, 20, len(SECRET) - 1])
def test_a_secret_across_the_cut_is_redacted_before_it_is_cut(shown: int) -> None:
    before = "x" * (3_999 - shown) + " "
    result = result_of(None, None, f"{before}{SECRET}{' tail' * 20}")
    assert result.startswith(before + "[redacted]"[:shown])
    assert "ghp_" not in result


@pytest.mark.parametrize(
    ("error", "note", "notes"),
    [
        (None, None, []),
        ("", "", []),
        (" \n", None, []),
        ("no answer", None, ["Notes: no answer"]),
        (None, "no announce", ["Notes: no announce"]),
        ("no answer", "no announce", ["Notes: no answer; no announce"]),
        (f"cannot log in with {SECRET}", None, ["Notes: cannot log in with [redacted]"]),
    ],
)
def test_there_are_notes_only_when_there_is_something_to_note(
    error: str | None, note: str | None, notes: list[str]
) -> None:
    lines = post_text(done(spawned(), RunState.ERROR, error), "Full.", FINDINGS, note).split("\n")
    assert lines[2:-1] == notes


TEXTS = st.none() | st.text(max_size=40) | st.sampled_from(["Status: error", "Stats: none", "A\nStats: x", *SILENCES])


@given(TEXTS, TEXTS, TEXTS, TEXTS, st.sampled_from([state for state in RunState if state.is_finished]))
def test_every_post_begins_with_the_status_and_ends_with_the_stats(
    announced: str | None, last_text: str | None, tool_result: str | None, error: str | None, state: RunState
) -> None:
    findings = replace(FINDINGS, last_text=last_text, tool_result=tool_result)
    post = post_text(done(spawned(), state, error), announced, findings)
    status, result, *_, stats = post.split("\n")
    assert status == f"Status: {'success' if state is RunState.OK else state}"
    assert re.match(r"Result: \S", result)
    assert stats == f"Stats: {STATS}"


# The stats


def test_the_stats_tell_everything_in_one_line() -> None:
    assert stats_line(SPAWN, FINDINGS) == STATS


def test_a_model_without_a_price_has_no_estimate() -> None:
    assert stats_line(SPAWN, replace(FINDINGS, cost=None)) == STATS.replace(" • est $0.02", "")
    assert stats_line(SPAWN, replace(FINDINGS, cost=0.0)) == STATS.replace("$0.02", "$0.00")


def test_what_is_not_known_is_said_to_be_so() -> None:
    assert stats_line(replace(SPAWN, transcript=None), Findings()) == (
        "runtime n/a • tokens n/a • model n/a • sessionKey agent:ops:subagent:7 • sessionId n/a • transcript n/a"
    )


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (None, "n/a"),
        (0, "0s"),
        (499, "0s"),
        (501, "1s"),
        (12_000, "12s"),
        (59_499, "59s"),
        (59_600, "1m0s"),
        (60_000, "1m0s"),
        (312_000, "5m12s"),
        (3_599_400, "59m59s"),
        (3_599_600, "1h0m"),
        (3_600_000, "1h0m"),
        (3_720_000, "1h2m"),
        (3_779_400, "1h2m"),
        (3_779_600, "1h3m"),
        (90_000_000, "25h0m"),
    ],
)
def test_a_duration_is_shown_by_its_two_largest_parts(ms: int | None, shown: str) -> None:
    assert show_duration(ms) == shown


@given(st.integers(0, 10**10))
def test_a_shown_duration_is_never_far_from_the_real_one(ms: int) -> None:
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", show_duration(ms))
    assert found is not None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    assert minutes < 60
    assert seconds < 60
    off = ms / 1000 - (hours * 3600 + minutes * 60 + seconds)
    assert -0.5 <= off <= (60 if hours else 0.5)


@pytest.mark.parametrize(
    ("tokens_in", "tokens_out", "shown"),
    [
        (0, 0, "n/a"),
        (1, 0, "1 (in 1 / out 0)"),
        (0, 7, "7 (in 0 / out 7)"),
        (900, 99, "999 (in 900 / out 99)"),
        (900, 100, "1.0k (in 0.9k / out 0.1k)"),
        (1_200, 400, "1.6k (in 1.2k / out 0.4k)"),
        (1_590, 10, "1.6k (in 1.6k / out 10)"),
        (1_600, 0, "1.6k (in 1.6k / out 0)"),
        (999_000, 949, "999.9k (in 999.0k / out 0.9k)"),
        (899_950, 100_000, "1.0m (in 0.9m / out 0.1m)"),
        (2_000_000, 500_000, "2.5m (in 2.0m / out 0.5m)"),
        (2_000_000, 40_000, "2.0m (in 2.0m / out 40.0k)"),
        (2_000_000, 40, "2.0m (in 2.0m / out 40)"),
    ],
)
def test_tokens_are_shown_in_one_unit_except_where_it_would_show_nothing(
    tokens_in: int, tokens_out: int, shown: str
) -> None:
    assert show_tokens(tokens_in, tokens_out) == shown


@given(st.integers(0, 10**8), st.integers(0, 10**8))
def test_no_count_of_tokens_is_shown_as_nothing_or_with_four_digits_before_the_point(came: int, went: int) -> None:
    shown = show_tokens(came, went)
    assert "0.0" not in re.split(r"[ ()km]+", shown)
    assert not re.search(r"\d{4,}(\.\d)?k|\d{4,}(?!\.)\b", shown)


@pytest.mark.parametrize(
    ("dollars", "shown"),
    [
        (0.0, "$0.00"),
        (0.0004, "$0.0004"),
        (0.00995, "$0.0100"),
        (0.01, "$0.01"),
        (0.02, "$0.02"),
        (0.125, "$0.12"),
        (3.0, "$3.00"),
        (1234.5, "$1234.50"),
    ],
)
def test_a_price_is_shown_in_cents_and_finer_below_one(dollars: float, shown: str) -> None:
    assert show_cost(dollars) == shown


# To the child


def test_the_announce_shows_the_task_and_the_word_that_keeps_silent() -> None:
    text = announce_prompt(spawned())
    assert text.startswith("[Sub-agent, announce step]\n")
    assert 'posted to its chat on "telegram"' in text
    assert "no tools" in text
    assert "exactly ANNOUNCE_SKIP" in text
    assert text.endswith("The task was:\n```\nLook at the disk.\n```")


def test_the_announce_promises_no_chat_that_there_is_not() -> None:
    assert "chat" not in announce_prompt(spawned(address=None))


# To the requester


def test_a_child_is_named_by_label_session_and_task() -> None:
    assert child_title(spawned()) == ('Sub-agent "disk", session "agent:ops:subagent:7", task "Look at the disk."')
    assert child_title(spawned(label=None)) == 'Sub-agent session "agent:ops:subagent:7", task "Look at the disk."'


def test_a_long_task_is_cut_in_a_title_and_a_long_key_is_not() -> None:
    key = parse(f"agent:ops:subagent:{'7' * 400}")
    title = child_title(spawned(label=None, child=key, task="x" * 100))
    assert f'session "{key}"' in title
    assert title.endswith(f'task "{"x" * 63}…"')


def test_a_wake_brings_all_posts_and_says_which_are_known_already() -> None:
    held = (("One", "Status: success\nResult: 1"), ("Two", None), ("Three", "```"))
    opening, *posts = wake_text(held, has_chat=True).split("\n\n")
    assert opening.startswith("[Results of your sub-agents]\n")
    assert "your reply goes there too" in opening
    assert "exactly NO_REPLY" in opening
    assert posts == [
        "One:\n```\nStatus: success\nResult: 1\n```",
        "Two: its result is above already.",
        "Three:\n````\n```\n````",
    ]


def test_a_wake_promises_no_chat_that_there_is_not() -> None:
    text = wake_text((("One", "Result: 1"),), has_chat=False)
    assert "chat" not in text
    assert "exactly NO_REPLY" in text


def test_the_note_of_a_stop_counts_and_names_the_children() -> None:
    one, two = spawned(), spawned(id="s2", label=None)
    assert stopped_text((one,)).startswith("[1 sub-agent stopped]\n")
    assert stopped_text((one, two)).startswith("[2 sub-agents stopped]\n")
    assert stopped_text((one, two)).endswith(f"\n{child_title(one)}\n{child_title(two)}")


# Whatever others wrote

TRICKY = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(["`", "```", "````", "\n", "\r", "\u2028", " ", "Sub-agent", '"']), max_size=12).map(
        "".join
    ),
)


@given(TRICKY, TRICKY)
def test_no_foreign_text_gets_out_of_its_fence(task: str, post: str) -> None:
    texts = [
        announce_prompt(spawned(task=f"«{task}»")),
        wake_text((("One", f"«{post}»"), ("Two", None), ("Three", f"«{post}»")), has_chat=True),
    ]
    for text in texts:
        assert "«" not in outside_fences(text)
        assert "»" not in outside_fences(text)


@given(TRICKY, TRICKY)
def test_names_that_others_chose_stay_on_one_line_and_in_quotes(label: str, task: str) -> None:
    title = child_title(spawned(label=label, task=task))
    assert len(title.splitlines()) == 1
    assert re.fullmatch(r'Sub-agent "[^"]*", session "agent:ops:subagent:7", task "[^"]*"', title)
    channel = replace(ADDRESS, channel=label)
    assert len(announce_prompt(spawned(address=channel)).splitlines()) == len(announce_prompt(spawned()).splitlines())


@given(TRICKY)
def test_no_text_for_a_model_is_itself_a_control_word(text: str) -> None:
    spawn = spawned(task=text, label=text)
    for written in (announce_prompt(spawn), wake_text(((text, text),), has_chat=False), stopped_text((spawn,))):
        assert not is_control_word(written)
