"""`backchannel tools`: list, show and call the session tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from backchannel.cli import answers
from backchannel.cli.client import connected
from backchannel.cli.naming import find_key
from backchannel.cli.options import FAILED, AlwaysJson, AsJson, options_of
from backchannel.cli.output import patience, say, show_json
from backchannel.cli.tables import show_table

if TYPE_CHECKING:
    from backchannel.tools.base import SessionTool

app = typer.Typer(help="List, show and call the session tools.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tool, as `tools list` shows it.")]


@app.command("list")
def list_tools(as_json: AsJson = False) -> None:
    """List the session tools. With --json, also their arguments as JSON Schema."""
    from backchannel.tools.registry import SESSION_TOOLS

    if as_json:
        show_json({"tools": [_described(tool) for tool in SESSION_TOOLS]})
        return
    rows = [[tool.name, tool.description] for tool in SESSION_TOOLS]
    show_table(["name", "description"], rows, empty="There are no tools.")


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show the purpose and the arguments of a session tool."""
    from backchannel.tools.registry import find_tool

    tool = find_tool(name)
    if as_json:
        show_json(_described(tool))
        return
    show_table(["name", "description"], [[tool.name, tool.description]], empty="")
    say()
    schema = tool.schema()
    rows = [
        [
            argument,
            " or ".join(sorted(_types(described) - {"null"})),
            "needed" if argument in schema["required"] else _default(described),
            described.get("description"),
        ]
        for argument, described in schema["properties"].items()
    ]
    show_table(["argument", "type", "default", "meaning"], rows, empty="It takes no arguments.")


def _default(described: dict[str, Any]) -> str | None:
    import json

    value = described.get("default")
    return None if value is None else json.dumps(value)


def _described(tool: type[SessionTool]) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.schema()}


@app.command()
def call(
    ctx: typer.Context,
    name: Name,
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its arguments. A list is a,b,c.")
    ] = None,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="All its arguments as one JSON object.")] = None,
    as_session: Annotated[
        str | None, typer.Option("--as", metavar="KEY", help="Call as this session. [default: the operator]")
    ] = None,
    as_json: AlwaysJson = True,
) -> None:
    """Call a session tool and print its result as JSON. Exits with 1 if the result is an error or forbidden.

    Session tools are those of `tools list`, such as sessions_send. It cannot call exec and other tools of agents.
    """
    given = _read_object(args) if args is not None else {}
    if args is not None and pairs:
        raise typer.BadParameter("give the arguments as KEY=VALUE or with --args, not both", param_hint="--args")
    given |= dict(_read_pair(name, pair) for pair in pairs or ())
    options = options_of(ctx)
    caller = find_key(options, as_session)
    with connected(options) as client, patience(f"waiting for {name}"):
        request = client.ask("tools.invoke", tool=name, args=given, sessionKey=caller)
        result = client.wait(request, answers.ToolInvoked).result  # no time limit: a tool may itself wait for an agent
    show_json(result)
    if isinstance(result, dict) and result.get("status") in ("error", "forbidden"):
        raise typer.Exit(FAILED)


def _read_object(text: str) -> dict[str, Any]:
    import json

    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint="--args") from None
    if not isinstance(value, dict):
        raise typer.BadParameter('expected an object, such as {"limit": 5}', param_hint="--args")
    return value


def _read_pair(tool: str, pair: str) -> tuple[str, Any]:
    key, found, value = pair.partition("=")
    if not (found and key):
        raise typer.BadParameter(f"{pair!r} is not KEY=VALUE, such as limit=5", param_hint="KEY=VALUE")
    return key, read_value(value, _known_types(tool, key))


def _known_types(tool: str, key: str) -> set[str]:
    """Give the JSON types of an argument. A tool that is unknown here has none: the gateway decides."""
    from backchannel.tools.registry import SESSION_TOOLS

    schema = next((known.schema() for known in SESSION_TOOLS if known.name == tool), {})
    return _types(schema.get("properties", {}).get(key, {}))


def _types(described: dict[str, Any]) -> set[str]:
    choices = described.get("anyOf", [described])
    return {str(choice.get("type", "string" if "enum" in choice else "any")) for choice in choices}


def read_value(text: str, types: set[str]) -> Any:
    """Read an argument as people write it: a text needs no quotes, and a list no brackets."""
    import json

    if "string" in types:
        return text
    if "array" in types and not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return json.loads(text)
    except ValueError:
        return text
