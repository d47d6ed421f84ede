"""Fences: what others wrote stays between them, whatever it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.text import fenced, joined

TRICKY = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(["`", "```", "````", "\n", "\r", " ", "text", "\u2028"]), max_size=12).map("".join),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "```\nplain\n```"),
        (" two\nlines ", "```\n two\nlines \n```"),
        ("one ` or two ``", "```\none ` or two ``\n```"),
        ("```python\nx\n```", "````\n```python\nx\n```\n````"),
        ("a ``````` b ``` c", "````````\na ``````` b ``` c\n````````"),
        ("`````", "``````\n`````\n``````"),
    ],
)
def test_a_text_stands_unchanged_between_fences_longer_than_its_own(text: str, expected: str) -> None:
    assert fenced(text) == expected


@pytest.mark.parametrize("text", [None, "", " ", "\n\t \n"])
def test_a_text_that_says_nothing_is_called_empty(text: str | None) -> None:
    assert fenced(text) == "(empty)"


@given(TRICKY.filter(str.strip))
def test_no_text_closes_its_fence_and_none_is_changed(text: str) -> None:
    fence, *_ = fenced(text).split("\n")
    assert fenced(text) == f"{fence}\n{text}\n{fence}"
    assert set(fence) == {"`"}
    assert len(fence) >= 3
    assert fence not in text


def test_lines_with_nothing_to_say_are_left_out() -> None:
    assert joined("one", "", "two\n\nthree", "") == "one\ntwo\n\nthree"
    assert joined("", "") == joined() == ""
