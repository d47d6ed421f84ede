"""What a chat is told of an agent's tools, where its session has `verboseLevel: on`."""

from __future__ import annotations

import msgspec

from backchannel.core.redaction import redact_value_opening
from backchannel.core.runs import ToolCall

ON = "on"
_NAME_LIMIT = 64
_ARGUMENTS_LIMIT = 160


def tool_line(call: ToolCall) -> str:
    """Say in one line which tool was called, and with what; credentials are hidden before anything is cut."""
    name = _cut(" ".join(call.name.split()), _NAME_LIMIT)
    arguments = redact_value_opening(call.block.arguments, _ARGUMENTS_LIMIT)
    told = f": {_cut(msgspec.json.encode(arguments).decode(), _ARGUMENTS_LIMIT)}" if arguments else ""
    return f"🔧 {name}{told}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
