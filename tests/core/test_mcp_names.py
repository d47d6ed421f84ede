"""The names that tools of MCP servers have for agents."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.mcp_names import may_name, server_name_problem, tool_names

VALID = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")


@pytest.mark.parametrize("name", ["git", "brave-search", "my_files", "A1", "x" * 32, "a--b"])
def test_a_server_may_have_a_plain_name(name: str) -> None:
    assert server_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("a__b", "a_b"),
        ("files_", "files"),
        ("Google Maps", "Google-Maps"),
        ("@org/x.y", "org-x-y"),
        ("é" * 40, None),
        ("", None),
    ],
)
def test_a_name_that_tools_cannot_begin_with_is_refused_with_one_that_would_do(name: str, better: str | None) -> None:
    problem = server_name_problem(name)
    assert problem is not None and "letters, digits, `-` and single `_`, at most 32" in problem
    assert (f"(`{better}` would do)" in problem) if better else "would do" not in problem


def test_a_name_that_is_valid_stays_and_others_are_made_so() -> None:
    assert tool_names("s", ["a-b", "get.weather"]) == {"a-b": "s__a-b", "get.weather": "s__get_weather"}


def test_names_that_would_become_the_same_are_told_apart_and_the_plain_one_keeps_its_own() -> None:
    names = tool_names("s", ["a.b", "a_b", "a/b"])
    assert names["a_b"] == "s__a_b"
    assert len(set(names.values())) == 3
    assert all(name.startswith("s__a_b") for name in names.values())


@given(st.lists(st.text(max_size=100), unique=True, max_size=30), st.randoms())
def test_all_names_are_valid_distinct_and_the_same_in_any_order(given_names: list[str], order: random.Random) -> None:
    names = tool_names("srv", given_names)
    assert all(VALID.match(name) for name in names.values())
    assert len(set(names.values())) == len(given_names)
    shuffled = given_names[:]
    order.shuffle(shuffled)
    assert tool_names("srv", shuffled) == names


@pytest.mark.parametrize(
    ("word", "may"),
    [
        ("group:mcp:git", True),
        ("group:mcp:gi", False),
        ("group:*", False),
        ("git__log", True),
        ("GIT__*", True),
        ("git*", True),
        ("g*t__log", True),
        ("*", False),
        ("*_log", True),
        ("git", False),
        ("github__log", False),
        ("github*", False),
        ("sessions_*", False),
    ],
)
def test_a_word_of_tools_allow_may_name_a_tool_of_a_server_or_cannot(word: str, may: bool) -> None:
    assert may_name(word, "git") is may
