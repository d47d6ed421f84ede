"""Control words: exactly these, and never on a screen, not even half-written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.commands.control_words import CONTROL_WORDS, held_back, is_control_word, is_silent

BLANKS = st.text(alphabet=" \t\n\r\u00a0\u2003", max_size=3)
PIECES = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["NO", "NO_REPLY", "REPLY", "_", "SKIP", "REPLY_SKIP", "ANNOUNCE_SKIP", " ", "\n", "."]),
)
TEXTS = st.lists(PIECES, max_size=5).map("".join)


@pytest.mark.parametrize("word", ["REPLY_SKIP", "ANNOUNCE_SKIP", "NO_REPLY"])
@pytest.mark.parametrize("around", ["{}", " {}", "{}\n", "\t{} \r\n", "\u00a0{}\u2003"])
def test_a_control_word_counts_with_white_space_around_it(word: str, around: str) -> None:
    assert is_control_word(around.format(word))
    assert is_silent(around.format(word))


NEARLY = (
    "|reply_skip|No_Reply|REPLY_SKIP.|`REPLY_SKIP`|**NO_REPLY**|REPLY SKIP|NO_REPLY NO_REPLY|I answer REPLY_SKIP"
    "|REPLY_SKIP\nthanks|SKIP|REPLY_SKIPPED|REPLY_SKI|\u200bNO_REPLY| "
)


@pytest.mark.parametrize("text", NEARLY.split("|"))
def test_nothing_else_is_a_control_word(text: str) -> None:
    assert not is_control_word(text)


@pytest.mark.parametrize(("text", "expected"), [(None, True), ("", True), (" \n", True), ("ok", False), ("NO", False)])
def test_a_missing_or_blank_reply_is_silent(text: str | None, expected: bool) -> None:
    assert is_silent(text) is expected


@pytest.mark.parametrize("text", ["", " ", "N", "NO", "\n REPLY_", "ANNOUNCE_SKIP", "NO_REPLY \n"])
def test_what_could_still_become_a_control_word_is_held_back(text: str) -> None:
    assert held_back(text) == ""


@pytest.mark.parametrize("text", ["No", "NOT", "NO ", "REPLY _SKIP", "NO_REPLY x", "REPLY_SKIP.", " R2", "A\n"])
def test_what_cannot_become_one_any_more_is_shown_whole(text: str) -> None:
    assert held_back(text) == text


@given(BLANKS, st.sampled_from(CONTROL_WORDS), BLANKS)
def test_no_beginning_of_a_control_word_is_ever_shown(before: str, word: str, behind: str) -> None:
    text = before + word + behind
    assert [held_back(text[:end]) for end in range(len(text) + 1)] == [""] * (len(text) + 1)


@given(TEXTS)
def test_what_was_shown_stays_shown_and_never_becomes_a_control_word(text: str) -> None:
    is_shown = False
    for end in range(len(text) + 1):
        now = held_back(text[:end])
        assert now in ("", text[:end])
        assert bool(now) or not is_shown
        is_shown = bool(now)
    assert not (is_shown and is_control_word(text))


@given(TEXTS)
def test_a_text_is_held_back_only_if_some_continuation_is_a_control_word(text: str) -> None:
    ends = ("", *(word[start:] for word in CONTROL_WORDS for start in range(len(word))))
    assert (held_back(text) == "") is (text == "" or any(is_control_word(text + end) for end in ends))
