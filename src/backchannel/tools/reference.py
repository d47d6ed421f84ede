"""The reference page of the session tools, made from the registry: `python -m backchannel.tools.reference <file>`.

A test checks that the page is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from backchannel.core.cutting import TEXT_LIMIT
from backchannel.core.markdown import table
from backchannel.core.shapes import describe
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
curl -s "$(cat .state/address)/tools/invoke" -H "Authorization: Bearer $(cat .state/token)" \\
  -d '{{"tool": "sessions_list", "args": {{"limit": 5}}, "sessionKey": "main"}}'
```

`.state` is the state folder: the gateway keeps its address and the operator's token there.

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

"""

_MESSAGE = """## Messages

`{id, role, content, timestamp, runId?, provenance?, label?, sender?, chat?, model?, usage?, stopReason?}`; `role` is
`user`, `assistant`, `toolResult` or `system`. `content` is a list of blocks: `{type: "text", text}`,
`{type: "thinking", thinking}`, `{type: "toolCall", id, name, arguments}`, `{type: "image", mimeType, url?}`. A
`toolResult` also has `toolCallId`, `toolName` and `isError`. `provenance` is `{kind, sourceSessionKey?, sourceChannel?,
sourceTool?, exchangeId?}`; its kind is `external_user`, `inter_session` or `internal_system`. What a person wrote on an
outside channel has a `sender` `{id, name?}` and a `chat` `{type: "direct" | "group" | "channel", id, name?}`.
"""


def render_page() -> str:
    """Render the page."""
    fields = [(field.name, field.kind, field.meaning) for field in describe(Row)]
    rows = _ROW + "\n".join(table(["field", "type", ""], fields))
    sections = [_INTRO, *(_section(tool) for tool in SESSION_TOOLS), rows, _MESSAGE]
    return "\n".join(section.rstrip() + "\n" for section in sections)


def _section(tool: type[SessionTool]) -> str:
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


if __name__ == "__main__":
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference/tools.md")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render_page(), encoding="utf-8")
