"""Summaries through the doors: asked for, taken back, and shown wherever a session is shown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backchannel.agents.scripted import Scripted
from backchannel.core.contracts import ModelFailed
from tests.support.remembering import Remembering

from .client import Client
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio

KEY = "agent:writer:main"
FILLER = "we talk about the weather for a while, and nothing of it matters. " * 12
SETTINGS: dict[str, Any] = {
    "agents": {"list": [{"id": "writer", "model": "scripted/test"}, {"id": "echo"}]},
    "tools": {"allow": ["session_status"]},
}


async def talk(client: Client, turns: int = 6) -> None:
    await client.run(message="fact harbour is Varna", sessionKey=KEY)
    for n in range(turns):
        await client.run(message=f"{n}: {FILLER}", sessionKey=KEY)


async def entries(client: Client) -> list[dict[str, Any]]:
    history = await client.ask("chat.history", sessionKey=KEY)
    return [message for message in history["messages"] if "compaction" in message]


async def until_compacted(world: World, client: Client, count: int = 1) -> None:
    compaction = world.gateway.runtime.compaction
    while waiting := [*compaction._tasks.values(), *compaction._asked]:
        await asyncio.gather(*waiting, return_exceptions=True)
    assert len(await entries(client)) == count


async def test_a_session_is_compacted_on_request_and_the_summary_is_seen_everywhere(make_world: MakeWorld) -> None:
    scene = Remembering()
    async with make_world(SETTINGS) as world, world.client() as client:
        world.gateway.add_model(scene.model)
        await talk(client)
        told = await client.ask("sessions.compact", key=KEY, instructions="the name of the harbour")
        assert (told["ok"], told["key"], told["compacted"]) == (True, KEY, True)
        assert told["result"]["messages"] >= 8 and told["result"]["model"] == "scripted/test"
        assert told["result"]["tokensAfter"] < told["result"]["tokensBefore"]
        assert "the name of the harbour" in scene.summaries[0].system
        (entry,) = await entries(client)
        assert entry["role"] == "system" and entry["compaction"] == told["result"]
        assert (await client.ask("sessions.describe", key=KEY))["compaction"] == told["result"]
        invoked = await client.ask("tools.invoke", tool="session_status", args={"sessionKey": KEY})
        assert invoked["result"]["compaction"] == told["result"]
        status = await client.ask("chat.send", sessionKey=KEY, message="/status", idempotencyKey="s")
        assert f"compacted {told['result']['messages']} messages" in str(status)
        answered = await client.run(message="what is harbour?", sessionKey=KEY)
        assert "Varna" in str(await client.ask("chat.history", sessionKey=KEY, limit=1)), answered
        last = scene.asked[-1].messages[0].text
        assert "fact harbour is Varna" in last and "0: we talk" not in last.split("People's last words")[0]


async def test_an_undone_summary_stays_in_the_transcript_and_is_marked(make_world: MakeWorld) -> None:
    scene = Remembering()
    async with make_world(SETTINGS) as world, world.client() as client:
        world.gateway.add_model(scene.model)
        await talk(client)
        await client.ask("sessions.compact", key=KEY)
        told = await client.ask("sessions.compact", key=KEY, undo=True)
        assert (told["compacted"], told["undone"]) == (False, True)
        first, second = await entries(client)
        assert second["compaction"]["undoes"] == first["id"]
        assert "compaction" not in await client.ask("sessions.describe", key=KEY)
        again = await client.ask("sessions.compact", key=KEY, undo=True)
        assert again["undone"] is False and "no summary" in again["reason"]
        await client.run(message="what is harbour?", sessionKey=KEY)
        assert scene.asked[-1].messages[0].text == "fact harbour is Varna"
        assert not scene.model.refused


async def test_the_chat_command_answers_at_once_and_the_summary_follows(make_world: MakeWorld) -> None:
    scene = Remembering()
    async with make_world(SETTINGS) as world, world.client() as client:
        world.gateway.add_model(scene.model)

        async def command(text: str) -> str:
            return str(await client.ask("chat.send", sessionKey=KEY, message=text, idempotencyKey=text))

        assert "nothing to summarise" in await command("/compact")
        await talk(client)
        assert "is being summarised" in await command("/compact the harbour")
        await until_compacted(world, client)
        assert "the harbour" in scene.summaries[-1].system
        assert "Took back the summary" in await command("/compact undo")
        assert "no summary to take back" in await command("/compact  undo")


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ModelFailed("no credit of account 4711 is left", retryable=False), "The operator can see why"),
        ("", "the model wrote no summary"),
    ],
)
async def test_a_command_that_brings_no_summary_says_so_in_its_chat(
    make_world: MakeWorld, failure: Scripted, told: str
) -> None:
    scene = Remembering(summary=lambda request: failure)
    async with make_world(SETTINGS) as world, world.client() as client, world.client() as page:
        world.gateway.add_model(scene.model)
        await talk(client)
        await page.ask("sessions.messages.subscribe", key=KEY)
        await client.ask("chat.send", sessionKey=KEY, message="/compact", idempotencyKey="c")
        said = await page.said(state="final")
        assert told in str(said) and "4711" not in str(said)
        assert "summary was made" in str(said) and await entries(client) == []


async def test_a_short_session_and_a_function_need_none_and_say_why(make_world: MakeWorld) -> None:
    scene = Remembering()
    async with make_world(SETTINGS) as world, world.client() as client:
        world.gateway.add_model(scene.model)
        await client.run(message="hello", sessionKey=KEY)
        told = await client.ask("sessions.compact", key=KEY)
        assert told["compacted"] is False and "nothing to summarise" in told["reason"]
        assert not scene.summaries
        await client.run(message="hello", sessionKey="agent:echo:main")
        told = await client.ask("sessions.compact", key="agent:echo:main")
        assert "is a function" in told["reason"]


async def test_a_run_that_waits_for_a_summary_is_seen_in_its_events_and_its_timeline(make_world: MakeWorld) -> None:
    scene = Remembering()
    async with make_world(SETTINGS) as world, world.client() as client:
        world.gateway.add_model(scene.model)
        await talk(client, 22)
        await client.ask("sessions.subscribe")
        run = await client.run(message=f"what is harbour? {FILLER * 16}", sessionKey=KEY)
        phases = [
            (event["payload"]["data"]["phase"], event["payload"]["data"].get("completed"))
            for event in client.events
            if event["event"] == "agent" and event["payload"]["stream"] == "compaction"
        ]
        assert phases == [("start", None), ("end", True)], run
        timeline = await client.ask("runs.timeline", runId=run["runId"])
        (asked,) = [entry for entry in timeline["entries"] if entry["kind"] == "model"]
        assert asked["moved"] == "the older part was summarised"


async def test_openclaws_clients_see_one_line_of_their_own_kind(make_world: MakeWorld) -> None:
    scene = Remembering()
    theirs = {"id": "openclaw-control-ui", "version": "1", "platform": "web", "mode": "webchat"}
    async with make_world(SETTINGS) as world, world.client(client=theirs) as client:
        world.gateway.add_model(scene.model)
        await talk(client)
        told = await client.ask("sessions.compact", key=KEY)
        assert set(told) >= {"ok", "key", "compacted", "result"}
        history = await client.ask("chat.history", sessionKey=KEY)
        (line,) = [message for message in history["messages"] if message["__openclaw"].get("kind") == "compaction"]
        assert line["role"] == "system" and line["content"][0]["text"].startswith("compacted ")
        listed = await client.ask("sessions.list", includeLastMessage=True)
        assert [row.get("lastMessagePreview") for row in listed["sessions"]] == ["noted"]
