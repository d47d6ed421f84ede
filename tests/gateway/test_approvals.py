"""Calls that wait for an owner's word: over a socket, and in the chat that the run answers to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest, ToolContext
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from tests.channels.desk import Desk, desk
from tests.support.far_end import FarEnd
from tests.support.gateways import ended

from .client import OPERATOR, Client, Refused, connected

pytestmark = pytest.mark.anyio
APPROVAL: dict[str, Any] = {"approval": [{"tool": "post", "ask": "always"}]}


def posting(request: ModelRequest) -> Scripted:
    newest = request.messages[-1]
    return f"so: {newest.text}" if newest.role is Role.TOOL_RESULT else [call("post", text="hello")]


def equip(gateway: Gateway) -> list[str]:
    """Give a gateway a tool that posts; returns what was posted."""
    posted: list[str] = []

    @gateway.tool(effects="outside")
    async def post(text: str, context: ToolContext) -> str:
        posted.append(text)
        return "posted"

    return posted


async def asked(client: Client) -> dict[str, Any]:
    """Wait for the event of a call that has to be allowed."""
    return await client.event("approval", state="pending")


async def test_whoever_watches_hears_of_it_and_an_admin_answers_it_once(tmp_path: Path) -> None:
    async with desk(tmp_path, {}, model=ScriptedModel(replies=posting), tools=APPROVAL) as world:
        posted = equip(world.gateway)
        async with connected(world.url, OPERATOR) as client:
            await client.ask("sessions.subscribe")
            sent = await client.ask("chat.send", sessionKey="main", message="go")
            approval = await asked(client)
            assert (approval["runId"], approval["tool"], approval["args"]) == (sent["runId"], "post", {"text": "hello"})
            assert (await client.ask("approvals.list", state="pending"))["approvals"] == [approval]
            assert (await client.ask("status"))["approvals"] == {"pending": 1}
            reader = await client.ask("tokens.create", scopes=["write"])
            async with connected(world.url, reader["token"]) as other:
                assert (await other.ask("approvals.list"))["count"] == 1
                with pytest.raises(Refused):
                    await other.ask("approvals.answer", id=approval["id"], decision="approve")
            answered = (await client.ask("approvals.answer", id=approval["id"], decision="approve"))["approval"]
            assert answered["state"] == "approved" and answered["answeredBy"].startswith("operator ")
            assert await client.event("approval", state="approved") == answered
            assert (await ended(world.gateway, sent["runId"])).reply == "so: posted"
            with pytest.raises(Refused, match="approved already"):
                await client.ask("approvals.answer", id=approval["id"], decision="deny")
            assert posted == ["hello"]


async def test_lists_are_paged_and_filtered(tmp_path: Path) -> None:
    async with desk(tmp_path, {}, model=ScriptedModel(replies=posting), tools=APPROVAL) as world:
        equip(world.gateway)
        async with connected(world.url, OPERATOR) as client:
            await client.ask("sessions.subscribe")
            for name in ("a", "b", "c"):
                await client.ask("chat.send", sessionKey=f"agent:main:{name}", message="go")
                await client.event("approval", sessionKey=f"agent:main:{name}")
            first = await client.ask("approvals.list", limit=2)
            rest = await client.ask("approvals.list", limit=2, cursor=first["nextCursor"])
            keys = [row["sessionKey"] for row in first["approvals"] + rest["approvals"]]
            assert keys == ["agent:main:c", "agent:main:b", "agent:main:a"] and not rest["hasMore"]
            assert (await client.ask("approvals.list", sessionKey="agent:main:b"))["count"] == 1
            assert (await client.ask("approvals.list", state="denied"))["count"] == 0


class Asking:
    """A chat whose agent has to ask; olga owns it, ann only writes in it."""

    def __init__(self, world: Desk, far_end: FarEnd) -> None:
        self._world, self._far_end, self._count = world, far_end, 0

    async def says(self, who: str, text: str) -> str:
        """Say something that is answered; returns the answer."""
        self._count += 1
        heard = len(self._far_end.messages)
        await self._world.say(senderId=who, chatId="C", messageId=f"m{self._count}", text=text)
        return (await self._far_end.took(heard + 1))[heard].text

    async def hears(self, number: int) -> str:
        return (await self._far_end.took(number))[number - 1].text


async def test_in_a_chat_the_question_is_posted_and_only_an_owner_answers_it(tmp_path: Path) -> None:
    model = ScriptedModel(replies=posting)
    async with FarEnd() as far_end:
        settings = {"desk": far_end.settings(allowFrom=["ann"], owners=["olga"])}
        async with desk(tmp_path, settings, model=model, tools=APPROVAL) as world:
            posted, chat = equip(world.gateway), Asking(world, far_end)
            question = await chat.says("ann", "go")
            assert question.startswith('May I call post?\n{"text":"hello"}\n/approve ')
            approval_id = question.split("/approve ")[1].split()[0]
            assert "owners only" in await chat.says("ann", f"/approve {approval_id}")
            assert posted == []
            assert "no approval" in await chat.says("olga", "/approve ffffffff")
            assert "is approved" in await chat.says("olga", f"/approve {approval_id[:5]} always")
            assert await chat.hears(5) == "so: posted"
            (row,) = await world.gateway.store.approvals(limit=9)
            assert row.answered_by == "desk olga"
            assert await chat.says("ann", "and once more") == "so: posted"
            assert posted == ["hello", "hello"]


async def test_a_call_that_is_denied_in_the_chat_is_not_carried_out(tmp_path: Path) -> None:
    async with FarEnd() as far_end:
        settings = {"desk": far_end.settings(allowFrom=["ann"], owners=["olga"])}
        async with desk(tmp_path, settings, model=ScriptedModel(replies=posting), tools=APPROVAL) as world:
            posted, chat = equip(world.gateway), Asking(world, far_end)
            question = await chat.says("ann", "go")
            approval_id = question.split("/deny ")[1].split()[0]
            assert "is denied" in await chat.says("olga", f"/deny {approval_id}")
            assert "The owner denied this call" in await chat.hears(3)
            assert posted == []
