"""Parts of which nobody knows whether they arrived: asked for, proved, or left to a person."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.delivery.attempts import MAX_ATTEMPTS
from backchannel.core.delivery.channels import ChannelBusy, ChannelError, ChannelRefused, ChannelSilent
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.delivery.outgoing import PartProof
from backchannel.core.sessions import Address
from backchannel.errors import InvalidRequest
from backchannel.gateway.app import Gateway
from tests.channels.desk import desk
from tests.conftest import CRASH_POINTS
from tests.support.clocks import StageClock
from tests.support.gateways import CONFIG, MAIN
from tests.support.kill import kill_at_every_call
from tests.support.platform import Answer, AskedChannel, Platform, PlatformChannel, said
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio
S = DeliveryState
SILENT = ChannelSilent("no answer")


def _text(text: str = "hello") -> Post:
    return Post(session_key=MAIN, address=Address(channel="chat", to="C"), text=text)


class _BriefKeys(AskedChannel):
    """A platform that remembers keys for a minute, and can be asked after it."""

    takes_key, key_lives_s = True, 60.0


class _NoQuestions(PlatformChannel):
    """A platform that remembers keys for a minute, and cannot be asked."""

    takes_key, key_lives_s = True, 60.0


async def test_a_key_is_used_while_it_counts_and_then_the_platform_is_asked(tmp_path: Path) -> None:
    platform = Platform()
    platform.then(Answer(SILENT), Answer(SILENT), Answer(ChannelBusy("later", 100)), Answer(SILENT, takes=True))
    async with desk(tmp_path, {}, _BriefKeys(platform), clock=StageClock()) as at:
        receipt = await at.becomes(S.SENT, await at.send(_text()))
    key = receipt.parts[0].key
    assert [call.what for call in platform.calls] == ["post"] * 4, "three by key, and one after a question"
    assert platform.asked == [key, key], "asked before it is sent once more, and after that"
    assert platform.texts() == ["hello"] and receipt.parts[0].message_id in platform.seen


async def test_a_key_that_the_platform_has_forgotten_leaves_a_doubt_if_it_cannot_be_asked(tmp_path: Path) -> None:
    platform = Platform()
    platform.then(Answer(SILENT, takes=True), Answer(ChannelBusy("later", 100)))
    async with desk(tmp_path, {}, _NoQuestions(platform), clock=StageClock()) as at:
        receipt = await at.becomes(S.UNCERTAIN, await at.send(_text()))
        assert "does not know its key any more" in (receipt.delivery.error or "")
        await at.gateway.store.retry_delivery(receipt.delivery.id)
        await at.becomes(S.SENT, receipt.delivery.id)
    assert platform.texts() == ["hello", "hello"], "a person wanted that"


@pytest.mark.parametrize(
    ("errors", "questions"),
    [([ChannelRefused("no history here")], 1), ([ChannelSilent("no answer")] * MAX_ATTEMPTS, MAX_ATTEMPTS - 1)],
)
async def test_a_platform_that_does_not_tell_leaves_a_doubt_and_nothing_is_sent_again(
    tmp_path: Path, errors: list[ChannelError], questions: int
) -> None:
    platform = Platform()
    platform.then(Answer(SILENT, takes=True))
    platform.find_errors.extend(errors)
    async with desk(tmp_path, {}, AskedChannel(platform), clock=StageClock()) as at:
        receipt = await at.becomes(S.UNCERTAIN, await at.send(_text()))
        assert errors[0].reason in (receipt.delivery.error or "")
        platform.find_errors.clear()
        await at.gateway.store.retry_delivery(receipt.delivery.id)
        await at.becomes(S.SENT, receipt.delivery.id)
    assert len(platform.asked) == questions + 1, "a retry asks too, and finds it"
    assert platform.texts() == ["hello"]


async def test_a_proof_may_come_before_the_answer_of_the_send_which_adds_the_id(tmp_path: Path) -> None:
    platform = Platform()
    platform.holds = asyncio.Event()
    async with desk(tmp_path, {}, PlatformChannel(platform)) as at:
        delivery_id = await at.send(_text("one\ntwo"))
        await platform.until_called(1)
        assert await at.gateway.inbound.taker("chat").proved(PartProof(key=f"{delivery_id}/1"))
        await at.becomes(S.SENT, delivery_id)
        platform.holds.set()
        await at_rest(at.gateway)
        (part,) = (await at.gateway.store.receipt(delivery_id)).parts
    assert part.message_id == "m1" and platform.texts() == ["one\ntwo"]


async def test_a_proof_by_the_id_of_a_message_waits_for_the_answer_that_brings_it(tmp_path: Path) -> None:
    platform = Platform()
    platform.holds = asyncio.Event()
    async with desk(tmp_path, {}, PlatformChannel(platform)) as at:
        delivery_id = await at.send(_text())
        await platform.until_called(1)
        taker = at.gateway.inbound.taker("chat")
        told = asyncio.ensure_future(taker.proved(PartProof(message_id="m1", chat_id="C", failed="not delivered")))
        platform.holds.set()
        assert await told
        receipt = await at.gateway.store.receipt(delivery_id)
        assert receipt.delivery.state is S.SENT, "what was sent stays sent, and its receipt says more"
        assert receipt.delivery.error == "the platform reported later: not delivered"
        with pytest.raises(InvalidRequest, match="names a part"):
            await taker.proved(PartProof())


async def test_a_proof_sends_what_is_left_of_a_delivery(tmp_path: Path) -> None:
    platform = Platform()
    platform.then(Answer(SILENT, takes=True))
    async with desk(tmp_path, {}, PlatformChannel(platform, max_text_length=10)) as at:
        receipt = await at.becomes(S.UNCERTAIN, await at.send(_text("the first\nthe second")))
        await at.becomes(S.SENT, await at.send(_text("a later")))
        assert await at.gateway.inbound.taker("chat").proved(PartProof(key=receipt.parts[0].key, message_id="m1"))
        receipt = await at.becomes(S.SENT, receipt.delivery.id)
    assert platform.texts() == ["the first", "a later", "the second"]
    assert [part.message_id for part in receipt.parts] == ["m1", "m3"]


class Asked:
    """Somebody writes, and the answer goes to a platform that can be asked for what it took."""

    def __init__(self) -> None:
        self.platform = Platform()

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(ScriptedModel(replies=["the first\nthe second"]))
        gateway.add_channel(AskedChannel(self.platform, streams=False, max_text_length=10, find_after_s=0.0))

    async def drive(self, gateway: Gateway) -> None:
        await gateway.inbound.receive("chat", said("hello", "1"))
        await at_rest(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        assert self.platform.texts() == ["the first", "the second"], "read twice, or not at all"
        assert database.execute("SELECT state FROM deliveries").fetchall() == [("sent",)], "a doubt was left"
        ids = [message_id for (message_id,) in database.execute("SELECT message_id FROM delivery_parts ORDER BY n")]
        assert ids == list(self.platform.seen)


async def test_a_platform_that_can_be_asked_leaves_no_doubt_wherever_a_send_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    points = await kill_at_every_call(Asked, CONFIG)
    record_property(CRASH_POINTS, ("Asked, at calls", points))
    assert points >= 6


async def test_a_notice_and_the_reply_of_a_retry_have_keys_of_their_own(tmp_path: Path) -> None:
    platform, model = Platform(), ScriptedModel(replies=[RuntimeError("no luck"), "the answer"])
    async with desk(tmp_path, {}, PlatformChannel(platform), model=model) as at:
        await at.gateway.inbound.receive("chat", said("hello", "1"))
        notice = await at.becomes(S.SENT)
        await at.gateway.store.retry_run(notice.delivery.run_id or "")
        await at.heard.until(lambda: len({seen.key for seen in platform.seen.values()}) == 2)
    assert len({seen.key for seen in platform.seen.values()}) == len(platform.seen) == 2
