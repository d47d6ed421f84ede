"""The main session of an agent asks before anybody has spoken to it: it is that session, through every door."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply
from backchannel.core.messages import ProvenanceKind
from tests.gateway.test_mcp import connected
from tests.support.gateways import settled, transcript_of
from tests.support.talks import A, B, Player, config, talking
from tests.tools.door import Doors, doors
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio

AB = config("a", "b")
ASK = {"sessionKey": B, "message": "how are you?"}


async def by_python(at: Doors) -> dict[str, Any]:
    return await at.gateway.tools(A).sessions_send(**ASK)


async def by_session_key(at: Doors) -> dict[str, Any]:
    answer = await at.invoke(tool="sessions_send", args=ASK, sessionKey=A)
    result: dict[str, Any] = answer.json()["result"]
    return result


async def by_agent_token(at: Doors) -> dict[str, Any]:
    made = await at.client.ask("tokens.create", sessionKey=A)
    answer = await at.invoke(made["token"], tool="sessions_send", args=ASK)
    result: dict[str, Any] = answer.json()["result"]
    return result


async def by_mcp(at: Doors) -> dict[str, Any]:
    made = await at.client.ask("tokens.create", sessionKey=A)
    async with connected(f"{at.at.url}/mcp", made["token"]) as client:
        result: dict[str, Any] = (await client.call_tool("sessions_send", ASK)).structured_content
    return result


@pytest.mark.parametrize("door", [by_python, by_session_key, by_agent_token, by_mcp])
async def test_a_main_session_before_its_first_message_asks_as_itself(shelf: Shelf, door: Any) -> None:
    a, b = Player("a", turn=["thanks", "REPLY_SKIP"]), Player("b", request="fine", turn="you are welcome")
    async with doors(shelf, AB, a.model, b.model) as at:
        result = await door(at)
        assert (result["status"], result["reply"]) == ("ok", "fine")
        await settled(at.gateway)
        asked, *_ = await transcript_of(at.gateway, B)
        assert asked.provenance is not None
        assert (asked.provenance.kind, asked.provenance.source_session_key) == (ProvenanceKind.INTER_SESSION, A)
        assert f'Asked by session "{A}"' in asked.text
        turn, reply, *_ = await transcript_of(at.gateway, A)
        assert "reply-back turn 1 of 5" in turn.text and reply.text == "thanks"


async def test_the_call_does_not_make_the_session_and_what_is_put_into_it_does(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with talking(tmp_path, AB, a={}, b={"request": Reply(text="fine", gate=gate)}) as talk:
        sent = await talk.gateway.tools(A).sessions_send(**ASK, timeoutSeconds=0)
        assert sent["status"] == "accepted"
        assert await talk.gateway.store.session(A) is None
        gate.set()
        await settled(talk.gateway)
        made = await talk.gateway.store.session(A)
        assert made is not None and made.kind == "main"


async def test_a_reply_after_the_wait_is_a_note_where_there_are_no_turns(tmp_path: Path) -> None:
    gate = asyncio.Event()
    silent = config("a", "b", agentToAgent={"maxPingPongTurns": 0})
    async with talking(tmp_path, silent, a={}, b={"request": Reply(text="fine", gate=gate)}) as talk:
        await talk.gateway.tools(A).sessions_send(**ASK, timeoutSeconds=0)
        gate.set()
        await settled(talk.gateway)
        (note,) = await talk.said_to(A)
        assert "fine" in note.text
        assert note.provenance is not None and note.provenance.source_session_key == B


async def test_a_main_session_that_waits_for_itself_is_told_of_the_circle(tmp_path: Path) -> None:
    async with talking(tmp_path, AB, a={}) as talk:
        before = talk.counts()
        result = await talk.gateway.tools(A).sessions_send(sessionKey=A, message="hello")
        assert result["status"] == "error" and A in result["error"]
        assert talk.counts() == before


async def test_a_session_that_is_neither_there_nor_a_main_one_cannot_ask(tmp_path: Path) -> None:
    async with talking(tmp_path, AB, a={}, b={"request": "fine"}) as talk:
        before = talk.counts()
        result = await talk.gateway.tools("agent:a:cron:never").sessions_send(**ASK)
        assert (result["status"], "agent:a:cron:never" in result["error"]) == ("error", True)
        assert talk.counts() == before


async def test_a_spawn_before_its_first_message_is_its_own(tmp_path: Path) -> None:
    async with talking(tmp_path, config("a"), a={"person": "all done"}) as talk:
        spawned = await talk.gateway.tools(A).sessions_spawn(task="count")
        child = await talk.gateway.store.session(spawned["childSessionKey"])
        assert child is not None and child.spawned_by == A
        await settled(talk.gateway)
        told, *_ = await talk.said_to(A)
        assert "all done" in told.text
