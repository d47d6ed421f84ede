"""What a server says it has: its tools, with names, descriptions and schemas that are fit to be shown to a model.

All of it was written by others and is bounded here: how many tools, how long a description, how large a schema. A
schema that is none is replaced by one that takes any object: the server checks its arguments itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mcp_types
import msgspec

from backchannel.config.schema_mcp import McpServerSettings
from backchannel.core.contracts import Effects
from backchannel.core.mcp_names import LONGEST_TOOL, tool_names
from backchannel.core.text import cut, storable_text

MOST_TOOLS = 500
LARGEST_SCHEMA = 64 * 1024
LONGEST_DESCRIPTION = 8_192
DEEPEST_SCHEMA = 64
ANY_OBJECT: dict[str, Any] = {"type": "object"}
LONGEST_NAME = 256
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
        if not tool.name or len(tool.name) > LONGEST_NAME:
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
    return ListedTool(
        name=name,
        own_name=tool.name,
        description=cut(storable_text(tool.description or tool.title or ""), LONGEST_DESCRIPTION),
        parameters=_schema(tool, note),
        effects=_effects(tool, settings),
    )


def _schema(tool: mcp_types.Tool, note: Note) -> dict[str, Any]:
    schema: Any = tool.input_schema
    if not isinstance(schema, dict) or schema.get("type") != "object":
        problem = "is none of an object"
    elif _depth_exceeds(schema, DEEPEST_SCHEMA):
        problem = f"is deeper than {DEEPEST_SCHEMA} levels"
    elif not (encoded := _encoded(schema)):
        problem = "cannot be written as JSON"
    elif len(encoded) > LARGEST_SCHEMA:
        problem = f"is larger than {LARGEST_SCHEMA // 1024} kB"
    else:
        return schema
    note(
        f"the schema of its tool {cut(tool.name, LONGEST_TOOL)!r} {problem}; one that takes any object is shown instead"
    )
    return ANY_OBJECT


def _encoded(schema: dict[str, Any]) -> bytes | None:
    try:
        return msgspec.json.encode(schema)
    except (msgspec.EncodeError, UnicodeEncodeError, OverflowError, RecursionError):
        return None


def _depth_exceeds(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_depth_exceeds(each, levels - 1) for each in inner)


def _effects(tool: mcp_types.Tool, settings: McpServerSettings) -> Effects:
    if (told := settings.effects.get(tool.name)) is not None:
        return Effects(told)
    hints = tool.annotations
    if settings.trust_annotations and hints is not None and (hints.read_only_hint or hints.idempotent_hint):
        return Effects.NONE
    return Effects.OUTSIDE
