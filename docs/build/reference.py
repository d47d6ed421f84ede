"""The reference pages, rendered from the code: `make reference` writes them, and the tests check that they are current.

`methods.md` and `protocol.json` are made from the method table, `tools.md` from the tools, and the marked parts of
`configuration.md` and `cli.md` from the schema of the settings and from the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from docs.build.answers import table
from docs.build.methods import render_methods, render_protocol
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from backchannel.cli.main import app
from backchannel.cli.options import EXIT_CODES
from backchannel.config.schema import ConfigFile
from backchannel.config.validation import SettingKind, kind_of
from backchannel.core.excerpts import TEXT_LIMIT
from backchannel.core.settings import all_fields
from backchannel.tools.base import SessionTool
from backchannel.tools.registry import SESSION_TOOLS
from backchannel.wire.rows import Row
from backchannel.wire.shapes import describe

REFERENCE = Path(__file__).parents[1] / "reference"

_LEFT_OUT = ("help", "install_completion", "show_completion")

_TOOLS_INTRO = f"""# Session tools

Made by `make reference`.

The tools with which an agent sees and reaches sessions. The same call gives the same result through every door:

- An **agent** calls them in its runs, as the session of the run.
- **WebSocket**: `tools.invoke {{tool, args, sessionKey?, idempotencyKey?}}` answers `{{ok, result}}`.
- **HTTP**: `POST /tools/invoke` with the same fields. The status is 200 for every outcome below, 400 for wrong
  arguments, 404 for an unknown tool, 401 or 413. It is 403 if the token may not call as this session, or the session
  does not have the tool.
- **Python**: `await gateway.tools("main").sessions_list(limit=5)`, or `gateway.tools()` for the operator.

```sh
curl -s "$(cat .state/address)/tools/invoke" -H "Authorization: Bearer $(cat .state/token)" \\
  -d '{{"tool": "sessions_list", "args": {{"limit": 5}}, "sessionKey": "main"}}'
```

`.state` is the state folder: the gateway keeps its address and the operator's token there.

A **caller** is a session, or the operator. With an operator's token and no `sessionKey`, the operator is the caller,
and sees everything. With a `sessionKey`, that session is the caller. It must exist, or be the main session of a
configured agent. An agent's token is bound to one session. `tools.sessions.visibility`, `tools.agentToAgent` and the
sandbox decide what a session sees. `policy.explain` shows their decision.

