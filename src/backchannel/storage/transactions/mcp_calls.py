"""Calls that came by MCP and that their clients may come back for, each as it was asked."""

from __future__ import annotations

import msgspec

from backchannel.storage.tx import Tx

KEPT_MS = 24 * 3600 * 1000
"""How long a client may come back; no call waits longer than an hour."""
_CLEARED_AT_ONCE = 100


class McpCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request as its client sent it, and who that was."""

    id: str
    token_id: str
    session_key: str | None
    version: str
    message: str
    """The JSON-RPC request, with the idempotency key that makes it the same call when it is carried out again."""
    created_at: int


_FIELDS = "id, token_id, session_key, version, message, created_at"


def keep(tx: Tx, call: McpCall) -> None:
    """Keep a call, and forget some of those that nobody comes back for any more."""
    tx.run(f"INSERT INTO mcp_calls ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)", *msgspec.structs.astuple(call))
    tx.run(
        "DELETE FROM mcp_calls WHERE id IN (SELECT id FROM mcp_calls WHERE created_at < ? LIMIT ?)",
        call.created_at - KEPT_MS,
        _CLEARED_AT_ONCE,
    )


def find(tx: Tx, call_id: str) -> McpCall | None:
    row = tx.one(f"SELECT {_FIELDS} FROM mcp_calls WHERE id = ?", call_id)
    return None if row is None else McpCall(**dict(zip(McpCall.__struct_fields__, row, strict=True)))
