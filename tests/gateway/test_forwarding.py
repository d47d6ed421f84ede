"""Messages between agents as OpenClaw's clients see them: their words, without the gateway's prompts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from backchannel.core.messages import Message, Role, TextBlock, ToolCallBlock, decode_message, encode_message
from backchannel.gateway.openclaw.lines import line_for_people, placed_all

from .client import Client
from .conftest import MakeWorld

MAIN, SPEAKER = "agent:main:main", "agent:speaker:main"
OPEN = {"tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}}}
TUI = {"id": "openclaw-tui", "mode": "ui"}


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return ["\n".join(block["text"] for block in each["content"] if block["type"] == "text") for each in messages]


async def let_them_speak(client: Client) -> None:
    """Let one agent ask another, until it has nothing more to say."""
    await client.ask("sessions.messages.subscribe", key=MAIN)
    args = {"sessionKey": SPEAKER, "message": "what do you see?", "timeoutSeconds": 10}
    await client.ask("tools.invoke", tool="sessions_send", args=args, sessionKey=MAIN)
    async with asyncio.timeout(20), client.came:
        while "REPLY_SKIP" not in texts([each["message"] for each in client.seen("session.message")]):
            await client.came.wait()


@pytest.mark.anyio
async def test_openclaws_clients_are_shown_the_words_of_others_and_whose_they_are(make_world: MakeWorld) -> None:
    async with make_world(OPEN) as world, world.client() as own, world.client(client=TUI) as tui:
        await tui.ask("sessions.messages.subscribe", key=MAIN)
        await let_them_speak(own)
        asked = (await tui.ask("chat.history", sessionKey=SPEAKER))["messages"][0]
        assert (texts([asked]), asked["role"]) == (["what do you see?"], "assistant")
        assert asked["senderLabel"] == "Forwarded from main"
        assert asked["senderSession"] == {"sessionKey": MAIN, "agentId": "main"}
        assert asked["__openclaw"]["seq"] == 1
        shown = (await tui.ask("chat.history", sessionKey=MAIN))["messages"]
        assert not [text for text in texts(shown) if "[Agent-to-agent" in text or "REPLY_SKIP" in text]
        assert {each.get("senderLabel") for each in shown} == {"Forwarded from speaker", None}
        assert shown == [each["message"] for each in tui.seen("session.message")]
        assert (await own.ask("chat.startup", sessionKey=MAIN))["messages"] == shown
        assert (await own.ask("sessions.get", key=MAIN))["messages"] == shown


@pytest.mark.anyio
async def test_all_others_read_the_transcript_as_it_is_stored(make_world: MakeWorld) -> None:
    async with make_world(OPEN) as world, world.client() as own:
        await let_them_speak(own)
        stored = (await own.ask("chat.history", sessionKey=MAIN))["messages"]
        assert stored == [each["message"] for each in own.seen("session.message")]
        assert "REPLY_SKIP" in texts(stored) and any(text.startswith("[Agent-to-agent") for text in texts(stored))
        assert not [each for each in stored if "senderLabel" in each]


@pytest.mark.anyio
async def test_a_report_is_the_words_of_another_and_openclaws_clients_hear_them_once(make_world: MakeWorld) -> None:
    async with make_world(OPEN) as world, world.client() as own, world.client(client=TUI) as tui:
        for client in (own, tui):
            await client.ask("sessions.subscribe")
        await own.ask("chat.send", sessionKey=SPEAKER, message="hello")  # by webchat, where it is told of
        await own.event("chat", state="final")
        spawned = await own.ask("tools.invoke", tool="sessions_spawn", args={"task": "look"}, sessionKey=SPEAKER)
        run_id, child = (spawned["result"][name] for name in ("runId", "childSessionKey"))
        told = await own.event("chat", runId=run_id, sessionKey=SPEAKER, state="final")
        assert told["message"]["content"][0]["text"].startswith("Status: success")
        assert "message" not in await tui.event("chat", runId=run_id, sessionKey=SPEAKER, state="final")
        *_, shown = (await tui.ask("chat.history", sessionKey=SPEAKER))["messages"]
        assert texts([shown]) == texts([told["message"]])
        assert (shown["role"], shown["senderSession"]["sessionKey"]) == ("assistant", child)
        assert shown in [each["message"] for each in tui.seen("session.message")]


def test_a_control_word_beside_a_call_of_a_tool_leaves_the_call() -> None:
    call = ToolCallBlock(id="r/1/0", name="sessions_list", arguments={})
    said = Message(id="m", role=Role.ASSISTANT, content=(TextBlock(text="NO_REPLY"), call), timestamp=1)
    shown = line_for_people(encode_message(said))
    assert shown is not None and decode_message(shown).content == (call,)


def test_a_message_that_was_stored_without_its_step_is_shown_with_it() -> None:
    source = {"kind": "inter_session", "sourceTool": "sessions_send", "exchangeId": "x1"}
    text = "[Agent-to-agent exchange, reply-back turn 2 of 5]\nThe other session's reply:\n```\nfine\n```"
    old = {"id": "m", "role": "user", "content": [{"type": "text", "text": text}], "timestamp": 1, "provenance": source}
    (shown,) = placed_all([(0, json.dumps(old))])
    assert json.loads(shown)["provenance"] == {**source, "step": "turn", "turn": 2, "maxTurns": 5}
    (shown,) = placed_all([(0, json.dumps(old, separators=(",", ":")))], for_people=True)
    assert texts([json.loads(shown)]) == ["fine"]
