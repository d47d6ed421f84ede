"""A full queue at each door: WebSocket, HTTP, hooks, the OpenAI-style API, nodes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from .client import OPERATOR
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
HELD = "agent:held:main"
HOOK_TOKEN = "the-hook-token-of-the-tests"
CONFIG: dict[str, Any] = {
    "session": {"maxQueued": 1},
    "hooks": {"enabled": True, "token": HOOK_TOKEN, "allowSessionKeys": [HELD]},
    "gateway": {"http": {"chatCompletions": True}},
}


async def posted(world: World, path: str, token: str = OPERATOR, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=world.at.url, trust_env=False, timeout=20) as http:
        return await http.post(path, json=body, headers={"Authorization": f"Bearer {token}"})


async def test_a_full_queue_is_unavailable_at_every_door(make_world: MakeWorld) -> None:
    async with make_world(CONFIG) as world, world.client() as client:
        for text in ("runs", "waits"):
            await client.ask("chat.send", sessionKey=HELD, message=text)
        errors = [
            await client.refused("chat.send", {"sessionKey": HELD, "message": "more"}),
            await client.refused("agent", {"sessionKey": HELD, "message": "more"}),
        ]
        hook = await posted(world, "/hooks/agent", HOOK_TOKEN, message="more", sessionKey=HELD)
        openai = await posted(
            world, "/v1/chat/completions", model="held", user=HELD, messages=[{"role": "user", "content": "more"}]
        )
        tool = await client.ask("tools.invoke", tool="sessions_send", args={"sessionKey": HELD, "message": "more"})
        (row,) = [row for row in (await client.ask("sessions.list"))["sessions"] if row["key"] == HELD]
        world.release.set()
    for error in errors:
        assert (error["code"], error["details"]["code"], error["retryable"]) == ("UNAVAILABLE", "queue_full", True)
        assert error["retryAfterMs"] == 5000
    assert hook.status_code == openai.status_code == 503
    assert "queue_full" in hook.text and "queue_full" in openai.text
    assert tool["result"]["status"] == "error" and "session.maxQueued is 1" in tool["result"]["error"]
    assert len(row["activeRunIds"]) == 2
