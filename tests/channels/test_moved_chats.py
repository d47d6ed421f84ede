"""A chat that gets another id on its platform, and an account that has to wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.delivery.attempts import MAX_ATTEMPTS
from backchannel.core.delivery.channels import ChannelBusy, ChannelMoved
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.sessions import Address
from tests.channels.desk import ChannelDesk, desk
from tests.support.clocks import StageClock
from tests.support.gateways import CONFIG, MAIN, Power, dying, echo, session_of
from tests.support.platform import Answer, Platform, PlatformChannel, said
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio
S = DeliveryState
GROUP = "agent:main:chat:group:c"


def plain(platform: Platform) -> PlatformChannel:
    return PlatformChannel(platform, streams=False)


def to(chat: str, text: str, **more: Any) -> Post:
    return Post(session_key=MAIN, address=Address(channel="chat", to=chat, **more), text=text)


async def address(at: ChannelDesk, key: str = GROUP) -> tuple[str | None, str | None]:
    found = (await session_of(at.gateway, key)).address
    assert found is not None
    return found.to, found.thread_id


async def test_what_is_in_line_the_session_and_what_is_said_later_follow_a_chat(tmp_path: Path) -> None:
    platform = Platform()
    async with desk(tmp_path, {}, plain(platform), clock=StageClock()) as at:
        for message_id, thread in (("1", None), ("2", "T")):
            await at.gateway.inbound.receive("chat", said("hello", message_id, thread_id=thread))
        await at_rest(at.gateway)
        held = platform.holds = asyncio.Event()
        platform.then(Answer(ChannelMoved("upgraded", "N")))
        await at.gateway.inbound.receive("chat", said("quote me", "3"))
        await platform.until_called(3)
        for text in ("behind it", "and behind that"):
            await at.send(to("C", text))
        await at.send(to("N", "was there first"))
        held.set()
        await at_rest(at.gateway)
        assert await address(at) == ("N", None) and await address(at, f"{GROUP}:thread:T") == ("N", "T")
        taken = await at.gateway.inbound.receive("chat", said("and now", "1", chat_id="N"))
        assert (taken.session_key, taken.repeat) == (GROUP, False)
        await at_rest(at.gateway)
        await at.send(to("C", "by its old id"))
        await at_rest(at.gateway)
    assert len(platform.texts("C")) == 2, "nothing more goes to the old id"
    first, *texts = platform.texts("N")
    assert first == "was there first" and "quote me" in texts[0]
    assert texts[1:3] == ["behind it", "and behind that"] and "and now" in texts[3] and texts[4] == "by its old id"
    assert [seen.reply_to for seen in platform.seen.values() if seen.to == "N"][1:5] == [None, None, None, "1"]


async def test_a_platform_that_announces_a_move_is_not_asked_at_the_old_id_again(tmp_path: Path) -> None:
    platform = Platform()
    async with desk(tmp_path, {}, plain(platform)) as at:
        await at.gateway.inbound.receive("chat", said("hello", "1"))
        await at_rest(at.gateway)
        taker = at.gateway.inbound.taker("chat")
        for old, new in (("C", "N"), ("C", "N"), ("N", "O")):
            await taker.moved("default", old, new)
        await at.send(to("C", "one"))
        await at.send(to("N", "two", thread_id="T"))
        await at_rest(at.gateway)
        assert sorted(platform.texts("O")) == ["one", "two"] and await address(at) == ("O", None)
        assert (await taker(said("hello", "9", chat_id="O"))).session_key == GROUP
        await taker.moved("default", "O", "C")  # back to where it began
        await at_rest(at.gateway)
        assert (await taker(said("hello", "9", chat_id="C"))).session_key == GROUP
        await at.send(to("N", "three"))
        await at_rest(at.gateway)
    assert "three" in platform.texts("C")


async def test_a_message_that_comes_with_the_news_of_the_move_belongs_to_the_old_session(tmp_path: Path) -> None:
    platform = Platform()
    async with desk(tmp_path, {}, plain(platform)) as at:
        taker = at.gateway.inbound.taker("chat")
        _, taken = await asyncio.gather(taker.moved("default", "C", "N"), taker(said("hello", "1", chat_id="N")))
        await at_rest(at.gateway)
    assert taken.session_key == GROUP and len(platform.texts("N")) == 1


async def test_another_account_of_the_same_name_does_not_follow(tmp_path: Path) -> None:
    platform = Platform()
    async with desk(tmp_path, {}, plain(platform)) as at:
        await at.gateway.inbound.receive("chat", said("hello", "1", account_id="second"))
        await at.gateway.inbound.taker("chat").moved("default", "C", "N")
        assert await address(at) == ("C", None)
        await at.send(to("C", "stays", account_id="second"))
        await at_rest(at.gateway)
    assert "stays" in platform.texts("C")


async def test_a_bound_agent_keeps_its_chat(tmp_path: Path) -> None:
    platform = Platform()
    agents = {"list": [{"id": name, "model": "scripted/test"} for name in ("main", "ops")]}
    bindings = [{"match": {"channel": "chat", "chatId": "C"}, "agentId": "ops"}]
    async with desk(tmp_path, {}, plain(platform), agents=agents, bindings=bindings) as at:
        await at.gateway.inbound.taker("chat").moved("default", "C", "N")
        taken = await at.gateway.inbound.receive("chat", said("hello", "1", chat_id="N"))
    assert taken.session_key == "agent:ops:chat:group:c"


async def test_a_platform_that_sends_us_round_in_circles_is_given_up(tmp_path: Path) -> None:
    platform = Platform()
    for n in range(MAX_ATTEMPTS):
        platform.then(Answer(ChannelMoved("moved", "BA"[n % 2])))
    async with desk(tmp_path, {}, plain(platform), clock=StageClock()) as at:
        circling = await at.becomes(S.FAILED, await at.send(to("A", "hello")))
        assert "given up after 10 attempts" in (circling.delivery.error or "")
        platform.then(Answer(ChannelMoved("moved", "Z")))
        nowhere = await at.becomes(S.FAILED, await at.send(to("Z", "hello")))
        assert "names no other chat" in (nowhere.delivery.error or "")
    assert platform.seen == {}


async def test_a_move_is_known_after_the_process_died_before_it_was_committed(tmp_path: Path) -> None:
    platform, power = Platform(), Power()
    platform.then(Answer(ChannelMoved("upgraded", "N")), Answer(ChannelMoved("upgraded", "N")))
    platform.holds = asyncio.Event()
    model = ScriptedModel(replies=echo)

    class Keyed(PlatformChannel):
        takes_key = True

    channel = Keyed(platform, streams=False)
    async with dying(
        tmp_path, model, config=CONFIG, equip=lambda gateway: gateway.add_channel(channel), power=power
    ) as gateway:
        await gateway.store.post(to("C", "hello"))
        await platform.until_called(1)
    platform.holds = None
    async with desk(tmp_path, {}, channel) as at:
        await at_rest(at.gateway)
    assert platform.texts("N") == ["hello"] and platform.texts("C") == []


# An account that has to wait


async def test_a_limit_of_the_account_holds_all_its_chats_and_no_others(tmp_path: Path) -> None:
    platform = Platform()
    platform.then(Answer(ChannelBusy("flood", 3000, is_account_wide=True)))
    async with desk(tmp_path, {}, plain(platform)) as at:
        first = await at.send(to("A", "one"))
        await at.heard.until(lambda: at.states(first).count(S.PENDING) > 1)
        second = await at.send(to("B", "two"))
        await at.becomes(S.SENT, await at.send(to("B", "of another account", account_id="second")))
        receipt = await at.gateway.store.receipt(second)
    assert (receipt.delivery.state, receipt.delivery.attempts) == (S.PENDING, 0), "waiting is no attempt"
    assert [call.text for call in platform.calls] == ["one", "of another account"]


async def test_an_account_still_waits_after_a_restart(tmp_path: Path) -> None:
    platform, clock = Platform(), StageClock()
    platform.then(Answer(ChannelBusy("flood", 3000, is_account_wide=True)))
    async with desk(tmp_path, {}, plain(platform)) as at:
        delivery_id = await at.send(to("A", "one"))
        await at.heard.until(lambda: at.states(delivery_id).count(S.PENDING) > 1)
        await at.send(to("B", "two"))
    assert len(platform.calls) == 1, "it is stopped at once, though it waits"
    async with desk(tmp_path, {}, plain(platform), clock=clock) as at:
        await at_rest(at.gateway)
    assert sorted(seen.text for seen in platform.seen.values()) == ["one", "two"]
    assert any(slept > 2900 for slept in clock.slept)
