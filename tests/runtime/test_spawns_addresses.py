"""The address of a sub-agent's result: the chat that asked, as it was then, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import call
from backchannel.core.runs import RunKind
from backchannel.core.sessions import Address, SessionPatch, write_address
from tests.channels.desk import ChannelDesk, desk
from tests.support.children import PATIENCE_S, Cast, Family, Gate, spawn
from tests.support.far_end import FarEnd, Fault, event, signed
from tests.support.gateways import MAIN, request, session_of, stored
from tests.support.servers import Break
from tests.support.talks import A, B, Player, send
from tests.support.talks import config as talk_config
from tests.tools.door import doors
from tests.tools.shelf import Shelf

pytestmark = pytest.mark.anyio


PHONE_SECRET = "another secret of the tests, long enough"
NIGHTLY = "agent:main:cron:nightly"


class Chats(Family):
    """A family whose requester is spoken to in chats."""

    def __init__(self, at: ChannelDesk, cast: Cast, far_end: FarEnd, database: Path) -> None:
        super().__init__(at.gateway, cast, database)
        self.desk = at
        self.far_end = far_end

    async def said(self, text: str = "go", **changed: Any) -> str:
        """Say something in a chat, and wait for its reply; returns the run's id."""
        before = len(self.far_end.messages)
        taken = await self.desk.say(text=text, messageId=f"in-{text}-{before}", **changed)
        run_id: str = taken["runId"]
        await self.ended(run_id)
        await self.far_end.took(before + 1)
        return run_id

    async def said_by_phone(self, text: str, **changed: Any) -> dict[str, Any]:
        """Say something as an owner, on the other channel."""
        body, headers = signed(event(text=text, messageId=f"ph-{text}", chatId="Phone-1", **changed), PHONE_SECRET)
        answer = await self.desk.http.post("/channels/phone/inbound", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        taken: dict[str, Any] = answer.json()
        return taken

    async def post_texts(self) -> list[str]:
        await self.over()
        return [message.text for message in self.far_end.messages if message.text.startswith("Status: ")]


@asynccontextmanager
async def chats(
    tmp_path: Path, *, subagents: dict[str, Any] | None = None, session: dict[str, Any] | None = None, **says: Any
) -> AsyncIterator[Chats]:
    cast = Cast(**says)
    agents = {
        "list": [{"id": "main", "model": "scripted/test"}],
        "defaults": {"subagents": subagents or {}},
    }
    async with FarEnd() as far_end, FarEnd(PHONE_SECRET) as phone:
        channels = {"desk": far_end.settings(requireMention=False), "phone": phone.settings(owners=["ann"])}
        opened = desk(tmp_path, channels, model=cast.model, agents=agents, session=session or {})
        async with opened as at:
            yield Chats(at, cast, far_end, tmp_path / "backchannel.db")
    assert not cast.model.refused


# The chat that asked


async def test_a_result_is_posted_to_the_chat_that_asked_and_noted_once(tmp_path: Path) -> None:
    async with chats(tmp_path, person=[[spawn("dig")]]) as here:
        await here.said(accountId="work", chatId="Chat-7")
        (text,) = await here.post_texts()
        assert text.startswith("Status: success\nResult: the hole is dug\nStats: ")
        posted = here.far_end.messages[-1]
        assert (posted.to, posted.account_id, posted.thread_id) == ("Chat-7", "work", None)
        (note,) = await here.told()
        assert note.text == text
        assert here.spawn_receipts() == ["sent"]
        assert set(here.far_end.counts.values()) == {1}


MOVES: dict[str, dict[str, Any]] = {
    "chat": {"chatId": "Chat-2", "senderId": "bob"},
    "account": {"accountId": "second"},
    "channel": {},
}


@pytest.mark.parametrize("moved", MOVES)
async def test_a_requester_that_moves_on_is_answered_where_it_asked(tmp_path: Path, moved: str) -> None:
    gate = Gate()
    async with chats(tmp_path, person=[[spawn("dig")], "hello"], task=gate.holds("dug")) as here:
        await here.said()
        await gate.reached()
        if moved == "channel":
            taken = await here.said_by_phone("hello")
        else:
            taken = await here.desk.say(text="hello", messageId="in-2", **MOVES[moved])
        await here.ended(taken["runId"])
        address = (await session_of(here.gateway)).address
        assert address is not None
        assert address != here.spawn().address
        gate.open()
        assert len(await here.post_texts()) == 1
        delivery = next(r.delivery for r in await here.desk.receipts() if (r.delivery.text or "").startswith("Status"))
        assert (delivery.channel, delivery.account_id, delivery.target) == ("desk", "default", "Chat-1")


async def test_a_thread_is_part_of_the_address(tmp_path: Path) -> None:
    async with chats(tmp_path, person=[[spawn("dig")], "hello"]) as here:
        await here.said(chatType="group", chatId="Room", threadId="t-1")
        await here.said("hello", chatType="group", chatId="Room", threadId="t-2")
        await here.over()
        (posted,) = [message for message in here.far_end.messages if message.text.startswith("Status: ")]
        assert (posted.to, posted.thread_id) == ("Room", "t-1")
        requester = "agent:main:desk:group:room:thread:t-1"
        assert str(here.spawn().requester) == requester
        assert len(await here.posts(requester)) == 1


async def test_a_chat_that_writes_while_the_requester_works_did_not_ask_for_the_result(tmp_path: Path) -> None:
    """Two people share the main session: one asks, and before the sub-agent is made the other one writes."""
    gate = Gate()
    lines: dict[str, Any] = {"person": [gate.holds("", calls=(spawn("dig"),)), "hello"]}
    async with chats(tmp_path, **lines) as here:
        first = await here.desk.say(text="go", messageId="in-1", chatId="Ann-1")
        await gate.reached()
        second = await here.desk.say(text="hello", messageId="in-2", chatId="Bob-1", senderId="bob")
        address = (await session_of(here.gateway)).address
        assert address is not None and address.to == "Bob-1"
        gate.open()
        await here.ended(first["runId"])
        await here.ended(second["runId"])
        await here.over()
        assert {m.text[:6]: m.to for m in here.far_end.messages} == {
            "on it": "Ann-1",
            "hello": "Bob-1",
            "Status": "Ann-1",
        }


async def test_what_a_call_named_as_its_address_gets_the_result_too(tmp_path: Path) -> None:
    """Cron jobs, hooks and `agent` may name where the reply goes; their sessions have no address of their own."""
    async with chats(tmp_path, person=[[spawn("dig")]]) as here:
        to = Address(channel="desk", to="Ops-Room", account_id="work")
        await fire(here, to)
        assert [(m.text[:6], m.to, m.account_id) for m in here.far_end.messages] == [
            ("on it", "Ops-Room", "work"),
            ("Status", "Ops-Room", "work"),
        ]
        assert len(await here.posts(NIGHTLY)) == 1
        assert (await session_of(here.gateway, NIGHTLY)).address is None


async def fire(here: Chats, to: Address) -> None:
    """Let a cron job that names an address run, and all that follows."""
    asked = request(NIGHTLY, "go", kind=RunKind.CRON, deliver=True, reply_to=to)
    await here.ended((await here.gateway.runtime.submit(asked)).run.id)
    await here.over()


@pytest.mark.parametrize("key", [NIGHTLY, "agent:main:hook:h1", "agent:main:openai:u1"])
async def test_a_requester_without_an_address_has_the_result_in_its_transcript(tmp_path: Path, key: str) -> None:
    async with chats(tmp_path, person=[[spawn("dig")]]) as here:
        await here.ask("go", key)
        await here.over()
        assert here.spawn_receipts() == ["no_channel"]
        assert len(await here.posts(key)) == 1
        assert here.far_end.messages == []


async def test_a_result_without_a_channel_does_not_go_where_the_requester_is_later(tmp_path: Path) -> None:
    gate = Gate()
    async with chats(tmp_path, person=[[spawn("dig")], "hello"], task=gate.holds("dug")) as here:
        await here.ask()
        await gate.reached()
        await here.said("hello")
        gate.open()
        assert await here.post_texts() == []
        assert here.spawn_receipts() == ["no_channel"]
        assert len(await here.posts()) == 1


async def test_an_operators_spawn_is_told_to_the_main_session_of_the_default_agent(tmp_path: Path) -> None:
    async with chats(tmp_path) as here:
        await here.said("hello")
        result = await here.spawned("dig", key=None)
        assert (await session_of(here.gateway, result["childSessionKey"])).spawned_by == MAIN
        assert len(await here.post_texts()) == 1
        assert here.far_end.messages[-1].to == "Chat-1"
        assert len(await here.posts()) == 1


# What stands in the way


async def test_what_the_requester_may_not_say_is_noted_and_not_posted(tmp_path: Path) -> None:
    gate = Gate()
    async with chats(tmp_path, person=[[spawn("dig")]], task=gate.holds("dug")) as here:
        await here.said()
        await gate.reached()
        await here.gateway.store.patch_session(here.gateway.key(MAIN), SessionPatch(send_policy="deny"))
        gate.open()
        assert await here.post_texts() == []
        assert here.spawn_receipts() == ["suppressed"]
        assert len(await here.posts()) == 1


async def test_the_policy_is_asked_for_the_posts_real_destination(tmp_path: Path) -> None:
    denied = {"sendPolicy": {"rules": [{"match": {"channel": "phone"}, "action": "deny"}]}}
    async with chats(tmp_path, session=denied, person=[[spawn("dig")]]) as here:
        await fire(here, Address(channel="phone", to="Phone-1"))
        assert here.spawn_receipts() == ["suppressed"]
        assert len(await here.posts(NIGHTLY)) == 1


async def test_a_post_whose_answer_was_lost_arrives_once(tmp_path: Path) -> None:
    async with chats(tmp_path, person=[[spawn("dig")]], task=(gate := Gate()).holds("dug")) as here:
        await here.said()
        await gate.reached()
        here.far_end.then(Break())
        gate.open()
        await here.over()
        assert len(await here.post_texts()) == 1
        assert here.spawn_receipts() == ["sent"]
        assert set(here.far_end.counts.values()) == {1}


async def test_a_post_that_fails_is_noted_all_the_same(tmp_path: Path) -> None:
    async with chats(tmp_path, person=[[spawn("dig")]], task=(gate := Gate()).holds("dug")) as here:
        await here.said()
        await gate.reached()
        here.far_end.then(Fault(400))
        gate.open()
        await here.until("SELECT 1 FROM deliveries WHERE state = 'failed'")
        assert here.spawn_receipts() == ["failed"]
        assert len(await here.posts()) == 1


async def test_a_long_post_is_split_for_its_channel(tmp_path: Path) -> None:
    report = "\n".join(f"line {n} of the report" for n in range(20))
    cast = Cast(person=[[spawn("dig")]], announce=report)
    async with FarEnd() as far_end:
        channels = {"desk": far_end.settings(maxTextLength=200)}
        async with desk(tmp_path, channels, model=cast.model) as at:
            here = Chats(at, cast, far_end, tmp_path / "backchannel.db")
            await here.said()
            await here.over()
            parts = far_end.texts[1:]
            assert len(parts) > 2
            assert all(len(part) <= 200 for part in parts)
            (note,) = await here.told()
            assert report in note.text
            assert here.spawn_receipts() == ["sent"]


async def test_the_requesters_reset_does_not_change_where_the_post_goes(tmp_path: Path) -> None:
    gate = Gate()
    async with chats(tmp_path, person=[[spawn("dig")]], task=gate.holds("dug")) as here:
        await here.said()
        await gate.reached()
        await here.gateway.store.reset_session(here.gateway.key(MAIN))
        gate.open()
        assert len(await here.post_texts()) == 1
        assert len(await here.posts()) == 1


async def test_stopped_children_post_nothing_to_the_chat(tmp_path: Path) -> None:
    gate = Gate()
    async with chats(tmp_path, person=[[spawn("dig"), spawn("dig more")]], task=gate.holds("dug")) as here:
        await here.said()
        await gate.reached()
        taken = await here.said_by_phone("/stop")
        assert "runId" not in taken
        await here.over()
        answers = [r.delivery.text for r in await here.desk.receipts() if r.delivery.channel == "phone"]
        assert answers == ["Stopped 2 sub-agents."]
        assert await here.post_texts() == []
        assert here.spawn_receipts() == ["cancelled", "cancelled"]


# Webchat


async def test_a_webchat_requester_sees_the_result_as_a_chat_event(tmp_path: Path) -> None:
    cast = Cast(person=[[spawn("dig")]])
    settings = {"agents": {"list": [{"id": "main", "model": "scripted/test"}]}}
    async with doors(Shelf(tmp_path / "state"), settings, cast.model) as open_doors:
        client = open_doors.client
        run = await client.ask("chat.send", sessionKey="main", message="go")
        await client.event("chat", runId=run["runId"], state="final")
        async with asyncio.timeout(PATIENCE_S):
            await client.event("delivery", state="sent", channel="webchat")
        texts = [e["message"]["content"][0]["text"] for e in client.seen("chat") if e["state"] == "final"]
        assert [text[:15] for text in texts] == ["on it", "Status: success"]
        (receipt,) = (await client.ask("deliveries.list"))["deliveries"]
        assert receipt["state"] == "sent"
        assert (await stored(open_doors.gateway, receipt["runId"])).kind is RunKind.CHILD
        history = await client.ask("chat.history", sessionKey="main")
        assert [m["role"] for m in history["messages"]][-1] == "user"


async def test_what_a_webchat_asked_for_comes_back_there_though_another_chat_wrote_before(tmp_path: Path) -> None:
    cast = Cast(person=[[spawn("dig")]])
    shelf = Shelf(tmp_path / "state")
    shelf.session("agent:main:main", "hello", delivery_context=write_address(Address(channel="desk", to="C-1")))
    settings = {"agents": {"list": [{"id": "main", "model": "scripted/test"}]}}
    async with doors(shelf, settings, cast.model) as open_doors:
        client = open_doors.client
        await client.ask("chat.send", sessionKey="main", message="go")
        async with asyncio.timeout(PATIENCE_S):
            await client.event("delivery", state="sent", channel="webchat")
        (receipt,) = (await client.ask("deliveries.list"))["deliveries"]
        assert (receipt["channel"], receipt["text"][:15]) == ("webchat", "Status: success")
        row = await client.ask("sessions.describe", key="main")
        assert row["session"]["lastTo"] == "C-1", "webchat never changes the return address"


async def test_what_a_turn_starts_answers_to_the_chat_that_the_send_came_from(tmp_path: Path) -> None:
    a = Player("a", person=send(B), turn=[[call("sessions_spawn", task="dig")], "REPLY_SKIP"])
    b = Player("b", request="fine")
    shelf = Shelf(tmp_path / "state")
    shelf.session(A, "hello", delivery_context=write_address(Address(channel="desk", to="C-1")))
    async with doors(shelf, talk_config("a", "b"), a.model, b.model) as open_doors:
        client = open_doors.client
        await client.ask("chat.send", sessionKey=A, message="go")
        async with asyncio.timeout(PATIENCE_S):
            await client.event("delivery", state="sent", channel="webchat")
        listed = (await client.ask("deliveries.list", sessionKey=A))["deliveries"]
        assert [receipt["channel"] for receipt in listed if "text" in receipt] == ["webchat"]
