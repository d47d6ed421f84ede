"""The contract between every channel and the gateway.

A new channel is one more class in `worlds.py`: a platform that can refuse, be busy and fall silent.
Groups and threads are tried on the platforms that have them. A `held` platform keeps a connection open, which can
break and be refused. The bridge keeps none: its far end posts to the gateway, and a refusal fails the delivery.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.config.schema_doors import CronDeliver, CronJob
from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.facts import DeliveryChanged, DraftChanged, MessageAppended
from backchannel.errors import UnknownChannel
from backchannel.runtime.events import Event
from tests.channels.desk import ChannelDesk, desk
from tests.channels.worlds import WORLDS, GroupWorld, HeldWorld, PlatformWorld
from tests.gateway.client import connected
from tests.support.clocks import StageClock
from tests.support.gateways import session_of, texts_of
from tests.support.resting import at_rest
from tests.support.telegram import TOKEN

pytestmark = pytest.mark.anyio
S = DeliveryState

MANY = int(os.environ.get("CHANNEL_MESSAGES", "1000"))
"""How many messages come in order; `make interop` lets ten thousand come."""
PATIENCE_S = max(30.0, MANY / 50)
_NAME = attrgetter("name")


@pytest.fixture(params=WORLDS, ids=_NAME)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[PlatformWorld]:
    async with request.param.opened() as world:
        yield world


@pytest.fixture(params=[world for world in WORLDS if issubclass(world, GroupWorld)], ids=_NAME)
async def groups(request: pytest.FixtureRequest) -> AsyncIterator[GroupWorld]:
    async with request.param.opened() as world:
        yield world


@pytest.fixture(params=[world for world in WORLDS if issubclass(world, HeldWorld)], ids=_NAME)
async def held(request: pytest.FixtureRequest) -> AsyncIterator[HeldWorld]:
    async with request.param.opened() as world:
        yield world


# What goes out


async def test_a_text_is_sent_once(world: PlatformWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, world.settings, *world.own) as at:
        receipt = await at.becomes(S.SENT, await at.send(world.receive()))
    assert world.texts == ["hello"]
    assert receipt.delivery.attempts == 1 and receipt.delivery.error is None


async def test_what_is_refused_fails_at_once_with_the_reason(world: PlatformWorld, tmp_path: Path) -> None:
    world.refuse()
    async with desk(tmp_path, world.settings, *world.own) as at:
        receipt = await at.becomes(S.FAILED, await at.send(world.receive()))
    assert "no such chat" in (receipt.delivery.error or "") and receipt.delivery.attempts == 1
    assert world.texts == []


async def test_a_busy_platform_is_tried_again_when_it_asks_for_that(world: PlatformWorld, tmp_path: Path) -> None:
    world.be_busy(30)
    clock = StageClock()
    async with desk(tmp_path, world.settings, *world.own, clock=clock) as at:
        receipt = await at.becomes(S.SENT, await at.send(world.receive()))
    assert world.texts == ["hello"] and receipt.delivery.attempts == 2
    assert 30 in [round(slept) for slept in clock.slept]


async def test_silence_is_asked_again_by_key_or_by_a_question_or_stays_a_doubt(
    world: PlatformWorld, tmp_path: Path
) -> None:
    world.fall_silent()
    async with desk(tmp_path, world.settings, *world.own, clock=StageClock()) as at:
        expected = S.SENT if world.takes_key or world.can_find else S.UNCERTAIN
        await at.becomes(expected, await at.send(world.receive()))
    assert world.texts == ["hello"]  # whichever it is, nobody reads it twice


async def test_what_got_lost_is_sent_again_where_that_is_safe(world: PlatformWorld, tmp_path: Path) -> None:
    world.lose()
    async with desk(tmp_path, world.settings, *world.own, clock=StageClock()) as at:
        is_safe = world.takes_key or world.can_find
        await at.becomes(S.SENT if is_safe else S.UNCERTAIN, await at.send(world.receive()))
    assert world.texts == (["hello"] if is_safe else [])


@pytest.mark.parametrize("failed", [None, "blocked by the person"])
async def test_what_the_platform_tells_later_settles_a_part_once(
    world: PlatformWorld, tmp_path: Path, failed: str | None
) -> None:
    if not world.proves:
        pytest.skip(f"{world.name} tells nothing of a message later")
    clock = StageClock.held()
    world.fall_silent()
    async with desk(tmp_path, world.settings, *world.own, clock=clock) as at:
        delivery_id = await at.send(world.receive())
        await at.heard.until(lambda: at.states(delivery_id).count(S.PENDING) > 1)
        assert await world.prove(at.gateway, f"{delivery_id}/1", failed)
        receipt = await at.becomes(S.SENT if failed is None else S.FAILED, delivery_id)
        assert failed is None or failed in (receipt.delivery.error or "")
        assert not await world.prove(at.gateway, f"{delivery_id}/1"), "what is settled is not changed"
        assert not await world.prove(at.gateway, "another/1"), "nobody sent that"
    assert world.texts == ["hello"]


async def test_a_limit_of_the_account_holds_every_chat_and_costs_no_attempts(
    world: PlatformWorld, tmp_path: Path
) -> None:
    world.be_busy_for_all(60)
    clock = StageClock()
    async with desk(tmp_path, world.settings, *world.own, clock=clock) as at:
        first = await at.send(world.receive())
        await at.heard.until(lambda: at.states(first).count(S.PENDING) > 1)
        second = await at.becomes(S.SENT, await at.send(world.receive(world.other_chat, "there")))
        await at.becomes(S.SENT, first)
    assert sorted(world.texts) == ["hello", "there"] and second.delivery.attempts == 1
    assert any(round(slept) == 60 for slept in clock.slept)


async def test_what_is_for_a_chat_that_moved_goes_where_it_is_now(world: PlatformWorld, tmp_path: Path) -> None:
    world.move(world.other_chat)
    async with desk(tmp_path, world.settings, *world.own, clock=StageClock()) as at:
        receipt = await at.becomes(S.SENT, await at.send(world.receive()))
        later = await at.becomes(S.SENT, await at.send(world.receive(text="later")))
    assert (receipt.delivery.target, later.delivery.target) == (world.other_chat, world.other_chat)
    assert world.texts == ["hello", "later"] and later.delivery.attempts == 1


async def test_a_move_that_is_announced_is_followed(world: PlatformWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, world.settings, *world.own) as at:
        await world.say(at.gateway, "one", "1")
        await _replies(at, 1)
        await world.announce_move(at.gateway, world.other_chat)
        address = (await session_of(at.gateway)).address
        receipt = await at.becomes(S.SENT, await at.send(world.receive()))
    assert address is not None and address.to == receipt.delivery.target == world.other_chat


async def _reply_with_draft(world: PlatformWorld, tmp_path: Path) -> None:
    """Let a message be answered, and go on once its draft has changed."""
    gate = asyncio.Event()
    # A comma is in no mark: a letter at the end may be the beginning of one, and is shown when more has come.
    model = ScriptedModel(replies=[Reply(text=("It is,", " long."), gate=gate, held_at=1)])
    async with desk(tmp_path, world.settings, *world.own, model=model) as at:
        await world.say(at.gateway, "one", "1")
        await at.heard.until(lambda: bool(at.heard.of(DraftChanged)))
        gate.set()
        await _replies(at, 1)
        await at_rest(at.gateway)


async def test_a_reply_grows_in_one_message(world: PlatformWorld, tmp_path: Path) -> None:
    world.read_drafts()
    await _reply_with_draft(world, tmp_path)
    assert world.read_drafts()[0] == "It is," and world.texts == ["It is, long."]


async def test_a_draft_that_may_have_arrived_is_not_posted_again(world: PlatformWorld, tmp_path: Path) -> None:
    world.lose_draft()
    await _reply_with_draft(world, tmp_path)
    assert len(world.read_drafts()) == 1 and world.texts == ["It is, long."]


async def test_a_sign_of_receipt_is_put_on_what_is_answered_and_its_failure_stops_nothing(
    world: PlatformWorld, tmp_path: Path
) -> None:
    world.read_reactions()
    world.settings[world.name]["ackReaction"] = "👀"
    world.fail_reaction()
    async with desk(tmp_path, world.settings, *world.own) as at:
        for number, text in enumerate(["one", "two", "/status"], 1):
            await world.say(at.gateway, text, str(number))
        await _replies(at, 3)
    assert world.read_reactions() == [("1", "👀"), ("2", "👀")]


async def test_a_long_text_comes_in_parts_in_order_and_nothing_of_it_is_lost(
    world: PlatformWorld, tmp_path: Path
) -> None:
    world.limit(20)
    words = [f"word{number}" for number in range(30)]
    async with desk(tmp_path, world.settings, *world.own) as at:
        await at.becomes(S.SENT, await at.send(world.receive(text=" ".join(words))))
    assert len(world.texts) > 5 and all(len(text) <= 20 for text in world.texts)
    assert " ".join(world.texts).split() == words


def _counted(at: ChannelDesk, is_meant: Callable[[Event], bool], count: int) -> asyncio.Event:
    """Make an event that is set when a gateway has told so many of the things that are meant."""
    reached, told = asyncio.Event(), Counter[bool]()

    def hear(event: Event) -> None:
        told[is_meant(event)] += 1
        if told[True] >= count:
            reached.set()

    at.gateway.runtime.hub.listen(hear)
    return reached


async def test_many_texts_for_a_chat_come_in_order(world: PlatformWorld, tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(MANY // 5)]
    async with desk(tmp_path, world.settings, *world.own) as at:
        all_sent = _counted(
            at, lambda told: isinstance(told, DeliveryChanged) and told.delivery.state is S.SENT, len(texts)
        )
        for text in texts:
            await at.send(world.receive(text=text))
        await asyncio.wait_for(all_sent.wait(), PATIENCE_S)
    assert world.texts == texts


# What comes in


async def test_many_messages_are_taken_in_order_and_each_once(world: PlatformWorld, tmp_path: Path) -> None:
    written = [f"message {number}" for number in range(MANY)]
    silent: dict[str, Any] = {
        "session": {"sendPolicy": {"default": "deny"}}
    }  # they are recorded: what is asked here is their order
    async with desk(tmp_path, world.settings, *world.own, **silent) as at:
        all_taken = _counted(at, lambda told: isinstance(told, MessageAppended), MANY)
        for number, text in enumerate([*written[:9], *written[:9], *written[9:]]):
            await world.say(at.gateway, text, str(number + 1 if number < 9 else number - 8))
        await asyncio.wait_for(all_taken.wait(), PATIENCE_S)
        assert await texts_of(at.gateway) == written


async def test_a_group_is_answered_where_the_agent_is_mentioned_in_its_own_session(
    groups: GroupWorld, tmp_path: Path
) -> None:
    async with desk(tmp_path, groups.settings, *groups.own) as at:
        await groups.say_in_group(at.gateway, "among us", "1")
        await groups.say_in_group(at.gateway, "what do you say", "2", mentioned=True)
        await _replies(at, 1)
        key = f"agent:main:{groups.name}:group:{groups.group.lower()}"
        said = await texts_of(at.gateway, key)
    assert len(groups.texts) == 1 and "what do you say" in groups.texts[0]
    assert groups.places == [(groups.group, None)]
    assert said[0] == "among us" and len(said) == 3, "what was not for the agent is in its transcript, unanswered"


async def test_a_thread_has_a_session_of_its_own_and_is_answered_there(groups: GroupWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, groups.settings, *groups.own) as at:
        await groups.say_in_group(at.gateway, "in a thread", "1", mentioned=True, thread="T")
        await _replies(at, 1)
        assert len(await texts_of(at.gateway, groups.thread_key)) == 2
    ((chat, thread),) = groups.places
    assert chat == groups.group and thread is not None


async def test_a_connection_that_breaks_is_made_again_and_nothing_is_lost(held: HeldWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, held.settings, *held.own, clock=StageClock()) as at:
        await held.say(at.gateway, "one", "1")
        await _replies(at, 1)
        held.cut()
        await held.say(at.gateway, "two", "2")
        await _replies(at, 2)
        assert at.gateway.parts.keeper.health_of(held.name).is_up
    assert len(held.texts) == 2


async def test_what_was_written_while_the_gateway_was_away_is_taken_in_order(held: HeldWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, held.settings, *held.own) as at:
        await held.say(at.gateway, "one", "1")
        await _replies(at, 1)
    for number, text in enumerate(["two", "three", "four"], 2):
        held.write_away(text, str(number))
    held.write_away("two", "2")  # a history may bring what was there before
    async with desk(tmp_path, held.settings, *held.own) as at:
        await _replies(at, 3)
        await at_rest(at.gateway)
        said = [text for text in await texts_of(at.gateway) if text in ("one", "two", "three", "four")]
    assert said == ["one", "two", "three", "four"] and len(held.texts) == 4


async def test_credentials_that_are_revoked_are_told_in_words_until_they_are_taken_again(
    held: HeldWorld, tmp_path: Path
) -> None:
    async with desk(tmp_path, held.settings, *held.own, clock=StageClock()) as at:
        await held.say(at.gateway, "one", "1")
        await _replies(at, 1)
        held.refuse_login(True)
        keeper = at.gateway.parts.keeper
        async with asyncio.timeout(20):
            await held.refused_twice()
        assert not keeper.health_of(held.name).is_usable
        assert "Unauthorized" in keeper.down()[held.name] and TOKEN not in keeper.down()[held.name]
        held.refuse_login(False)
        await held.say(at.gateway, "two", "2")
        await _replies(at, 2)
        assert keeper.down() == {}


async def _replies(at: ChannelDesk, count: int) -> list[str]:
    """Wait until so many replies were sent, and tell to which chats."""

    def sent() -> list[str]:
        return list(dict.fromkeys(d for d in _changed(at) if S.SENT in at.states(d)))

    await at.heard.until(lambda: len(sent()) >= count)
    return [receipt.delivery.target or "" for receipt in await at.receipts()]


def _changed(at: ChannelDesk) -> list[str]:
    return [fact.delivery.id for fact in at.heard.of(DeliveryChanged)]


async def test_a_message_is_answered_once_where_it_came_from(world: PlatformWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, world.settings, *world.own) as at:
        for message_id, text in (("1", "one"), ("1", "one"), ("2", "two")):
            await world.say(at.gateway, text, message_id)
        assert await _replies(at, 2) == [world.chat] * 2
    assert len(world.texts) == 2
    assert all(text in reply for text, reply in zip(("one", "two"), sorted(world.texts), strict=True))


async def test_after_a_stop_it_goes_on_with_what_was_written_meanwhile(world: PlatformWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, world.settings, *world.own) as at:
        await world.say(at.gateway, "one", "1")
        await _replies(at, 1)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == f"channel {world.name}"]
    async with desk(tmp_path, world.settings, *world.own) as at:
        await world.say(at.gateway, "one", "1")
        await world.say(at.gateway, "two", "2")
        await _replies(at, 1)
    assert len(world.texts) == 2


async def test_a_stop_in_the_middle_of_a_send_loses_nothing(world: PlatformWorld, tmp_path: Path) -> None:
    world.be_busy(3600)
    async with desk(tmp_path, world.settings, *world.own) as at:
        delivery_id = await at.send(world.receive())
        await at.heard.until(lambda: at.states(delivery_id).count(S.PENDING) > 1)
    async with desk(tmp_path, world.settings, *world.own, clock=StageClock()) as at:
        await at.becomes(S.SENT, delivery_id)
    assert world.texts == ["hello"]


# Where it is known


async def test_it_can_be_named_wherever_a_channel_can(world: PlatformWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, world.settings, *world.own) as at, connected(at.url) as client:
        await client.ask("sessions.subscribe")
        sent = await client.ask("send", channel=world.name, to=world.chat, message="by send")
        await client.event("delivery", id=sent["id"], state="sent")
        where = {"deliver": True, "channel": world.name, "to": world.chat}
        await client.ask("agent", message="by agent", idempotencyKey="k", **where)
        await _replies(at, 2)
        deliver = {"channel": world.name, "to": world.chat}
        await client.ask("cron.add", id="daily", schedule="0 9 * * *", message="x", deliver=deliver)
        await client.ask("cron.run", id="daily")
        await _replies(at, 3)
        refused = await client.refused("agent", {"message": "x", "idempotencyKey": "l", **where, "channel": "fax"})
        assert refused["details"]["code"] == "unknown_channel" and world.name in refused["message"]
        with pytest.raises(UnknownChannel, match=world.name):
            await at.gateway.cron.add(_job("fax"))
    assert len(world.texts) == 3


def _job(channel: str) -> CronJob:
    return CronJob(id="other", schedule="0 9 * * *", message="x", deliver=CronDeliver(channel=channel, to="C"))


async def test_it_is_down_when_nothing_gets_through_and_up_again_after(world: PlatformWorld, tmp_path: Path) -> None:
    async with desk(tmp_path, world.settings, *world.own, clock=StageClock()) as at:
        await world.say(at.gateway, "one", "1")
        await _replies(at, 1)
        keeper = at.gateway.parts.keeper
        assert keeper.health_of(world.name).is_up and keeper.down() == {}
        for _ in range(3):
            world.be_busy(1)
        delivery_id = await at.send(world.receive())
        down: list[str] = []
        at.gateway.runtime.hub.listen(lambda _: down.extend(at.gateway.runtime.outbox.reach.down))
        await at.becomes(S.SENT, delivery_id)
        assert world.name in down and at.gateway.runtime.outbox.reach.down == {}
        assert keeper.health_of(world.name).is_up, "its connection was there all the time"
