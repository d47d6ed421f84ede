"""Channels that leave out optional parts, and the loop that keeps them going."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.delivery.channel_list import Channels
from backchannel.core.delivery.channels import (
    Channel,
    ChannelHealth,
    ChannelSettings,
    InboundEvent,
    InboundTaker,
    OutboundPart,
    Sent,
)
from backchannel.core.keys import ChatType
from backchannel.errors import InvalidRequest, NotFound
from tests.support.clocks import StageClock
from tests.support.gateways import CONFIG, echo, running

pytestmark = pytest.mark.anyio


class Bare(Channel):
    """The least that a channel is."""

    name = "bare"

    async def send(self, part: OutboundPart) -> Sent:
        return Sent()


async def test_the_least_channel_answers_nobody_and_takes_no_posts(tmp_path: Path) -> None:
    said = InboundEvent(chat_type=ChatType.DIRECT, chat_id="C", sender_id="ann", message_id="1", text="hello")
    async with running(tmp_path, ScriptedModel(replies=echo), equip=lambda gateway: gateway.add_channel(Bare())) as it:
        answer = await it.inbound.receive("bare", said)
        assert answer.verdict == "ignore" and "channels.bare.allowFrom" in (answer.reason or "")
        with pytest.raises(NotFound, match="takes no posts"):
            await it.inbound.post("bare", b"{}", {})
        with pytest.raises(NotFound):
            await it.inbound.post("fax", b"{}", {})
        with pytest.raises(InvalidRequest, match="message_id"):
            await it.inbound.receive("bare", InboundEvent(**(_fields(said) | {"message_id": ""})))
        with pytest.raises(InvalidRequest, match="chat_type"):
            await it.inbound.receive("bare", InboundEvent(**(_fields(said) | {"chat_type": "party"})))


def _fields(event: InboundEvent) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


class Stumbling(Bare):
    """A channel whose connection breaks so often, and then holds."""

    settings = ChannelSettings(allow_from=("*",))

    def __init__(self, breaks: int) -> None:
        self.breaks = breaks
        self.tries = 0
        self.tried_thrice = asyncio.Event()
        self.held = asyncio.Event()
        self.closed = 0

    async def run(self, inbound: InboundTaker) -> None:
        self.tries += 1
        if self.tries == 3:
            self.tried_thrice.set()
        if self.tries <= self.breaks:
            raise OSError("the connection broke")
        said = InboundEvent(chat_type=ChatType.DIRECT, chat_id="C", sender_id="ann", message_id="1", text="hello")
        await inbound(said)
        self.held.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed += 1


async def test_a_channel_that_fails_is_started_again_with_growing_pauses(tmp_path: Path) -> None:
    channel, clock = Stumbling(3), StageClock()
    model = ScriptedModel(replies=echo)
    async with running(tmp_path, model, config=CONFIG, equip=lambda g: g.add_channel(channel), clock=clock) as gateway:
        await asyncio.wait_for(channel.held.wait(), 20)
        assert gateway.parts.keeper.health_of("bare").is_up and gateway.parts.keeper.down() == {}
    pauses = [slept for slept in clock.slept if slept in (1.0, 2.0, 4.0)]
    assert pauses[:3] == [1.0, 2.0, 4.0] and channel.closed == 1


async def test_a_channel_that_keeps_failing_is_down_since_the_first_time(tmp_path: Path) -> None:
    channel = Stumbling(10_000)
    async with running(tmp_path, ScriptedModel(replies=echo), clock=StageClock()) as gateway:
        before = gateway.clock.now_ms()
        gateway.add_channel(channel)  # also while the gateway runs
        await asyncio.wait_for(channel.tried_thrice.wait(), 20)
        assert gateway.parts.keeper.down() == {"bare": "OSError: the connection broke"}
        assert before <= gateway.parts.keeper.health_of("bare").since_ms < gateway.clock.now_ms() - 2000
    gateway.add_channel(Stumbling(0))  # known at the next start, and not run before
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "channel bare"]


async def test_a_channel_may_say_itself_how_it_is(tmp_path: Path) -> None:
    class Frank(Bare):
        def health(self) -> ChannelHealth:
            return ChannelHealth(is_up=False, since_ms=5, error="logged out")

    async with running(tmp_path, ScriptedModel(replies=echo), equip=lambda g: g.add_channel(Frank())) as gateway:
        assert (
            gateway.parts.keeper.down() == {"bare": "logged out"}
            and gateway.parts.keeper.health_of("bare").since_ms == 5
        )


@pytest.mark.parametrize("name", ["", "Bad", "a:b", "webchat", "unknown", "cron", "x" * 65])
def test_a_channel_needs_a_name_that_keys_can_hold(name: str) -> None:
    channel = Bare()
    channel.name = name
    with pytest.raises(ValueError, match="name"):
        Channels().add(channel)
