"""Calls that wait for an owner's word: over a socket, and in the chat that the run answers to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest, ToolContext
from backchannel.core.messages import Role
from backchannel.core.policy.approvals import Approval, ApprovalState
from backchannel.gateway.app import Gateway
from backchannel.gateway.openclaw import approval_shapes
from tests.channels.desk import ChannelDesk, desk
from tests.support.far_end import FarEnd
from tests.support.gateways import ended
from tests.support.openclaw.shapes import Shape
from tests.support.openclaw.violations import violations

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
            assert answered["state"] == "approved" and answered["answeredBy"] == "operator"
            assert await client.event("approval", state="approved") == answered
            assert (await ended(world.gateway, sent["runId"])).reply == "so: posted"
            with pytest.raises(Refused, match="approved already"):
                await client.ask("approvals.answer", id=approval["id"], decision="deny")
            assert posted == ["hello"]


async def test_openclaws_clients_are_shown_what_waits_and_answer_it_in_their_words(tmp_path: Path) -> None:
    async with desk(tmp_path, {}, model=ScriptedModel(replies=posting), tools=APPROVAL) as world:
        posted = equip(world.gateway)
        async with connected(world.url, OPERATOR) as client:
            await client.ask("sessions.subscribe")
            sent = await client.ask("chat.send", sessionKey="main", message="go")
            told = await client.event("plugin.approval.requested")
            (waiting,) = await listed(client)
            assert waiting["id"] == told["id"] and waiting["request"] == told["request"]
            assert waiting["request"] | {"toolCallId": ""} == {
                "title": "May main call post?",
                "description": '{"text":"hello"}',
                "severity": "warning",
                "toolName": "post",
                "toolCallId": "",
                "agentId": "main",
                "sessionKey": "agent:main:main",
                "allowedDecisions": ["allow-once", "allow-always", "deny"],
            }
            assert waiting["expiresAtMs"] - waiting["createdAtMs"] > 86_400_000  # it waits for ever
            shown = await client.ask("approval.get", id=told["id"])
            assert shown["approval"]["status"] == "pending"
            assert violations(Shape("ApprovalGetResult"), shown) == set()
            assert await client.ask("plugin.approval.resolve", id=told["id"], decision="allow-once") == {"ok": True}
            resolved = await client.event("plugin.approval.resolved", id=told["id"])
            assert (resolved["decision"], resolved["resolvedBy"].split()[0]) == ("allow-once", "operator")
            assert (await ended(world.gateway, sent["runId"])).reply == "so: posted" and posted == ["hello"]
            assert await listed(client) == []


async def test_a_decision_in_openclaws_words_that_comes_late_is_told_so(tmp_path: Path) -> None:
    async with desk(tmp_path, {}, model=ScriptedModel(replies=posting), tools=APPROVAL) as world:
        posted = equip(world.gateway)
        async with connected(world.url, OPERATOR) as client:
            await client.ask("sessions.subscribe")
            await client.ask("chat.send", sessionKey="main", message="go")
            id = (await client.event("plugin.approval.requested"))["id"]
            settled = await client.ask("approval.resolve", id=id, kind="plugin", decision="deny")
            assert settled["applied"] is True and settled["approval"]["decision"] == "deny"
            assert settled["approval"]["resolver"]["kind"] == "device" and settled["approval"]["resolver"]["id"]
            again = await client.ask("approval.resolve", id=id, kind="plugin", decision="allow-once")
            assert again == {"applied": False, "approval": settled["approval"]}
            assert violations(Shape("ApprovalResolveResult"), again) == set()
            history = await client.ask("approval.history", limit=50)
            assert history == {"items": [settled["approval"]]}
            assert violations(Shape("ApprovalHistoryResult"), history) == set()
            assert await client.ask("approval.history", kind="exec") == {"items": []}
            late = await client.refused("plugin.approval.resolve", {"id": id, "decision": "allow-once"})
            assert late["details"]["reason"] == "APPROVAL_ALREADY_RESOLVED"
            unknown = await client.refused("plugin.approval.resolve", {"id": "ffff", "decision": "deny"})
            assert unknown["details"]["reason"] == "APPROVAL_NOT_FOUND" and posted == []


async def test_of_two_operators_who_answer_at_once_one_is_told_that_the_other_was_first(tmp_path: Path) -> None:
    async with desk(tmp_path, {}, model=ScriptedModel(replies=posting), tools=APPROVAL) as world:
        equip(world.gateway)
        async with connected(world.url, OPERATOR) as ann, connected(world.url, OPERATOR) as bob:
            await ann.ask("sessions.subscribe")
            await ann.ask("chat.send", sessionKey="main", message="go")
            asked = {"id": (await ann.event("plugin.approval.requested"))["id"], "decision": "allow-once"}
            queues = [await client.begin("approval.resolve", asked) for client in (ann, bob)]
            one, other = [await ann.take(queue) for queue in queues]
            assert {one["applied"], other["applied"]} == {True, False}
            assert one["approval"] == other["approval"] and one["approval"]["resolver"]["id"]


@pytest.mark.parametrize("is_for_good", [False, True])
async def test_that_a_tool_is_allowed_for_good_is_answered_only_where_it_is(tmp_path: Path, is_for_good: bool) -> None:
    async with desk(tmp_path, {}, model=ScriptedModel(replies=posting), tools=APPROVAL) as world:
        posted = equip(world.gateway)
        async with connected(world.url, OPERATOR) as client:
            await client.ask("sessions.subscribe")
            sent = await client.ask("chat.send", sessionKey="main", message="go")
            id = (await client.event("plugin.approval.requested"))["id"]
            first, always = "allow-always" if is_for_good else "allow-once", {"id": id, "decision": "allow-always"}
            await client.ask("plugin.approval.resolve", id=id, decision=first)
            await ended(world.gateway, sent["runId"])
            if is_for_good:
                assert await client.ask("plugin.approval.resolve", **always) == {"ok": True}
            else:
                late = await client.refused("plugin.approval.resolve", always)
                assert late["details"]["reason"] == "APPROVAL_ALREADY_RESOLVED" and "once" in late["message"]
                with pytest.raises(Refused, match="asked for again"):
                    await client.ask("approvals.answer", id=id, decision="approve", always=True)
            assert await client.ask("plugin.approval.resolve", id=id, decision="allow-once") == {"ok": True}
            client.events.clear()
            sent = await client.ask("chat.send", sessionKey="main", message="and again")
            if not is_for_good:
                id = (await client.event("plugin.approval.requested"))["id"]
                await client.ask("plugin.approval.resolve", id=id, decision="deny")
            await ended(world.gateway, sent["runId"])
            assert len(posted) == (2 if is_for_good else 1)


async def test_a_tool_is_allowed_for_good_in_openclaws_words_with_a_token_of_an_admin_only(tmp_path: Path) -> None:
    tools = APPROVAL | {"approvalTimeoutMinutes": 10}
    async with desk(tmp_path, {}, model=ScriptedModel(replies=posting), tools=tools) as world:
        equip(world.gateway)
        async with connected(world.url, OPERATOR) as client:
            await client.ask("sessions.subscribe")
            await client.ask("chat.send", sessionKey="main", message="go")
            told = await client.event("plugin.approval.requested")
            assert told["expiresAtMs"] - told["createdAtMs"] == 600_000
            writer = await client.ask("tokens.create", scopes=["write"])
            async with connected(world.url, writer["token"]) as other:
                assert [each["id"] for each in await listed(other)] == [told["id"]]
            asked_for = {"scopes": ["operator.write", "operator.approvals"]}
            async with connected(world.url, writer["token"], **asked_for) as other:
                for method in ("plugin.approval.resolve", "approval.resolve"):
                    refused = await other.refused(method, {"id": told["id"], "decision": "allow-once"})
                    assert refused["details"]["code"] == "scope_missing"
            bound = await client.ask("tokens.create", sessionKey="main")
            async with connected(world.url, bound["token"]) as agent:
                assert (await agent.refused("plugin.approval.list"))["code"] == "FORBIDDEN"
            async with connected(world.url, OPERATOR, scopes=["operator.approvals"]) as reviewer:
                for method in ("sessions.list", "tokens.list", "approvals.list", "device.pair.remove"):
                    assert (await reviewer.refused(method))["details"]["code"] == "scope_missing"
                assert [each["id"] for each in await listed(reviewer)] == [told["id"]]
                await reviewer.ask("plugin.approval.resolve", id=told["id"], decision="allow-always")
            run = await client.ask("chat.send", sessionKey="main", message="and again")
            assert (await ended(world.gateway, run["runId"])).reply == "so: posted"


def test_of_a_long_call_openclaws_clients_get_more_than_fits_their_title() -> None:
    text = "word " * 200 + "password=hunter2abc"
    approval = Approval(
        id="1", call_id="r/1/0", run_id="r", session_key="agent:main:main", tool="post" * 40,
        arguments=json.dumps({"text": text}), state=ApprovalState.PENDING, created_at=1,
    )  # fmt: skip
    shown = approval_shapes.asked(approval, str, 2, 0).request
    assert (len(shown.title), len(shown.description)) == (80, 512)
    assert shown.detail is not None and shown.detail.endswith('password=[redacted]"}')
    assert violations(Shape("ApprovalGetResult"), plain(approval_shapes.snapshot(approval, 2, 0))) == set()


def plain(snapshot: approval_shapes.ApprovalSnapshot) -> Any:
    return {"approval": msgspec.to_builtins(snapshot)}


async def listed(client: Client) -> list[dict[str, Any]]:
    found: Any = await client.ask("plugin.approval.list")
    return list(found)


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

    def __init__(self, world: ChannelDesk, far_end: FarEnd) -> None:
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
