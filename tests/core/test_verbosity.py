"""The lines that a chat gets about a tool call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backchannel.core.delivery.delivery import tool_line
from backchannel.core.runs import CallState, ToolCall


def called(arguments: Any, name: str = "look") -> ToolCall:
    return ToolCall(
        id="r/0/0",
        run_id="r",
        step=0,
        position=0,
        name=name,
        arguments=json.dumps(arguments),
        state=CallState.PLANNED,
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, "🔧 look"),
        ({"at": "the sky", "times": 2}, '🔧 look: {"at":"the sky","times":2}'),
        ({"text": "one\ntwo"}, '🔧 look: {"text":"one\\ntwo"}'),
        ("no object", '🔧 look: "no object"'),
    ],
)
def test_the_line_names_the_tool_and_what_it_was_called_with(arguments: Any, line: str) -> None:
    assert tool_line(called(arguments)) == line


def test_a_credential_is_hidden_also_where_the_line_is_cut() -> None:
    secret = "sk-ant-api03-" + "aB3dE5fG7h" * 6
    for filler in range(100, 170, 5):
        line = tool_line(called({"text": "x" * filler, "url": f"https://example.org/?key={secret}"}))
        assert "aB3dE5" not in line
        assert len(line) < 240
    assert "[redacted]" in tool_line(called({"password": "hunter2 is long"}))


def test_a_name_that_a_model_made_up_stays_on_one_line() -> None:
    line = tool_line(called({}, name="look\n/stop " + "x" * 500))
    assert "\n" not in line and len(line) < 80
