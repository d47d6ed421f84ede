"""The tools that an MCP server lists, as the gateway reads them."""

from __future__ import annotations

from typing import Any

import mcp_types
import pytest

from backchannel.agents.mcp.listing import ListedTool, listed
from backchannel.agents.mcp.mending import NO_SCHEMA, mended
from backchannel.config.schema_agents import McpServerSettings
from backchannel.core.contracts import Effects

OBJECT: dict[str, Any] = {"type": "object"}


def found(tools: list[Any], **settings: Any) -> tuple[dict[str, ListedTool], list[str]]:
    notes: list[str] = []
    tools = [{"inputSchema": OBJECT, **tool} if isinstance(tool, dict) else tool for tool in tools]
    given = mcp_types.ListToolsResult.model_validate(mended({"tools": tools})).tools
    return listed("far", McpServerSettings(command="x", **settings), given, notes.append), notes


@pytest.mark.parametrize("tool", [None, 7, {}, {"name": 3}, {"name": "", "inputSchema": OBJECT}, {"name": "x" * 300}])
def test_what_is_no_tool_costs_no_other(tool: Any) -> None:
    tools, _ = found([tool, {"name": "good", "inputSchema": OBJECT}])
    assert list(tools) == ["far__good"]


DEEP: dict[str, Any] = {"type": "object"}
for _ in range(100):
    DEEP = {"type": "object", "properties": {"x": DEEP}}


@pytest.mark.parametrize(
    "schema", [None, "object", [], {"type": "string"}, {"type": "object", "description": "x" * 70_000}, DEEP, True]
)
def test_a_schema_that_is_none_is_replaced_by_one_that_takes_any_object(schema: Any) -> None:
    tools, notes = found(
        [{"name": "t", "inputSchema": schema, "description": 5, "annotations": "x", "outputSchema": 1}]
    )
    assert tools["far__t"].parameters == NO_SCHEMA
    assert notes == ["its tool 't' has no schema that can be shown; it takes any object"]


def test_there_are_so_many_tools_and_no_more_and_the_first_of_a_name_counts() -> None:
    tools, notes = found([{"name": "a", "description": "one"}, {"name": "a", "description": "two"}])
    assert tools["far__a"].description == "one"
    assert notes == ["it has two tools named 'a'; the first one is used"]
    tools, notes = found([{"name": f"t{n}"} for n in range(600)])
    assert len(tools) == 500
    assert notes == ["it has more than 500 tools; the others are left out"]


def test_what_had_to_be_renamed_is_told() -> None:
    _, notes = found([{"name": "a.b"}])
    assert notes == ["its tool 'a.b' is called far__a_b here: providers take no other name"]


READS = {"readOnlyHint": True}
REPEATS = {"idempotentHint": True, "destructiveHint": True}


@pytest.mark.parametrize(
    ("annotations", "settings", "effects"),
    [
        (READS, {}, Effects.OUTSIDE),
        (REPEATS, {}, Effects.OUTSIDE),
        (READS, {"trust_annotations": True}, Effects.NONE),
        (REPEATS, {"trust_annotations": True}, Effects.NONE),
        ({"readOnlyHint": False}, {"trust_annotations": True}, Effects.OUTSIDE),
        ({"readOnlyHint": "yes"}, {"trust_annotations": True}, Effects.OUTSIDE),
        (None, {"trust_annotations": True}, Effects.OUTSIDE),
        (None, {"effects": {"t": "none"}}, Effects.NONE),
        (READS, {"trust_annotations": True, "effects": {"t": "outside"}}, Effects.OUTSIDE),
    ],
)
def test_effects_are_outside_unless_the_server_is_trusted_or_the_settings_say_so(
    annotations: Any, settings: dict[str, Any], effects: Effects
) -> None:
    tools, _ = found([{"name": "t", "annotations": annotations}], **settings)
    assert tools["far__t"].effects is effects


def test_an_override_for_a_tool_that_is_not_there_is_told() -> None:
    _, notes = found([{"name": "t"}], effects={"tt": "none"})
    assert notes == ["`effects` names 'tt', and it has no such tool"]
