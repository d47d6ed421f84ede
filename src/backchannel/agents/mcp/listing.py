"""The tool list of an MCP server, made fit for a model.

Others wrote all of it, so it is bounded. Here the number of tools and the length of descriptions are bounded; schemas
are bounded before, in `mending.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mcp_types
import msgspec

from backchannel.agents.mcp.mending import NO_SCHEMA
from backchannel.config.schema_agents import McpServerSettings
from backchannel.core.contracts import Effects
from backchannel.core.mcp_names import LONGEST_TOOL, tool_names
from backchannel.core.text import cut, storable_text, without_controls

MOST_TOOLS = 500
LONGEST_DESCRIPTION = 8_192
_LONGEST_NAME = 256
"""How long a name may be at the server."""

Note = Callable[[str], None]
"""Is told what had to be changed, one line at a time."""


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a server, as agents see it."""

    name: str
    own_name: str
    """What the server calls it."""
    description: str
    parameters: dict[str, Any]
    effects: Effects


def listed(
    server: str, settings: McpServerSettings, given: Iterable[mcp_types.Tool], note: Note
) -> dict[str, ListedTool]:
    """Make the tools of a server, by their names."""
    by_name: dict[str, mcp_types.Tool] = {}
    for tool in given:
        if not tool.name or len(tool.name) > _LONGEST_NAME:
            note("a tool without a usable name is left out")
        elif tool.name in by_name:
            note(f"it has two tools named {tool.name!r}; the first one is used")
        elif len(by_name) == MOST_TOOLS:
            note(f"it has more than {MOST_TOOLS} tools; the others are left out")
            break
        else:
            by_name[tool.name] = tool
    for missing in settings.effects.keys() - by_name.keys():
        note(f"`effects` names {missing!r}, and it has no such tool")
    names = tool_names(server, by_name)
    tools = [_tool(names[own], tool, settings, note) for own, tool in by_name.items()]
    return {tool.name: tool for tool in tools}


def _tool(name: str, tool: mcp_types.Tool, settings: McpServerSettings, note: Note) -> ListedTool:
    if not name.endswith(f"__{tool.name}"):
        note(f"its tool {cut(tool.name, LONGEST_TOOL)!r} is called {name} here: providers take no other name")
    if tool.input_schema == NO_SCHEMA:
        note(f"its tool {cut(tool.name, LONGEST_TOOL)!r} has no schema that can be shown; it takes any object")
    return ListedTool(
        name=name,
        own_name=tool.name,
        description=cut(without_controls(storable_text(tool.description or tool.title or "")), LONGEST_DESCRIPTION),
        parameters=tool.input_schema,
        effects=_effects(tool, settings),
    )


def _effects(tool: mcp_types.Tool, settings: McpServerSettings) -> Effects:
    if (told := settings.effects.get(tool.name)) is not None:
        return Effects(told)
    hints = tool.annotations
    if settings.trust_annotations and hints is not None and (hints.read_only_hint or hints.idempotent_hint):
        return Effects.NONE
    return Effects.OUTSIDE