- Arguments are checked. An unknown argument, a wrong type or a value out of range is an error that names the argument.
- A session is named by `main` (the calling agent's), `current` (the caller), a key as a list shows it, a full key, or a
  session id. A session as caller gets the shortest key that it can pass back. An operator gets full keys.
- A field whose value is not known is absent, never null.
- Messages are redacted: text that looks like a credential becomes `[redacted]`. They are also cut: texts over
  {TEXT_LIMIT:,} characters end with a marker that says how to read on, and image data is left out. The stored messages
  do not change.
"""

_ROW = """## Rows

A session, as `sessions_list` and `session_status` show it.

"""

_MESSAGE = """## Messages

`{id, role, content, timestamp, runId?, provenance?, label?, sender?, chat?, model?, usage?, stopReason?}`; `role` is
`user`, `assistant`, `toolResult` or `system`. `content` is a list of blocks: `{type: "text", text}`,
`{type: "thinking", thinking}`, `{type: "toolCall", id, name, arguments}`, `{type: "image", mimeType, url?}`. A
`toolResult` also has `toolCallId`, `toolName` and `isError`. `provenance` is `{kind, sourceSessionKey?, sourceChannel?,
sourceTool?, exchangeId?, step?, turn?, maxTurns?}`; its kind is `external_user`, `inter_session` or `internal_system`.
`step` is the message's part in an exchange or a sub-agent's flow. In an exchange it is `ask`, `turn` (with `turn` and
`maxTurns`), `announce`, `late_reply` or `failure`. A sub-agent's flow has `task`,
`announce`, `post`, `wake` and `notice`. A person's message on an outside channel has a `sender` `{id, name?}` and a
`chat` `{type: "direct" | "group" | "channel", id, name?}`.
"""


def render_all() -> dict[Path, str]:
    """Render every page and file of the reference."""
    settings, commands = REFERENCE / "configuration.md", REFERENCE / "cli.md"
    return {
        REFERENCE / "methods.md": render_methods(),
        REFERENCE / "protocol.json": render_protocol(),
        REFERENCE / "tools.md": render_tools(),
        settings: insert(settings.read_text(encoding="utf-8"), "settings", render_settings()),
        commands: insert(commands.read_text(encoding="utf-8"), "commands", render_commands()),
    }


def insert(page: str, what: str, made: str) -> str:
    """Replace what stands between the two marks of a page.

    Raises:
        ValueError: the page lacks a mark.
    """
    begin, end = f"<!-- {what}: made by `make reference` -->", f"<!-- end of {what} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page needs the marks {begin!r} and {end!r}")
    return f"{before}{begin}\n\n{made}\n{end}{after}"


def render_tools() -> str:
    """Render the page."""
    rows = _ROW + "\n".join(_field_rows(Row))
    sections = [_TOOLS_INTRO, *(_tool_section(tool) for tool in SESSION_TOOLS), rows, _MESSAGE]
    return "\n".join(section.rstrip() + "\n" for section in sections)


def _field_rows(struct: type[Struct]) -> list[str]:
    return table(["field", "type", ""], [(field.name, field.kind, field.meaning) for field in describe(struct)])


def _tool_section(tool: type[SessionTool]) -> str:
    lines = [f"## `{tool.name}`", "", f"{tool.description} Scope: `operator.{tool.scope}`.", ""]
    if rows := list(describe(tool.params)):
        lines += [*table(["parameter", "type", "default", ""], rows), ""]
    lines += table(["outcome", "result"], tool.outcomes)
    if tool.examples:
        lines += ["", "Examples:", ""]
    lines += [f"- {what}: `{_json(arguments)}`" for what, arguments in tool.examples]
    return "\n".join(lines)


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def render_settings(schema: type[Struct] = ConfigFile) -> str:
    """Render a section with a table for each top-level group of settings."""
    return "\n".join(_settings_section(field) for field in fields(schema))


def _settings_section(field: FieldInfo) -> str:
    kind = kind_of(field.type)
    rows = list(_setting_rows(field, ""))
    if kind.struct:
        rows = rows[1:]  # the group itself is the heading
    settings = table(["setting", "value", "default", ""], rows)
    return "\n".join([f"### `{field.encode_name}`", "", kind.description, "", *settings, ""])


def _setting_rows(field: FieldInfo, prefix: str) -> Iterator[tuple[str, ...]]:
    path, kind = f"{prefix}{field.encode_name}", kind_of(field.type)
    yield f"`{path}`", kind.in_words, _setting_default(field), kind.description
    yield from _inner_rows(path, kind)


def _inner_rows(path: str, kind: SettingKind) -> Iterator[tuple[str, ...]]:
    if kind.item is not None:
        path, kind = f"{path}[]", kind_of(kind.item)
    elif kind.member is not None:
        path, kind = f"{path}.<name>", kind_of(kind.member)
    own = (inner for struct in kind.structs for inner in all_fields(struct, kind.structs))
    rows = (row for inner in own for row in _setting_rows(inner, f"{path}."))
    yield from dict.fromkeys(rows)  # what several groups share is listed once


def _setting_default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is NODEFAULT and field.default_factory is NODEFAULT:
        return "required"
    if value is NODEFAULT:
        return "`{}`"
    if value is None or isinstance(value, Struct):
        return "–"
    if isinstance(value, tuple):
        return "`[]`"
    return f"`{json.dumps(value)}`"


def render_commands() -> str:
    """Render a section for each command, and the exit codes."""
    root = get_command(app)
    sections = [*_command_sections(root, []), _exit_codes()]
    return "\n".join(sections)


def _command_sections(command: object, path: list[str]) -> Iterator[str]:
    if isinstance(command, TyperCommand | TyperGroup) and (not path or command.callback is not None):
        yield _command_section(command, path)
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from _command_sections(inner, [*path, name])


def _command_section(command: TyperCommand | TyperGroup, path: list[str]) -> str:
    name = " ".join(["backchannel", *path])
    title = f"### `{name}`" if path else "### Options of all commands"
    arguments = [param for param in command.params if isinstance(param, TyperArgument)]
    options = [param for param in command.params if isinstance(param, TyperOption) and _is_shown(param)]
    usage = " ".join([name, *(_argument(argument) for argument in arguments), *(["[OPTIONS]"] if options else [])])
    if isinstance(command, TyperGroup):
        usage += " COMMAND" if command.no_args_is_help else " [COMMAND]"
    lines = [title, "", (command.help or "").strip(), "", f"    {usage}", ""]
    rows = [*(_argument_row(argument) for argument in arguments), *(_option_row(option) for option in options)]
    if rows:
        lines += [*table(["", "default", ""], rows), ""]
    return "\n".join(lines)


def _is_shown(option: TyperOption) -> bool:
    return not option.hidden and option.name not in _LEFT_OUT


def _argument(argument: TyperArgument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _argument_row(argument: TyperArgument) -> tuple[str, ...]:
    return _param_row(f"`{argument.metavar or (argument.name or '').upper()}`", argument.default, argument.help)


def _option_row(option: TyperOption) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))
    return _param_row(names, None if option.is_flag else option.default, option.help)


def _param_row(name: str, default: object, text: str | None) -> tuple[str, ...]:
    return name, f"`{default}`" if isinstance(default, str | int | float) else "–", text or ""


def _exit_codes() -> str:
    rows = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    return "\n".join(["### Exit codes", "", *table(["code", "meaning"], rows), ""])


if __name__ == "__main__":
    for path, text in render_all().items():
        path.write_text(text, encoding="utf-8")
