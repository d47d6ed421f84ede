"""Calls that came by MCP are kept for a day, for the clients that come back for them."""

from __future__ import annotations

import msgspec
import pytest

from backchannel.core.records import McpCall
from backchannel.storage.store import Store
from backchannel.storage.units.idempotency import KEPT_MS

pytestmark = pytest.mark.anyio

CALL = McpCall(
    id="one", token_id="operator", session_key="agent:main:main", version="2025-11-25", message="{}", created_at=1000
)


async def test_a_call_is_found_as_it_was_kept(store: Store) -> None:
    bare = msgspec.structs.replace(CALL, id="two", session_key=None)
    await store.keep_mcp_call(CALL)
    await store.keep_mcp_call(bare)

    assert await store.mcp_call("one") == CALL
    assert await store.mcp_call("two") == bare
    assert await store.mcp_call("three") is None


async def test_a_call_is_forgotten_when_one_comes_that_is_more_than_a_day_younger(store: Store) -> None:
    await store.keep_mcp_call(CALL)
    await store.keep_mcp_call(msgspec.structs.replace(CALL, id="a day", created_at=CALL.created_at + KEPT_MS))
    assert await store.mcp_call("one") == CALL
    await store.keep_mcp_call(msgspec.structs.replace(CALL, id="more", created_at=CALL.created_at + KEPT_MS + 1))
    assert await store.mcp_call("one") is None
