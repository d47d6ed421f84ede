"""Repair of MCP servers' answers before the SDK reads them.

The SDK refuses an answer as a whole for one error in it. It also takes long over an answer of a hundred thousand parts.
So only the fields that a gateway uses are kept of a tool list, and an error in one tool costs no other tool. Only so
many blocks of a result are kept, and a block of an unknown kind is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import msgspec
from mcp.client._transport import ReadStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from backchannel.core.text import clean_name

MOST_BLOCKS = 500
MOST_LISTED = 600
"""How many tools of one page are looked at; how many are used is decided by `listing.py`."""
LARGEST_SCHEMA = 64 * 1024
DEEPEST_SCHEMA = 64
NO_SCHEMA: dict[str, Any] = {"type": "object", "$comment": "the server has no schema for it that can be shown"}
"""Takes any object: the server checks its arguments itself."""

_NEEDED = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
}
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


def mended(result: dict[str, Any]) -> dict[str, Any]:
    """Make an answer fit to be read; what it has beside tools and content stays as it is."""
    if isinstance(tools := result.get("tools"), list):
        return {**result, "tools": list(_tools(tools[:MOST_LISTED]))}
    structured = result.get("structuredContent")
    content = result.get("content", [] if isinstance(structured, dict) else None)
    if not isinstance(content, list):
        return result
    blocks = [_block(block) for block in content[:MOST_BLOCKS]]
    if (more := len(content) - MOST_BLOCKS) > 0:
        blocks.append(_text(f"({more:,} more blocks are left out)"))
    if isinstance(structured, dict) and not any(block["type"] == "text" for block in blocks):
        blocks.insert(0, _text(_as_json(structured)))
    return {name: value for name, value in result.items() if name != "structuredContent"} | {"content": blocks}


def _as_json(value: Any) -> str:
    """Write what a server means for programs as the text that it stands for; the SDK would take it apart again."""
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.EncodeError, UnicodeEncodeError, OverflowError, RecursionError):
        return "(structured content that cannot be written as JSON)"


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _tools(given: list[Any]) -> Iterator[dict[str, Any]]:
    for tool in given:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            continue
        hints = tool.get("annotations")
        kept: dict[str, Any] = {"name": tool["name"], "inputSchema": _schema(tool.get("inputSchema"))}
        kept |= {name: tool[name] for name in ("title", "description") if isinstance(tool.get(name), str)}
        if isinstance(hints, dict):
            kept["annotations"] = {name: hints[name] for name in _HINTS if isinstance(hints.get(name), bool)}
        yield kept


def _schema(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("type") != "object":
        return NO_SCHEMA
    try:
        size = len(msgspec.json.encode(value))
    except (msgspec.EncodeError, UnicodeEncodeError, OverflowError, RecursionError):
        return NO_SCHEMA
    return value if size <= LARGEST_SCHEMA and not _is_deeper(value, DEEPEST_SCHEMA) else NO_SCHEMA


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)


def _block(block: Any) -> dict[str, Any]:
    if isinstance(block, dict):
        kind = block.get("type")
        needed = _NEEDED.get(kind) if isinstance(kind, str) else None
        if needed is not None and all(isinstance(block.get(name), str) for name in needed):
            kept = {name: block[name] for name in ("type", *needed)}
            if isinstance(block.get("description"), str):
                kept["description"] = block["description"]
            return kept
        if kind == "resource" and isinstance(resource := block.get("resource"), dict):
            names = ("uri", "mimeType", "text", "blob")
            kept = {name: resource[name] for name in names if isinstance(resource.get(name), str)}
            if "uri" in kept and ("text" in kept or "blob" in kept):
                return {"type": "resource", "resource": kept}
        if isinstance(kind, str):
            return _text(f"(a block that cannot be read, of type {clean_name(kind)})")
    return _text("(a block that cannot be read)")


class MendingStream:
    """What a transport receives, with the answers in it made fit to be read."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception]) -> None:
        self._inner = inner

    async def receive(self) -> SessionMessage | Exception:
        return _read(await self._inner.receive())

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return _read(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


def _read(item: SessionMessage | Exception) -> SessionMessage | Exception:
    if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
        item.message.result = mended(item.message.result)
    return item
