"""The positions of settings in a JSON5 text."""

from __future__ import annotations

import json
from typing import Any

import pyjson5
from hypothesis import given
from hypothesis import strategies as st

from backchannel.config.findings import show_path
from backchannel.config.source import scan
from backchannel.core.settings import SettingPath

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
WORDS = "{ } [ ] : , a b1 $x 's' \"t\" ' \" \\ /*d*/ /* 1 +.5 -0x1F 5. NaN -Infinity true null \\u0061 é {} [] {a:1}"
pieces = st.sampled_from([*WORDS.split(), " ", "\n", "\\\n", "//c\n", "\u2028"])


def paths(value: Any, path: SettingPath = ()) -> set[SettingPath]:
    if isinstance(value, dict):
        members: list[tuple[str | int, Any]] = list(value.items())
    elif isinstance(value, list):
        members = list(enumerate(value))
    else:
        return set()
    found = {(*path, step) for step, _ in members}
    return found.union(*(paths(member, (*path, step)) for step, member in members))


@given(values, st.sampled_from([None, 0, 2]), st.booleans())
def test_every_path_of_a_json_text_is_found(value: Any, indent: int | None, ascii_only: bool) -> None:
    found = scan(json.dumps(value, indent=indent, ensure_ascii=ascii_only))

    assert found.problem is None
    assert not found.repeated
    # A pair of escapes for one character is two halves to the scanner; such names have no line, and that is all.
    if not ascii_only:
        assert set(found.offsets) == paths(value)


@given(st.lists(pieces, max_size=30).map("".join))
def test_what_the_parser_accepts_is_followed_to_the_end(text: str) -> None:
    found = scan(text)

    try:
        value = pyjson5.decode(text)
    except pyjson5.Json5DecoderException:
        return
    assert found.problem is None
    assert set(found.offsets) >= paths(value)


@given(st.text())
def test_no_text_is_too_odd_to_be_scanned(text: str) -> None:
    found = scan(text)

    if found.problem:
        line, column = found.place(found.problem.offset)
        assert line >= 1
        assert column >= 1


def test_lines_are_those_of_the_settings_or_of_what_is_around_them() -> None:
    found = scan("""{
      // agents: 1
      agents: { /* list:
        2 */ list: [
          { id: 'a' },
          {
            "id": "b // }", model:
              "x" } ] },
      'my \\
chan': 5, }""")

    assert found.problem is None
    assert found.line(("agents",)) == 3
    assert found.line(("agents", "list")) == 4
    assert found.line(("agents", "list", 0, "id")) == 5
    assert found.line(("agents", "list", 1)) == 6
    assert found.line(("agents", "list", 1, "model")) == 7
    assert found.line(("my chan",)) == 9
    assert found.line(("agents", "list", 1, "name", "first")) == 6
    assert found.line(("gateway", "port")) is None


def test_what_was_found_before_a_slip_still_counts() -> None:
    found = scan("{ a: 1,\n b: { c: 2,\n d ! } }")

    assert found.problem is not None
    assert found.line(("b", "c")) == 2


def test_paths_are_shown_as_people_write_them() -> None:
    assert show_path(("agents", "list", 1, "model")) == "agents.list[1].model"
    assert show_path(("channels", "my chat\n", "url")) == 'channels["my chat?"].url'
    assert show_path(()) == ""
