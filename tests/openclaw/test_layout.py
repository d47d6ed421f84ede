"""A text taken apart into settings and comments, and written again."""

from __future__ import annotations

import random
from typing import Any

import pyjson5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backchannel.config import starter_config
from backchannel.config.source import scan
from backchannel.openclaw.rewriting import Group, comments_in, comments_of, parse_layout
from tests.config.json5_texts import Writer

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=3), values, max_size=4), st.randoms(use_true_random=False))
def test_what_is_not_changed_is_written_as_it_was(value: dict[str, Any], style: random.Random) -> None:
    writer = Writer(style)
    text = writer.document(value)

    layout = parse_layout(scan(text))

    assert str(layout) == text
    assert pyjson5.decode(text) == value
    assert sorted([*comments_in(layout.lead, layout.end), *comments_of(layout.root)]) == sorted(writer.comments)


def test_the_starter_file_is_written_as_it_was() -> None:
    assert str(parse_layout(scan(starter_config()))) == starter_config()


@pytest.mark.parametrize(
    ("text", "of_a", "of_b", "of_group"),
    [
        ("{ /* 1 */ a: 1, /* 2 */ b: 2 /* 3 */ }", ["/* 1 */"], ["/* 2 */", "/* 3 */"], []),
        ("{\n // 1\n a: 1, // 2\n // 3\n b: 2 // 4\n // 5\n}", ["// 1", "// 2"], ["// 3", "// 4"], ["// 5"]),
        ("{\n a: 1, /* 1 */ // 2\n b: 2, // 3\n\n /* 4 */ }", ["/* 1 */", "// 2"], ["// 3"], ["/* 4 */"]),
        ("{ a: 1 // 1\n , b: 2 }", ["// 1"], [], []),
        ("{ a /* 1 */ : /* 2 */ 1, b: 2, /* ,3 */ }", ["/* 1 */", "/* 2 */"], ["/* ,3 */"], []),
        ("{ a: 1, /* 1\n */ b: 2 }", [], ["/* 1\n */"], []),
    ],
)
def test_a_comment_belongs_to_the_setting_after_it_or_to_the_one_whose_line_it_ends(
    text: str, of_a: list[str], of_b: list[str], of_group: list[str]
) -> None:
    root = parse_layout(scan(text)).root

    assert [root.find("a").comments, root.find("b").comments, comments_in(root.end)] == [of_a, of_b, of_group]


@pytest.mark.parametrize(
    ("text", "without_b"),
    [
        ("{ a: 1, b: 2 }", "{ a: 1 }"),
        ("{ a: 1, b: 2, }", "{ a: 1, }"),
        ("{ b: 2, a: 1 }", "{ a: 1 }"),
        ("{ b: 2 }", "{ }"),
        ("{ a: 1, // one\n b: 2 }", "{ a: 1 // one\n }"),
        ("{\n  a: 1, // one\n  b: 2, // two\n}", "{\n  a: 1, // one\n}"),
    ],
)
def test_a_setting_is_taken_out_with_its_comma_and_no_comment_swallows_what_follows(text: str, without_b: str) -> None:
    layout = parse_layout(scan(text))
    layout.root.remove(layout.root.find("b"))

    assert str(layout) == without_b
    assert "b" not in pyjson5.decode(str(layout))


def test_settings_are_found_by_name_and_items_by_place() -> None:
    root = parse_layout(scan('{ "a b": [ 1, { c: 2 } ] }')).root
    listed = root.find("a b").value
    assert isinstance(listed, Group)
    assert str(listed.find(1).value) == "{ c: 2 }"

    for group, step in ((root, "a"), (listed, 2)):
        with pytest.raises(LookupError):
            group.find(step)
