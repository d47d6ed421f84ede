"""Splitting: nothing visible is lost, nothing is too long, and cuts are where a reader would make them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backchannel.core.delivery import split

FAMILY = "👩\u200d👩\u200d👧"
TEXTS = st.text(alphabet=st.sampled_from("abc  \n\n\r\té\u0301\u200d👍🏽🇩🇪\ud83d\ude00"), max_size=80) | st.text(
    max_size=80
)
LIMITS = st.integers(min_value=1, max_value=20)


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("short", 10, ["short"]),
        ("exactly ten", 11, ["exactly ten"]),
        (" kept as it is \n", 20, [" kept as it is \n"]),
        ("one\ntwo\nthree", 8, ["one\ntwo", "three"]),
        ("one\ntwo", 3, ["one", "two"]),
        ("one\n\n\ntwo", 4, ["one", "two"]),
        ("one\r\ntwo", 4, ["one", "two"]),
        ("def f():\n    return 1", 12, ["def f():", "    return 1"]),
        ("aaaa bbbb", 4, ["aaaa", "bbbb"]),
        ("aaa   bbbb", 4, ["aaa", "bbbb"]),
        ("a line that is long", 10, ["a line", "that is", "long"]),
        ("x\nhttps://example.com", 8, ["x", "https://", "example.", "com"]),
        ("ok\na longer line", 8, ["ok", "a longer", "line"]),
        ("    indented", 8, ["    inde", "nted"]),
        ("        word", 4, ["word"]),
        ("", 5, []),
        (" \n\t\n ", 2, []),
        (" \n\t\n ", 50, []),
    ],
)
def test_a_text_is_cut_between_lines_else_at_a_space_else_where_it_must(
    text: str, limit: int, parts: list[str]
) -> None:
    assert split(text, limit) == parts


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("aae\u0301b", 3, ["aa", "e\u0301b"]),
        ("ab👍🏽", 3, ["ab", "👍🏽"]),
        (f"ab{FAMILY}", 6, ["ab", FAMILY]),
        ("a🇩🇪🇫🇷", 4, ["a🇩🇪", "🇫🇷"]),
        ("🇩🇪🇫🇷🇮🇹", 3, ["🇩🇪", "🇫🇷", "🇮🇹"]),
        ("a\ud83d\ude00b", 2, ["a", "\ud83d\ude00", "b"]),
        ("❤\ufe0f❤\ufe0f", 3, ["❤\ufe0f", "❤\ufe0f"]),
    ],
)
def test_what_is_seen_as_one_character_stays_whole(text: str, limit: int, parts: list[str]) -> None:
    assert split(text, limit) == parts


def test_a_character_longer_than_the_limit_is_cut_all_the_same() -> None:
    assert split(FAMILY, 2) == [FAMILY[:2], FAMILY[2:4], FAMILY[4:]]


@given(TEXTS, LIMITS)
@example("a\n \nb", 1)
def test_parts_hold_all_but_white_space_in_order_and_keep_the_limit(text: str, limit: int) -> None:
    at = 0
    for part in split(text, limit):
        assert 0 < len(part) <= limit
        assert part.strip()
        found = text.index(part, at)
        assert not text[at:found].strip()
        at = found + len(part)
    assert not text[at:].strip()


@given(st.text(alphabet=st.sampled_from("ab\n"), max_size=60), LIMITS)
def test_a_text_without_spaces_loses_only_line_breaks(text: str, limit: int) -> None:
    assert "".join(split(text, limit)).replace("\n", "") == text.replace("\n", "")


@given(st.lists(st.sampled_from(["a", "b", "e\u0301", "👍🏽", " ", "\n"]), max_size=60).map("".join))
def test_no_part_begins_in_the_middle_of_a_character(text: str) -> None:
    assert not any(part[0] in "\u0301🏽" for part in split(text, 4))


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        split("text", 0)


def test_long_texts_are_split_in_time_that_grows_with_their_length() -> None:
    for text in ("🇩" * 200_000, "\u0301" * 200_000, " " * 200_000 + "x", "\n" * 200_000):
        assert len(split(text, 1)) <= len(text)
        assert len(split(text, 4000)) <= len(text) / 4000 + 1
