"""The trees of spawned sessions: each session is in them once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backchannel.core.forest import Forest, grow_forest


def test_each_key_stands_under_its_parent_and_one_whose_parent_is_not_there_is_a_root() -> None:
    forest = grow_forest({"a": None, "b": "a", "c": "b", "d": "gone", "e": "a"})
    assert forest == Forest(["a", "d"], {"a": ["b", "e"], "b": ["c"], "c": [], "d": [], "e": []})


def test_rows_that_spawned_each_other_are_shown_once() -> None:
    forest = grow_forest({"a": "b", "b": "a", "c": "c", "d": "gone", "e": None})
    assert forest.roots == ["d", "e", "a", "c"]
    assert forest.children == {"a": ["b"], "b": [], "c": [], "d": [], "e": []}


keys = st.sampled_from("abcdef")


@given(st.dictionaries(keys, st.none() | keys))
def test_whatever_the_rows_say_every_key_is_reached_once(parents: dict[str, str | None]) -> None:
    forest = grow_forest(parents)
    reached = list(forest.roots)
    for key in reached:
        reached += forest.children[key]
        assert len(reached) <= len(parents)
    assert sorted(reached) == sorted(parents)
