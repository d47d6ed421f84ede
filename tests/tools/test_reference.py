"""The reference page of the tools, and what it is made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from docs.build.reference import render_tools

from backchannel.tools.base import SessionTool
from backchannel.tools.registry import SESSION_TOOLS
from tests.tools.shelf import Shelf, agents

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tools.md"
HOW = "run `make reference`"
each_tool = pytest.mark.parametrize("tool", SESSION_TOOLS, ids=[tool.name for tool in SESSION_TOOLS])


def section(name: str) -> str:
    return render_tools().partition(f"## `{name}`\n")[2].partition("\n## ")[0]


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_tools(), HOW


@each_tool
def test_every_tool_and_parameter_is_described_for_a_model_and_on_the_page(tool: type[SessionTool]) -> None:
    schema = tool.schema()
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert len(tool.description) > 40 and tool.description.endswith(".")
    shown = section(tool.name)
    assert tool.description in shown and f"`operator.{tool.scope}`" in shown
    for name, described in schema["properties"].items():
        assert described["description"].endswith("."), name
        assert f"| `{name}` |" in shown and described["description"] in shown


@each_tool
def test_every_outcome_and_example_is_on_the_page_and_examples_fit(tool: type[SessionTool]) -> None:
    assert tool.outcomes and tool.examples
    for when, what in tool.outcomes:
        assert f"| {when} | {what} |" in section(tool.name)
    for _, arguments in tool.examples:
        tool.read(dict(arguments))


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("sessions_list", {"limit": 1, "messageLimit": 1}),
    ("sessions_history", {"sessionKey": "main"}),
    ("sessions_history", {"sessionKey": "main", "before": "nothing"}),
    ("sessions_history", {"sessionKey": "agent:ops:main"}),
    ("sessions_spawn", {"task": "count to ten", "model": "builtin/demo"}),
    ("sessions_spawn", {"task": "count to ten", "agentId": "ops"}),
    ("sessions_spawn", {"task": "count to ten", "agentId": "nobody"}),
    ("agents_list", {}),
    ("sessions_search", {"query": "password"}),
    ("sessions_search", {"query": "x", "sessionKey": "agent:ops:main"}),
    ("session_status", {}),
    ("session_status", {"sessionKey": "agent:main:subagent:u"}),
    ("session_status", {"sessionKey": "agent:ops:main"}),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "arguments"), ASKED)
async def test_no_answer_has_a_field_that_the_page_does_not_name(
    shelf: Shelf, name: str, arguments: dict[str, Any]
) -> None:
    shelf.session("agent:main:main", "password=hunter2secret")
    shelf.session("agent:main:subagent:u", spawned_by="agent:main:main")
    shown = section(name) + render_tools().partition("## Rows")[2]
    async with shelf.opened(agents("main", "ops")) as gateway:
        answer = await gateway.tools("main").call(name, **arguments)
    assert [field for field in answer if field not in shown] == []
