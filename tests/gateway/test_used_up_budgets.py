"""A used-up budget at each door: WebSocket, HTTP, hooks, the OpenAI-style API, nodes, tools."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import AGENTS, MakeWorld
from .test_full_queues import HOOK_TOKEN, posted

pytestmark = pytest.mark.anyio
ECHO = "agent:echo:main"
CONFIG: dict[str, Any] = {
    "agents": {"list": [{**agent, "default": agent["id"] == "echo"} for agent in AGENTS]},
    "hooks": {"enabled": True, "token": HOOK_TOKEN, "allowSessionKeys": [ECHO]},
    "gateway": {"http": {"chatCompletions": True}},
    "budgets": [{"name": "tight", "scope": "gateway", "per": "day", "runs": 1, "then": "stop"}],
    "tz": "UTC",
}


async def test_a_used_up_budget_is_refused_at_every_door(make_world: MakeWorld) -> None:
    async with make_world(CONFIG) as world, world.client() as client:
        assert await world.gateway.ask(ECHO, "first") == "echo first"
        errors = [
            await client.refused("chat.send", {"sessionKey": ECHO, "message": "more"}),
            await client.refused("agent", {"sessionKey": ECHO, "message": "more"}),
        ]
        async with world.client(role="node", nodeId="kitchen") as node:
            errors.append(await node.refused("node.message", {"text": "more"}))
        hook = await posted(world, "/hooks/agent", HOOK_TOKEN, message="more", sessionKey=ECHO)
        said = [{"role": "user", "content": "more"}]
        openai = await posted(world, "/v1/chat/completions", model="echo", user=ECHO, messages=said)
        tools = [
            await client.ask("tools.invoke", tool=tool, args=args)
            for tool, args in [
                ("sessions_send", {"sessionKey": ECHO, "message": "more"}),
                ("sessions_spawn", {"task": "more"}),
            ]
        ]
        runs = await world.gateway.store.runs(limit=9)
    for error in errors:
        assert error["details"]["code"] == "budget_exceeded" and error["details"]["budget"] == "tight", error
        assert "the budget tight has spent 1 run of 1 run" in error["message"]
    assert (hook.status_code, openai.status_code) == (429, 429)
    assert "budget_exceeded" in hook.text
    assert (
        openai.json()["error"]["code"] == "budget_exceeded" and "the budget tight" in openai.json()["error"]["message"]
    )
    for tool in tools:
        assert tool["result"]["status"] == "error" and "the budget tight" in tool["result"]["error"]
    assert len(runs) == 1, "nothing else was taken"
