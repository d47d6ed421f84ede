"""Idempotency keys: a repeated request gets the first outcome."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import asdict

from backchannel.core.records import McpCall
from backchannel.errors import IdempotencyConflict
from backchannel.storage.tables import IDEMPOTENCY, MCP_CALLS
from backchannel.storage.tx import Tx


def find_run(tx: Tx, key: str, digest: str | None) -> str | None:
    """Find the run that this key started.

    Raises:
        IdempotencyConflict: the key was used for another request, about which nothing is disclosed.
    """
    row = tx.one("SELECT digest, run_id FROM idempotency WHERE key = ?", key)
    if row is None:
        if tx.one("SELECT 1 FROM runs WHERE id = ?", key) is not None:
            raise _conflict(key)
        return None
    if row[0] != (digest or "") or row[1] is None:
        raise _conflict(key)
    return str(row[1])


def is_used(tx: Tx, key: str) -> bool:
    """Whether something was accepted under this key. Nothing else ever will be."""
    return tx.one("SELECT 1 FROM idempotency WHERE key = ?", key) is not None


def remember_run(tx: Tx, key: str, digest: str | None) -> None:
    tx.insert(IDEMPOTENCY, key=key, digest=digest or "", run_id=key, created_at=tx.now)


def once(tx: Tx, key: str | None, digest: str | None, do: Callable[[], str]) -> str:
    """Do something once for each key; returns the result of the first time. Runs have `find_run`.

    Raises:
        IdempotencyConflict: the key was used for another request, about which nothing is disclosed.
    """
    if key is None:
        return do()
    row = tx.one("SELECT digest, result FROM idempotency WHERE key = ?", key)
    if row is not None:
        if row[0] != (digest or "") or row[1] is None:
            raise _conflict(key)
        return str(row[1])
    result = do()
    tx.insert(IDEMPOTENCY, key=key, digest=digest or "", result=result, created_at=tx.now)
    return result


def _conflict(key: str) -> IdempotencyConflict:
    return IdempotencyConflict(
        f"the idempotency key {key!r} was used for another request: use a new key for a new message, "
        "and repeat a request exactly to ask for its state",
        idempotencyKey=key,
    )


# Calls by MCP that their clients may resume.

KEPT_MS = 24 * 3600 * 1000
"""How long a client may come back. No call waits longer than an hour."""
_CLEARED_AT_ONCE = 100


def keep_mcp_call(tx: Tx, call: McpCall) -> None:
    """Store a call, and delete some that are too old to be resumed."""
    tx.insert(MCP_CALLS, **asdict(call))
    tx.run(
        "DELETE FROM mcp_calls WHERE id IN (SELECT id FROM mcp_calls WHERE created_at < ? LIMIT ?)",
        call.created_at - KEPT_MS,
        _CLEARED_AT_ONCE,
    )


def find_mcp_call(tx: Tx, call_id: str) -> McpCall | None:
    row = tx.one(f"{MCP_CALLS.select} WHERE id = ?", call_id)
    return None if row is None else McpCall(**dict(zip(MCP_CALLS.columns, row, strict=True)))
