"""Names that others choose: what is kept of them, and what is shown."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.text import clean_name, shown_name, stored_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Team", "Team"),
        ("  Team \n of  ten ", "Team of ten"),
        ("a\u202egpj.exe", "a gpj.exe"),
        ("a\u200bb\u2066c\u2069", "a b c"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07Team", "Team"),
        ("\x1b]0;never closed", ""),
        ("\x9b2Jgone", "gone"),
        ("tab\there", "tab here"),
        ("half \ud83d", "half"),
        ("Grüße 你好 🎉", "Grüße 你好 🎉"),
    ],
)
def test_only_what_can_be_seen_on_one_line_stays(name: str, shown: str) -> None:
    assert clean_name(name) == shown


def test_a_long_name_is_cut_shorter_to_be_shown_than_to_be_kept() -> None:
    assert len(stored_name("x" * 50_000) or "") == 256
    assert len(shown_name("x" * 50_000) or "") == 64
    assert shown_name("x" * 64) == "x" * 64


def test_a_name_of_which_nothing_can_be_seen_is_none() -> None:
    assert stored_name(" \u200b\n") is None
    assert shown_name("\u202e") is None
    assert stored_name(None) is None


@given(st.text())
def test_whatever_comes_is_one_short_line_without_anything_invisible(name: str) -> None:
    shown = clean_name(name)
    assert len(shown) <= 64 and len(shown.splitlines()) <= 1
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    assert clean_name(shown) == shown
