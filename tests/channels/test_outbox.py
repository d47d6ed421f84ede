"""The outbox: order, parts, retries, doubts, and what a person can do about them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.delivery.attempts import MAX_ATTEMPTS
from backchannel.core.delivery.channels import Channel, ChannelSilent, OutboundPart, Sent
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.sessions import Address
from backchannel.errors import DeliveryNotFound, InvalidRequest, PolicyDenied, UnknownChannel
from backchannel.gateway.app import Gateway
from tests.channels.desk import desk
from tests.support.clocks import StageClock
from tests.support.far_end import FarEnd, Fault
from tests.support.gateways import CONFIG, MAIN, dying, echo
from tests.support.logs import captured_logs
from tests.support.servers import Break, Hang

pytestmark = pytest.mark.anyio
S = DeliveryState
LONG = "first line\nsecond line\nthird line"


def to(chat: str = "C", text: str = "hello", channel: str = "desk") -> Post:
    return Post(session_key=MAIN, address=Address(channel=channel, to=chat), text=text)


async def test_a_long_text_is_sent_in_parts_in_order_each_with_its_key(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings(maxTextLength=12)}) as world:
        delivery_id = await world.send(to(text=LONG))
        receipt = await world.becomes(S.SENT, delivery_id)
    assert far_end.texts == LONG.splitlines()
    assert far_end.posts == [f"{delivery_id}/{n}" for n in (1, 2, 3)]
    assert [(part.state, part.message_id) for part in receipt.parts] == [(S.SENT, f"m{n}") for n in (1, 2, 3)]


async def test_a_part_is_sent_again_until_the_far_end_answers_and_holds_back_those_behind_it(tmp_path: Path) -> None:
    clock = StageClock()
    async with FarEnd() as far_end:
        far_end.then(Fault(503), Break(), Fault(429, headers={"Retry-After": "30"}))
        async with desk(tmp_path, {"desk": far_end.settings()}, clock=clock) as world:
            first = await world.send(to(text="one"))
            second = await world.send(to(text="two"))
            receipt = await world.becomes(S.SENT, first)
            await world.becomes(S.SENT, second)
    assert far_end.posts == [f"{first}/1"] * 4 + [f"{second}/1"]
    assert far_end.texts == ["one", "two"] and set(far_end.counts.values()) == {1}
    assert receipt.delivery.attempts == 4 and receipt.delivery.error is None
    waits = [round(slept) for slept in clock.slept if slept > 0.5]
    assert waits[:3] == [1, 2, 30]


async def test_another_chat_does_not_wait(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        far_end.then(Hang())
        slow = await world.send(to("slow"))
        await far_end.posted(1)
        await world.send(to("slow", "behind it"))
        quick = await world.send(to("quick"))
        threaded = Post(session_key=MAIN, address=Address(channel="desk", to="slow", thread_id="T"), text="in a thread")
        in_thread = await world.send(threaded)
        await world.becomes(S.SENT, quick)
        await world.becomes(S.SENT, in_thread)
        assert (await world.gateway.store.receipt(slow)).delivery.state is S.SENDING
        assert "behind it" not in far_end.texts


async def test_a_refusal_fails_at_once_and_holds_nothing_back(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        far_end.then(Fault(404, body="no such chat"))
        failed = await world.send(to(text="one"))
        await world.becomes(S.SENT, await world.send(to(text="two")))
        receipt = await world.gateway.store.receipt(failed)
    assert receipt.delivery.state is S.FAILED and "404: no such chat" in (receipt.delivery.error or "")
    assert receipt.delivery.attempts == 1


async def test_after_ten_attempts_it_is_given_up_and_a_person_can_retry(tmp_path: Path) -> None:
    async with FarEnd() as far_end:
        far_end.then(*[Fault(500)] * MAX_ATTEMPTS)
        async with desk(tmp_path, {"desk": far_end.settings()}, clock=StageClock()) as world:
            delivery_id = await world.send(to())
            receipt = await world.becomes(S.FAILED, delivery_id)
            assert "given up after 10 attempts" in (receipt.delivery.error or "")
            with pytest.raises(InvalidRequest, match="cannot drop"):
                await world.gateway.store.retry_delivery(delivery_id)
                await world.becomes(S.SENT, delivery_id)
                await world.gateway.store.drop_delivery(delivery_id)
    assert far_end.counts == {f"{delivery_id}/1": 1}


async def test_a_rerouted_delivery_goes_whole_to_the_new_chat_under_new_keys(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings(maxTextLength=12)}) as world:
        far_end.then(Fault(200, takes=True), Fault(404))
        delivery_id = await world.send(to("old", LONG))
        await world.becomes(S.FAILED, delivery_id)
        with pytest.raises(UnknownChannel):
            await world.gateway.store.reroute_delivery(delivery_id, Address(channel="nowhere", to="x"))
        await world.gateway.store.reroute_delivery(delivery_id, Address(channel="desk", to="new"))
        receipt = await world.becomes(S.SENT, delivery_id)
    assert [(message.to, message.text) for message in far_end.messages] == [
        ("old", "first line"),
        *(("new", line) for line in LONG.splitlines()),
    ]
    assert [part.state for part in receipt.parts] == [S.SENT, S.DROPPED, S.DROPPED, S.SENT, S.SENT, S.SENT]
    assert len(set(far_end.counts)) == 4


async def test_a_dropped_delivery_is_settled_for_good(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        far_end.then(Fault(400))
        delivery_id = await world.send(to())
        await world.becomes(S.FAILED, delivery_id)
        dropped = await world.gateway.store.drop_delivery(delivery_id)
        assert dropped.delivery.state is S.DROPPED
        with pytest.raises(InvalidRequest):
            await world.gateway.store.retry_delivery(delivery_id)
        with pytest.raises(DeliveryNotFound):
            await world.gateway.store.drop_delivery("nobody")


async def test_the_policy_and_missing_channels_settle_a_receipt_with_the_reason(tmp_path: Path) -> None:
    policy = {"sendPolicy": {"rules": [{"match": {"channel": "red"}, "action": "deny"}]}}
    async with FarEnd() as far_end:
        channels = {"red": far_end.settings(), "blue": far_end.settings(secret="another secret of the tests")}
        async with desk(tmp_path, channels, session=policy) as world:
            suppressed = await world.becomes(S.SUPPRESSED, await world.send(to(channel="red")))
            nowhere = await world.becomes(S.NO_CHANNEL, await world.send(to(channel="green")))
            assert "session.sendPolicy.rules[0]" in (suppressed.delivery.error or "")
            assert "there are: blue, red" in (nowhere.delivery.error or "")
            far_end.then(Fault(400))
            far_end.secret = "another secret of the tests"
            failed = await world.send(to(channel="blue"))
            await world.becomes(S.FAILED, failed)
            with pytest.raises(PolicyDenied):
                await world.gateway.store.reroute_delivery(failed, Address(channel="red", to="x"))
    assert far_end.messages == []


async def test_a_channel_that_is_gone_after_a_restart_fails_what_waits_for_it(tmp_path: Path) -> None:
    async with FarEnd() as far_end:
        async with desk(tmp_path, {"desk": far_end.settings()}) as world:
            far_end.then(Fault(500))
            delivery_id = await world.send(to())
            await far_end.posted(1)
        async with desk(tmp_path, {}, clock=StageClock()) as world:
            receipt = await world.becomes(S.FAILED, delivery_id)
            assert "no channel 'desk'" in (receipt.delivery.error or "")
        async with desk(tmp_path, {"desk": far_end.settings()}) as world:
            await world.gateway.store.retry_delivery(delivery_id)
            await world.becomes(S.SENT, delivery_id)
    assert far_end.texts == ["hello"]


async def test_what_waits_for_its_next_attempt_on_a_channel_that_is_gone_can_be_dropped_or_rerouted(
    tmp_path: Path,
) -> None:
    async with FarEnd() as far_end:
        async with desk(tmp_path, {"desk": far_end.settings()}) as world:
            far_end.then(*[Fault(429, headers={"Retry-After": "3000"})] * 2)
            dropped, rerouted = [await world.send(to(chat)) for chat in ("A", "B")]
            await world.heard.until(
                lambda: all(world.states(delivery).count(S.PENDING) > 1 for delivery in (dropped, rerouted))
            )
            with pytest.raises(InvalidRequest, match="still trying"):
                await world.gateway.store.drop_delivery(dropped)
        async with desk(tmp_path, {"other": far_end.settings()}) as world:
            store = world.gateway.store
            with pytest.raises(InvalidRequest, match="re-route or drop it"):
                await store.retry_delivery(dropped)
            assert (await store.drop_delivery(dropped)).delivery.state is S.DROPPED
            await store.reroute_delivery(rerouted, Address(channel="other", to="C"))
            await world.becomes(S.SENT, rerouted)
    assert [(message.to, message.text) for message in far_end.messages] == [("C", "hello")]


class Keyless(Channel):
    """A channel that takes no keys: what it got twice, people read twice."""

    name = "keyless"
    max_text_length = 100
    takes_key = False

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.holds = asyncio.Event()
        self.holds.set()
        self.is_silent = False
        self.came = asyncio.Event()

    async def send(self, part: OutboundPart) -> Sent:
        self.texts.append(part.text)
        self.came.set()
        await self.holds.wait()
        if self.is_silent:
            raise ChannelSilent("no answer")
        return Sent(None)


class Forgetful(Keyless):
    """Takes each part, and does not answer to one of them."""

    max_text_length = 12

    def __init__(self, forgets: str) -> None:
        super().__init__()
        self.forgets = forgets

    async def send(self, part: OutboundPart) -> Sent:
        self.is_silent = part.text == self.forgets
        return await super().send(part)


@pytest.mark.parametrize("k", [1, 2, 3])
async def test_a_part_that_a_person_confirms_is_not_sent_again_and_those_after_it_are(tmp_path: Path, k: int) -> None:
    channel = Forgetful(LONG.splitlines()[k - 1])
    async with desk(tmp_path, {}, channel) as world:
        delivery_id = await world.send(to(text=LONG, channel="keyless"))
        await world.becomes(S.UNCERTAIN, delivery_id)
        assert channel.texts == LONG.splitlines()[:k]
        await world.gateway.store.confirm_delivery(delivery_id)
        receipt = await world.becomes(S.SENT, delivery_id)
        assert channel.texts == LONG.splitlines()
        assert [part.state for part in receipt.parts] == [S.SENT] * 3
        assert receipt.delivery.error == receipt.parts[k - 1].error == "a person said that it arrived"
        with pytest.raises(InvalidRequest, match="cannot confirm"):
            await world.gateway.store.confirm_delivery(delivery_id)


async def test_what_was_left_of_a_dropped_delivery_does_not_wait(tmp_path: Path) -> None:
    channel = Forgetful(LONG.splitlines()[1])
    async with desk(tmp_path, {}, channel) as world:
        delivery_id = await world.send(to(text=LONG, channel="keyless"))
        await world.becomes(S.UNCERTAIN, delivery_id)
        dropped = await world.gateway.store.drop_delivery(delivery_id)
    assert [part.state for part in dropped.parts] == [S.SENT, S.UNCERTAIN, S.DROPPED]


async def test_a_doubt_on_a_channel_without_keys_is_told_and_not_sent_again(tmp_path: Path) -> None:
    channel = Keyless()
    channel.is_silent = True
    async with desk(tmp_path, {}, channel) as world:
        delivery_id = await world.send(to(channel="keyless"))
        receipt = await world.becomes(S.UNCERTAIN, delivery_id)
        assert "not known" in (receipt.delivery.error or "")
        channel.is_silent = False
        await world.becomes(S.SENT, await world.send(to(channel="keyless", text="the next is not held back")))
        await world.gateway.store.retry_delivery(delivery_id)
        await world.becomes(S.SENT, delivery_id)
    assert channel.texts == ["hello", "the next is not held back", "hello"]


async def test_a_crash_during_a_send_is_a_doubt_without_keys(tmp_path: Path) -> None:
    channel = Keyless()
    channel.holds.clear()
    model = ScriptedModel(replies=echo)
    async with dying(tmp_path, model, config=CONFIG, equip=lambda gateway: gateway.add_channel(channel)) as gateway:
        receipt = await gateway.store.post(to(channel="keyless"))
        await asyncio.wait_for(channel.came.wait(), 20)
    async with desk(tmp_path, {}, Keyless()) as world:
        found = await world.gateway.store.receipt(receipt.delivery.id)
        assert found.delivery.state is S.UNCERTAIN and "stopped while" in (found.delivery.error or "")
    assert channel.texts == ["hello"]


class Keyed(Keyless):
    """A channel that takes keys."""

    name = "keyed"
    takes_key = True


async def test_sendings_that_a_crash_has_cut_are_no_attempts_of_the_platform(tmp_path: Path) -> None:
    clock, id = StageClock(), ""
    for _ in range(MAX_ATTEMPTS + 1):
        cut = Keyed()
        cut.holds.clear()
        equip = partial(Gateway.add_channel, channel=cut)
        async with dying(tmp_path, ScriptedModel(), config=CONFIG, equip=equip, clock=clock) as gateway:
            id = id or (await gateway.store.post(to(channel="keyed"))).delivery.id
            await asyncio.wait_for(cut.came.wait(), 20)
    channel = Keyed()
    async with desk(tmp_path, {}, channel, clock=clock) as world:
        receipt = await world.becomes(S.SENT, id)
    assert channel.texts == ["hello"] and receipt.delivery.attempts == MAX_ATTEMPTS + 2


class Unfinished(Keyless):
    """A channel that fails in ways that no channel should, so often."""

    name = "unfinished"
    takes_key = True

    def __init__(self, fails: int) -> None:
        super().__init__()
        self.fails = fails

    async def send(self, part: OutboundPart) -> Sent:
        if self.fails > 0:
            self.fails -= 1
            raise ModuleNotFoundError("No module named 'platform_sdk'")
        return await super().send(part)


async def test_an_unexpected_fault_of_a_channel_is_logged_with_its_traceback_once_and_retried(tmp_path: Path) -> None:
    channel = Unfinished(3)
    with captured_logs() as logs:
        async with desk(tmp_path, {}, channel, clock=StageClock()) as world:
            delivery_id = await world.send(to(channel="unfinished"))
            await world.heard.until(lambda: len(world.states(delivery_id)) > 2)
            receipt = await world.becomes(S.SENT, delivery_id)
    assert receipt.delivery.attempts == 4 and channel.texts == ["hello"]
    told = [entry for entry in logs if entry["event"] == "a channel failed"]
    assert [entry["error"] for entry in told] == ["ModuleNotFoundError: No module named 'platform_sdk'"] * 3
    assert [entry["exc_info"] is not None for entry in told] == [True, False, False]


async def test_a_fault_while_a_part_is_made_ready_does_not_hold_up_its_chat_for_ever(tmp_path: Path) -> None:
    class Moody(Keyless):
        name = "moody"
        asked = 0

        @property
        def max_text_length(self) -> int:  # type: ignore[override]
            self.asked += 1
            if self.asked in (2, 3):  # the first time is when the text is put in line
                raise RuntimeError("not now")
            return 100

    channel = Moody()
    async with desk(tmp_path, {}, channel, clock=StageClock()) as world:
        delivery_id = await world.send(to(channel="moody"))
        await world.becomes(S.SENT, delivery_id)
    assert channel.texts == ["hello"] and channel.asked > 3


async def test_a_clean_stop_waits_for_what_is_being_sent(tmp_path: Path) -> None:
    channel = Keyless()
    channel.holds.clear()
    async with desk(tmp_path, {}, channel) as world:
        delivery_id = await world.send(to(channel="keyless"))
        await asyncio.wait_for(channel.came.wait(), 20)
        asyncio.get_running_loop().call_later(0.05, channel.holds.set)
    async with desk(tmp_path, {}, Keyless()) as world:
        assert (await world.gateway.store.receipt(delivery_id)).delivery.state is S.SENT
