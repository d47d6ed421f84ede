"""Full queues, as callers, agents and chats see them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.contracts import ModelRequest
from backchannel.errors import QueueFull
from backchannel.gateway.app import Gateway
from tests.channels.desk import desk
from tests.support.far_end import FarEnd
from tests.support.gateways import MAIN, ended, session_of
from tests.support.resting import at_rest, until
from tests.support.talks import A, B, send, talking
from tests.support.talks import config as talk_config

pytestmark = pytest.mark.anyio


class Held:
    """A model whose first reply waits for the test."""

    def __init__(self) -> None:
        self.gate, self.reached = asyncio.Event(), asyncio.Event()

    def reply(self, request: ModelRequest) -> Reply:
        return Reply(text=f"re: {request.messages[-1].text}", gate=self.gate, reached=self.reached, held_at=0)


async def test_a_chat_is_told_once_that_its_queue_is_full(tmp_path: Path) -> None:
    held = Held()
    model = ScriptedModel(replies=held.reply)
    async with FarEnd() as far_end:
        channels = {"desk": far_end.settings()}
        async with desk(tmp_path, channels, model=model, session={"maxQueued": 2}) as world:
            with structlog.testing.capture_logs() as logs:
                said = [await world.say(messageId=f"m{n}", text=f"message {n}") for n in range(6)]
            (notice,) = await far_end.took(1)
            again = await world.say(messageId="m5", text="message 5")
            assert (await session_of(world.gateway)).queued == 2
            held.gate.set()
            await at_rest(world.gateway)
            later = await world.say(messageId="m6", text="message 6")
            await ended(world.gateway, later["runId"])
            await at_rest(world.gateway)
    assert [(entry["session_key"], entry["waiting"]) for entry in logs if entry["event"] == "a queue is full"] == [
        (MAIN, 2)
    ]
    assert [answer["verdict"] for answer in said] == ["answer"] * 3 + ["ignore"] * 3
    assert "session.maxQueued is 2" in said[3]["reason"]
    assert again["verdict"] == "ignore" and again["repeat"]
    assert notice.text.startswith("2 messages wait here already, so this one was not taken")
    assert far_end.texts[1:] == [f"re: message {n}" for n in (0, 1, 2, 6)]


async def test_a_chat_is_told_again_after_the_queue_was_done(tmp_path: Path) -> None:
    async with FarEnd() as far_end:
        channels = {"desk": far_end.settings()}
        for fill in range(2):
            held = Held()
            model = ScriptedModel(replies=held.reply)
            async with desk(tmp_path, channels, model=model, session={"maxQueued": 1}) as world:
                for n in range(4):
                    await world.say(messageId=f"{fill}-{n}", text=f"{fill}-{n}")
                held.gate.set()
                await at_rest(world.gateway)
    assert len([text for text in far_end.texts if text.startswith("A message waits here already")]) == 2


async def test_an_agent_is_told_that_the_other_sessions_queue_is_full(tmp_path: Path) -> None:
    held, settings = Held(), talk_config("a", "b", maxQueued=1)
    b: dict[str, Any] = {"person": held.reply, "request": "fine"}
    async with talking(tmp_path, settings, a={"person": send()}, b=b) as talk:
        await talk.gateway.submit(B, "first")
        await held.reached.wait()
        await talk.gateway.submit(B, "second")
        await talk.gateway.ask(A, "ask b")
        (result,) = await talk.results(A)
        with pytest.raises(QueueFull):
            await talk.gateway.submit(B, "third")
        held.gate.set()
        await at_rest(talk.gateway)
    assert result["status"] == "error" and "session.maxQueued is 1" in result["error"]


async def test_steps_of_an_accepted_exchange_find_room_in_a_full_queue(tmp_path: Path) -> None:
    asked, busy, settings = Held(), Held(), talk_config("a", "b", maxQueued=1)
    a: dict[str, Any] = {"person": [send(timeoutSeconds=0), busy.reply, "done"], "turn": "REPLY_SKIP"}
    async with talking(tmp_path, settings, a=a, b={"request": asked.reply}) as talk:
        await talk.gateway.ask(A, "ask b")
        await asked.reached.wait()
        await talk.gateway.submit(A, "a long task")
        await busy.reached.wait()
        await talk.gateway.submit(A, "waits")
        with pytest.raises(QueueFull):
            await talk.gateway.submit(A, "too many")
        asked.gate.set()
        await until(talk.gateway, lambda: _queued(talk.gateway, 2))
        busy.gate.set()
        await at_rest(talk.gateway)
        runs = talk.rows("SELECT kind, state FROM runs WHERE session_key = ? ORDER BY position", A)
    assert runs == [("message", "ok")] * 3 + [("turn", "ok")]


async def _queued(gateway: Gateway, count: int) -> bool:
    return (await session_of(gateway, A)).queued == count
