"""Channels that break and are restarted, and channels that their platform refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.delivery.channels import (
    Channel,
    ChannelBusy,
    ChannelSettings,
    ChannelUnusable,
    InboundEvent,
    InboundTaker,
    OutboundPart,
    Sent,
)
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.keys import ChatType
from backchannel.core.sessions import Address
from backchannel.gateway.app import Gateway
from backchannel.gateway.condition import examine
from backchannel.gateway.methods.channels import channel_states
from backchannel.wire.rows import ChannelState
from tests.channels.desk import desk
from tests.support.clocks import StageClock
from tests.support.far_channel import FarChannel
from tests.support.far_end import FarEnd, Fault
from tests.support.gateways import MAIN, echo, running
from tests.support.logs import captured_logs

pytestmark = pytest.mark.anyio
TO_DESK = Address(channel="desk", to="C")


class Failing(Channel):
    """A channel that fails so often, and then hands in a message and holds."""

    name = "weak"
    settings = ChannelSettings(allow_from=("*",))

    def __init__(self, fail: Callable[[], Exception], times: int) -> None:
        self._fail = fail
        self._times = times
        self.tries = 0
        self.last = asyncio.Event()
        """The last try that fails has begun."""
        self.held = asyncio.Event()

    async def send(self, part: OutboundPart) -> Sent:
        return Sent()

    async def run(self, inbound: InboundTaker) -> None:
        self.tries += 1
        if self.tries == self._times:
            self.last.set()
        if self.tries <= self._times:
            raise self._fail()
        await inbound(
            InboundEvent(chat_type=ChatType.DIRECT, chat_id="C", sender_id="ann", message_id="1", text="hello")
        )
        self.held.set()
        await asyncio.Event().wait()


async def test_a_channel_comes_back_after_twenty_failures_and_tells_since_when(tmp_path: Path) -> None:
    clock, failures = StageClock(), list[int]()

    def fail() -> Exception:
        failures.append(clock.now_ms())
        return OSError("the line is dead")

    channel = Failing(fail, 20)
    async with running(tmp_path, ScriptedModel(replies=echo), clock=clock) as gateway:
        keeper = gateway.parts.keeper
        gateway.add_channel(channel)
        async with asyncio.timeout(20):
            await channel.last.wait()
        since = keeper.health_of("weak").since_ms
        assert keeper.down() == {"weak": "OSError: the line is dead"}
        assert failures[0] <= since < failures[1] and clock.now_ms() - since > 10 * 60_000  # the first, long ago
        async with asyncio.timeout(20):
            await channel.held.wait()
        health = keeper.health_of("weak")
        assert health.is_up and health.since_ms > since and keeper.down() == {}
        assert health.error == "OSError: the line is dead", "what went wrong last is still told, with its time"
        assert health.error_at_ms is not None and since < health.error_at_ms <= health.since_ms
    assert clock.slept.count(60.0) >= 13  # the pauses end at a minute, and go on


@pytest.mark.parametrize(("asked_s", "pauses"), [(17.0, [17.0, 17.0]), (1e9, [3600.0, 3600.0])])
async def test_a_platform_that_asks_for_a_pause_is_left_alone_for_so_long(
    tmp_path: Path, asked_s: float, pauses: list[float]
) -> None:
    channel, clock = Failing(lambda: ChannelBusy("flood", asked_s), 2), StageClock()
    async with running(tmp_path, ScriptedModel(replies=echo), clock=clock) as gateway:
        gateway.add_channel(channel)
        async with asyncio.timeout(20):
            await channel.held.wait()
    assert [slept for slept in clock.slept if slept in pauses] == pauses


def refused() -> Exception:
    return ChannelUnusable("the token is not known to the platform")


async def test_a_channel_that_its_platform_refuses_is_named_at_once_and_stops_nothing_else(tmp_path: Path) -> None:
    def equip(gateway: Gateway) -> None:
        gateway.add_channel(Failing(refused, 10_000))
        gateway.add_channel(FarChannel())

    with captured_logs() as logs:
        async with running(tmp_path, ScriptedModel(replies=echo), equip=equip) as gateway:
            (problem,) = [found for found in (await examine(gateway.parts)).problems if "weak" in found.message]
            assert gateway.parts.keeper.health_of("far").is_up
            assert await gateway.ask("main", "hello") == "re: hello"
    assert problem.code == "channel_unusable" and "channels.weak" in problem.hint
    assert problem.message == "The channel weak cannot be used: the token is not known to the platform."
    (line,) = [line for line in logs if line.get("channel") == "weak"]
    assert line["event"] == "a channel cannot be used" and line["log_level"] == "error"
    assert line["error"] == "the token is not known to the platform" and "exc_info" not in line


async def test_a_channel_that_was_refused_is_tried_once_a_minute_and_logged_once(tmp_path: Path) -> None:
    channel, clock = Failing(refused, 4), StageClock()
    with captured_logs() as logs:
        async with running(tmp_path, ScriptedModel(replies=echo), clock=clock) as gateway:
            started = clock.now_ms()
            gateway.add_channel(channel)
            async with asyncio.timeout(20):
                await channel.held.wait()
            assert gateway.parts.keeper.down() == {} and gateway.parts.keeper.health_of("weak").is_usable
            assert clock.now_ms() - started >= 4 * 60_000
    told = [line["event"] for line in logs if line.get("channel") == "weak"]
    assert told == ["a channel cannot be used", "a channel is up again"]


async def test_a_channel_over_which_nothing_gets_through_is_down_since_the_first_attempt(tmp_path: Path) -> None:
    clock = StageClock()
    async with FarEnd() as far_end:
        far_end.then(*[Fault(503)] * 5)
        async with desk(tmp_path, {"desk": far_end.settings()}, clock=clock) as at:
            seen: list[tuple[int, ChannelState]] = []

            def look(_: object) -> None:
                seen.append((clock.now_ms(), channel_states(at.gateway.parts)[0]))

            at.gateway.runtime.hub.listen(look)
            started = clock.now_ms()
            await at.becomes(DeliveryState.SENT, await at.send(Post(session_key=MAIN, address=TO_DESK, text="hello")))
            (after,) = channel_states(at.gateway.parts)
    down = [(now, state) for now, state in seen if state.status == "down"]
    assert down and after.status == "ok" and "answered 503" in (after.last_error or "")
    assert after.last_error_at is not None and started < after.last_error_at
    assert all((state.last_error_at or 0) <= after.last_error_at for _, state in down)
    for now, state in down:
        assert state.since is not None and started <= state.since <= now - 3000  # two pauses before, of 1 s and 2 s
        assert "answered 503" in (state.last_error or "")
