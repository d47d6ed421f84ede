"""Refusals of used-up budgets, as chats and agents see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from tests.channels.desk import desk
from tests.support.far_end import FarEnd
from tests.support.gateways import ended
from tests.support.resting import at_rest
from tests.support.talks import A, send, talking
from tests.support.talks import config as talk_config

pytestmark = pytest.mark.anyio


async def test_a_chat_is_told_once_that_a_budget_is_used_up(tmp_path: Path) -> None:
    person = {"name": "person", "scope": "sender", "per": "total", "runs": 1, "then": "stop"}
    model = ScriptedModel(replies=lambda request: "done")
    async with FarEnd() as far_end:
        channels = {"desk": far_end.settings()}
        async with desk(tmp_path, channels, model=model, budgets=[person]) as world:
            first = await world.say(messageId="m0", text="message 0")
            await ended(world.gateway, first["runId"])
            said = [await world.say(messageId=f"m{n}", text=f"message {n}") for n in (1, 2)]
            await at_rest(world.gateway)
    assert [answer["verdict"] for answer in said] == ["ignore", "ignore"]
    assert "the budget person" in said[0]["reason"]
    assert far_end.texts == ["done", "The budget person is used up, so this message was not taken."]


async def test_an_agent_is_told_that_the_other_agents_budget_is_used_up(tmp_path: Path) -> None:
    b = {"name": "b", "scope": "agent", "match": {"agentId": "b"}, "per": "total", "runs": 1, "then": "stop"}
    settings = {**talk_config("a", "b"), "budgets": [b]}
    async with talking(tmp_path, settings, a={"person": send()}, b={"person": "hi", "request": "fine"}) as talk:
        await talk.gateway.ask("agent:b:main", "first")
        await talk.gateway.ask(A, "ask b")
        (result,) = await talk.results(A)
        await at_rest(talk.gateway)
    assert result["status"] == "error" and "the budget b of b has spent 1 run of 1 run in all" in result["error"]
