"""The reference page of the session tools, made from the registry: `python -m backchannel.tools.reference <file>`.

A test checks that the page is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from backchannel.core.cutting import TEXT_LIMIT
from backchannel.tools.base import SessionTool
from backchannel.tools.registry import SESSION_TOOLS
from backchannel.tools.rows import Row

_INTRO = f"""# Session tools

Made by `python -m backchannel.tools.reference docs/reference/tools.md`.

The tools with which an agent sees and reaches sessions. The same call gives the same result through every door:

- an **agent** calls them in its runs, as the session that the run is in;
- **WebSocket**: `tools.invoke {{tool, args, sessionKey?, idempotencyKey?}}` answers `{{ok, result}}`;
- **HTTP**: `POST /tools/invoke` with the same fields; 200 for every outcome below, 400 for arguments that do not fit,
  401, 403 when the token may not call as this session or the session does not have the tool, 404 for an unknown
  tool, 413;
- **Python**: `await gateway.tools("main").sessions_list(limit=5)`, or `gateway.tools()` for the operator.

```sh
curl -s http://127.0.0.1:18790/tools/invoke -H "Authorization: Bearer $BACKCHANNEL_TOKEN" \\
  -d '{{"tool": "sessions_list", "args": {{"limit": 5}}, "sessionKey": "main"}}'
```

A **caller** is a session, or the operator. An operator's token without `sessionKey` makes the operator the caller, who
sees everything; with it, the call is made as that session, which must exist or be the main session of a configured
agent. An agent's token is bound to one session. `tools.sessions.visibility`, `tools.agentToAgent` and the sandbox
decide what a session sees; `policy.explain` tells what they say.

- Arguments are strict: an unknown or wrongly typed one, or one out of its range, is an error that names it.
- A session is named by `main` (the calling agent's), `current` (the caller), a key as a list shows it, a full key, or a
  session id. A caller that is a session gets the shortest key it can pass back, an operator gets full keys.
- A field whose value is not known is absent, never null.
- Messages are redacted (what looks like a credential becomes `[redacted]`) and cut (texts over {TEXT_LIMIT:,}
  characters end with a marker that says how to read on; image data is left out). What is stored is not touched.
"""

_ROW = """## Rows

A session, as `sessions_list` and `session_status` show it.

| field | type | |
|---|---|---|
"""

_MESSAGE = """## Messages

`{id, role, content, timestamp, runId?, provenance?, label?, model?, usage?, stopReason?}`; `role` is `user`,
`assistant`, `toolResult` or `system`. `content` is a list of blocks: `{type: "text", text}`,
`{type: "thinking", thinking}`, `{type: "toolCall", id, name, arguments}`, `{type: "image", mimeType, url?}`. A
`toolResult` also has `toolCallId`, `toolName` and `isError`. `provenance` is `{kind, sourceSessionKey?, sourceChannel?,
sourceTool?, exchangeId?}`; its kind is `external_user`, `inter_session` or `internal_system`.
"""


def render_page() -> str:
    """Render the page."""
    rows = _ROW + "\n".join(f"| {name} | {kind} | {told} |" for name, kind, _, told in _fields(Row))
    sections = [_INTRO, *(_section(tool) for tool in SESSION_TOOLS), rows, _MESSAGE]
    return "\n".join(section.rstrip() + "\n" for section in sections)


def _section(tool: type[SessionTool]) -> str:
    lines = [f"## `{tool.name}`", "", f"{tool.description} Scope: `operator.{tool.scope}`.", ""]
    if rows := [f"| {name} | {kind} | {default} | {told} |" for name, kind, default, told in _fields(tool.params)]:
        lines += ["| parameter | type | default | |", "|---|---|---|---|", *rows, ""]
    lines += ["| outcome | result |", "|---|---|"]
    lines += [f"| {when} | {_in_a_cell(what)} |" for when, what in tool.outcomes]
    if tool.examples:
        lines += ["", "Examples:", ""]
    lines += [f"- {what}: `{_json(arguments)}`" for what, arguments in tool.examples]
    return "\n".join(lines)


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str, str, str]]:
    """Tell name, type, default and meaning of every field."""
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        kind, told = field.type, ""
        if isinstance(kind, inspect.Metadata):
            told = str((kind.extra_json_schema or {}).get("description", ""))
            kind = kind.type
        yield f"`{field.encode_name}`", _in_a_cell(in_words(kind)), default_in_words(field), _in_a_cell(told)


def default_in_words(field: inspect.Field) -> str:
    """Tell what a parameter is when it is left out."""
    if field.required:
        return "required"
    default = field.default if field.default is not msgspec.NODEFAULT else None
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default is None or default is msgspec.UNSET:
        return "–"
    return f"`{msgspec.json.encode(default).decode()}`"


def in_words(kind: inspect.Type) -> str:
    """Tell a type and its limits to people."""
    match kind:
        case inspect.Metadata():
            return in_words(kind.type)
        case inspect.UnionType():
            return " | ".join(in_words(each) for each in kind.types if not isinstance(each, inspect.NoneType))
        case inspect.StrType():
            return "text" + _length(kind.min_length, kind.max_length, " characters")
        case inspect.IntType():
            return "whole number" + _range(kind)
        case inspect.FloatType():
            return "number" + _range(kind)
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return " | ".join(f"`{value}`" for value in kind.values)
        case inspect.EnumType():
            return " | ".join(f"`{member.value}`" for member in kind.cls)
        case inspect.ListType() | inspect.VarTupleType():
            return f"list of {in_words(kind.item_type)}" + _length(kind.min_length, kind.max_length, " of them")
        case inspect.RawType():
            return "message"
        case inspect.StructType():
            return kind.cls.__name__.lower()
    return "any"


def _length(low: int | None, high: int | None, of_what: str) -> str:
    if high is None:
        return f", at least {low}" if low else ""
    return f", {low} to {high}{of_what}" if low else f", at most {high}{of_what}"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    low = f"over {kind.gt:g}" if kind.gt is not None else "" if kind.ge is None else f"{kind.ge:g}"
    if kind.le is None:
        return f", {low} or more" if low else ""
    return f", {low or 'at most'} to {kind.le:.0f}" if low else f", at most {kind.le:.0f}"


if __name__ == "__main__":
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference/tools.md")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render_page(), encoding="utf-8")
