"""The message that a reply quotes. In groups it is the message that the reply answers, in direct chats none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.contracts import ModelRequest
from backchannel.core.delivery.channels import ChannelRefused
from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.keys import ChatType
from backchannel.core.sessions import Address
from backchannel.errors import NotFound
from tests.channels.desk import desk
from tests.support.gateways import CONFIG, dying, echo, held, request
from tests.support.platform import Answer, Platform, PlatformChannel, said
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio
S = DeliveryState


def plain(platform: Platform) -> PlatformChannel:
    return PlatformChannel(platform, streams=False)


async def test_in_a_group_each_reply_quotes_the_message_that_it_answers(tmp_path: Path) -> None:
    platform, gate = Platform(), asyncio.Event()

    async def answer(asked: ModelRequest) -> str:
        await gate.wait()
        return f"re: {asked.messages[-1].text.splitlines()[-1]}"

    model = ScriptedModel(replies=answer)
    async with desk(tmp_path, {}, plain(platform), model=model) as at:
        for text, message_id in (("one", "1"), ("two", "2")):
            await at.gateway.inbound.receive("chat", said(text, message_id))
        gate.set()
        await at.gateway.inbound.receive("chat", said("hello", "3", chat_type=ChatType.DIRECT, chat_id="D"))
        await at.gateway.inbound.receive("chat", said("/status", "4"))
        await at_rest(at.gateway)
    quoted = {seen.text: seen.reply_to for seen in platform.seen.values() if seen.to == "C"}
    assert (quoted.pop("re: one"), quoted.pop("re: two")) == ("1", "2")
    assert list(quoted.values()) == ["4"], "a command is answered where it was given"
    assert [seen.reply_to for seen in platform.seen.values() if seen.to == "D"] == [None]


async def test_only_the_first_of_several_parts_quotes(tmp_path: Path) -> None:
    platform = Platform()
    channel = PlatformChannel(platform, streams=False, max_text_length=10)
    async with desk(tmp_path, {}, channel, model=ScriptedModel(replies=["first line\nsecond one"])) as at:
        await at.gateway.inbound.receive("chat", said("hello", "1"))
        await at_rest(at.gateway)
    assert [seen.reply_to for seen in platform.seen.values()] == ["1", None]


async def test_a_reply_still_quotes_after_the_process_died_in_its_run(tmp_path: Path) -> None:
    platform, begun = Platform(), asyncio.Event()
    model = ScriptedModel(replies=[held(reached=begun)])
    async with dying(tmp_path, model, config=CONFIG, equip=lambda it: it.add_channel(plain(platform))) as gateway:
        await gateway.inbound.receive("chat", said("hello", "1"))
        await begun.wait()
    async with desk(tmp_path, {}, plain(platform)) as at:
        await at_rest(at.gateway)
    assert [seen.reply_to for seen in platform.seen.values()] == ["1"]


async def test_the_notice_of_a_failure_quotes_and_what_is_rerouted_does_not(tmp_path: Path) -> None:
    platform = Platform()
    platform.then(None, Answer(ChannelRefused("no such chat")))
    model = ScriptedModel(replies=[NotFound("no model"), "an answer"])
    async with desk(tmp_path, {}, plain(platform), model=model) as at:
        await at.gateway.inbound.receive("chat", said("hello", "1"))
        await at_rest(at.gateway)
        assert [seen.reply_to for seen in platform.seen.values()] == ["1"]
        await at.gateway.inbound.receive("chat", said("hello", "2"))
        failed = await at.becomes(S.FAILED)
        await at.gateway.store.reroute_delivery(failed.delivery.id, Address(channel="chat", to="D"))
        await at.becomes(S.SENT, failed.delivery.id)
    assert [seen.reply_to for seen in platform.seen.values() if seen.to == "D"] == [None]


async def test_what_no_message_asked_for_quotes_none(tmp_path: Path) -> None:
    platform = Platform()
    async with desk(tmp_path, {}, plain(platform), model=ScriptedModel(replies=echo)) as at:
        await at.gateway.inbound.receive("chat", said("hello", "1"))
        await at_rest(at.gateway)
        key = "agent:main:chat:group:c"
        await at.gateway.runtime.submit(request(key, "remind them", deliver=True))
        await at_rest(at.gateway)
    assert [seen.reply_to for seen in platform.seen.values()] == ["1", None]
