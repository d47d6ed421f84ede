"""Long polling: what is acknowledged, in which order it is handed in, and what is done without an answer."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backchannel.core.delivery.channels import ChannelError, ChannelSilent
from backchannel.errors import InvalidRequest, Unavailable
from tests.support.clocks import StageClock
from tests.support.logs import captured_logs
from tests.support.servers import Break
from tests.support.telegram import ANN, BOB, EVE, TOKEN, Fault, Telegram

pytestmark = pytest.mark.anyio


class UpdateTaker:
    """Takes what a poller hands in, as it is told to."""

    def __init__(self) -> None:
        self.taken: dict[int, list[str]] = defaultdict(list)
        self.tries = 0
        self.errors: list[Exception] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.more = asyncio.Event()
        self.clock = StageClock()
        self.connected = 0
        self.troubles: list[str] = []

    async def hand_in(self, raw: Any) -> None:
        self.tries += 1
        self.more.set()
        message = raw.get("message")
        if message is None or "chat" not in message:
            return
        chat = message["chat"]["id"]
        if (gate := self.gates.get(chat)) is not None:
            await gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.taken[chat].append(message["text"])
        self.more.set()

    def answered(self) -> None:
        self.connected += 1

    async def until(self, chat: int, count: int) -> list[str]:
        async with asyncio.timeout(20):
            while len(self.taken[chat]) < count:
                self.more.clear()
                await self.more.wait()
        return self.taken[chat]


@asynccontextmanager
async def polling(telegram: Telegram, desk: UpdateTaker) -> AsyncIterator[asyncio.Task[None]]:
    from backchannel.channels.telegram.polling import Poller
    from backchannel.channels.telegram.wire import TelegramConnections, Wire

    connections = TelegramConnections(telegram.api_root)
    poller = Poller(Wire(TOKEN, connections), desk.hand_in, desk.clock, desk.answered, desk.troubles.append)
    task = asyncio.create_task(poller.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connections.close()


async def test_messages_of_a_chat_come_in_order_and_are_acknowledged() -> None:
    desk = UpdateTaker()
    async with Telegram() as telegram, polling(telegram, desk):
        for number in range(250):
            telegram.say(f"{number}")
        assert await desk.until(ANN, 250) == [f"{number}" for number in range(250)]
        await telegram.drained()
    assert desk.tries == 250, "nothing is handed in twice"


async def test_a_chat_that_takes_its_time_holds_up_no_other_and_is_not_acknowledged() -> None:
    desk = UpdateTaker()
    desk.gates[ANN] = asyncio.Event()
    async with Telegram() as telegram:
        telegram.say("slow", sender=ANN)
        async with polling(telegram, desk):
            telegram.say("quick", sender=BOB)
            telegram.say("slow too", sender=ANN)
            assert await desk.until(BOB, 1) == ["quick"]
            telegram.say("later", sender=EVE)  # comes in while the first is still not done
            assert await desk.until(EVE, 1) == ["later"]
            assert telegram.confirmed == 0 and not desk.taken[ANN]
            desk.gates[ANN].set()
            assert await desk.until(ANN, 2) == ["slow", "slow too"]
            await telegram.drained()
    assert telegram.confirmed == 4 and desk.tries == 4


async def test_updates_that_come_out_of_order_are_taken_and_acknowledged_by_their_numbers() -> None:
    desk = UpdateTaker()
    desk.gates[ANN] = asyncio.Event()
    async with Telegram() as telegram:
        telegram.say("first", sender=ANN)
        telegram.say("second", sender=BOB)
        telegram.say("third", sender=BOB)
        telegram.updates.reverse()
        async with polling(telegram, desk):
            assert await desk.until(BOB, 2) == ["second", "third"]
            asked = len(telegram.called("getUpdates"))
            await telegram.until(lambda: len(telegram.called("getUpdates")) > asked)
            assert telegram.confirmed == 0, "the first is not committed, and a kill would lose it"
            desk.gates[ANN].set()
            assert await desk.until(ANN, 1) == ["first"]
            await telegram.drained()


async def test_what_is_not_acknowledged_comes_again_after_a_restart() -> None:
    desk = UpdateTaker()
    desk.gates[ANN] = asyncio.Event()
    async with Telegram() as telegram:
        telegram.say("one")
        async with polling(telegram, desk):
            async with asyncio.timeout(20):
                await desk.more.wait()
        desk.gates.clear()
        async with polling(telegram, desk):
            assert await desk.until(ANN, 1) == ["one"]
            await telegram.drained()


@pytest.mark.parametrize("error", [Unavailable("the disk is full"), ChannelSilent("the file did not come")])
async def test_what_cannot_be_taken_now_is_tried_again_and_what_never_can_is_left_out(error: Exception) -> None:
    desk = UpdateTaker()
    desk.errors = [error, error]
    async with Telegram() as telegram, polling(telegram, desk):
        telegram.say("one")
        telegram.say("two")
        assert await desk.until(ANN, 2) == ["one", "two"]
        desk.errors = [InvalidRequest("too long")]
        telegram.say("three")
        telegram.say("four")
        assert await desk.until(ANN, 3) == ["one", "two", "four"]
        await telegram.drained()
    assert desk.clock.slept[:2] == [1.0, 2.0]
    assert desk.troubles == [f"a message cannot be taken now: {error}"] * 2


async def test_a_fault_of_ours_is_tried_a_few_times_and_then_left_out_while_the_bot_goes_on() -> None:
    desk = UpdateTaker()
    desk.errors = [ZeroDivisionError("a bug")] * 6
    async with Telegram() as telegram, polling(telegram, desk) as running:
        with captured_logs() as logs:
            telegram.say("one")
            telegram.say("two")
            assert await desk.until(ANN, 1) == ["two"]
            await telegram.drained()
        assert not running.done()
    assert desk.clock.slept[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert [("exc_info" in line, "left out" in line["event"]) for line in logs] == [(True, False), (False, True)]
    assert desk.troubles[-1] == "a message was left out because of a fault: ZeroDivisionError: a bug"


async def test_a_fault_of_ours_that_passes_loses_nothing() -> None:
    desk = UpdateTaker()
    desk.errors = [ZeroDivisionError("a bug")] * 5
    async with Telegram() as telegram, polling(telegram, desk):
        telegram.say("one")
        telegram.say("two")
        assert await desk.until(ANN, 2) == ["one", "two"]
        await telegram.drained()


async def test_updates_that_nobody_understands_are_acknowledged() -> None:
    desk = UpdateTaker()
    async with Telegram() as telegram, polling(telegram, desk):
        telegram.update(message={"message_id": "not a number"})
        telegram.say("after it")
        assert await desk.until(ANN, 1) == ["after it"]
        await telegram.drained()


async def test_one_broken_question_is_asked_again_and_two_in_a_row_are_an_error() -> None:
    desk = UpdateTaker()
    async with Telegram() as telegram:
        telegram.then("getUpdates", Break(takes=False), Fault(502, body="<html>Bad Gateway</html>"))
        async with polling(telegram, desk) as running:
            with pytest.raises(ChannelError) as raised:
                await asyncio.wait_for(running, 20)
        assert TOKEN not in str(raised.value)
        telegram.then("getUpdates", Break(takes=False))
        async with polling(telegram, desk):
            telegram.say("one")
            await desk.until(ANN, 1)


async def test_a_webhook_that_was_set_elsewhere_is_removed() -> None:
    desk = UpdateTaker()
    async with Telegram() as telegram:
        telegram.webhook = {"url": "https://elsewhere"}
        async with polling(telegram, desk):
            telegram.say("one")
            await desk.until(ANN, 1)
    assert telegram.called("deleteWebhook") == [{}]


async def test_a_wish_to_be_asked_later_is_obeyed() -> None:
    desk = UpdateTaker()
    async with Telegram() as telegram:
        telegram.then("getUpdates", Fault(429, "Too Many Requests: retry after 17", retry_after=17))
        async with polling(telegram, desk):
            telegram.say("one")
            await desk.until(ANN, 1)
    assert 17 in desk.clock.slept


async def test_numbers_that_begin_anew_after_a_quiet_week_are_taken() -> None:
    desk = UpdateTaker()
    async with Telegram() as telegram, polling(telegram, desk):
        telegram.say("before")
        await desk.until(ANN, 1)
        await telegram.until(lambda: telegram.calls[-1].fields.get("offset") == "1002")
        telegram.time_over()
        await telegram.until(lambda: "offset" not in telegram.calls[-1].fields)
        telegram.begin_anew(5)
        telegram.say("after")
        assert await desk.until(ANN, 2) == ["before", "after"]


async def test_updates_without_a_number_are_left_out_and_the_others_go_on() -> None:
    desk = UpdateTaker()
    async with Telegram() as telegram:
        malformed: list[Any] = [{"update_id": "7", "message": {}}, {"message": {}}, {"update_id": None}, 5, None, []]
        telegram.malformed = malformed
        telegram.say("one")
        with captured_logs() as logs:
            async with polling(telegram, desk) as task:
                await desk.until(ANN, 1)
                await telegram.drained()
                telegram.update(channel_post={"chat": "none"})
                telegram.say("two")
                assert await desk.until(ANN, 2) == ["one", "two"]
                await telegram.drained()
                assert not task.done()
    assert [entry["count"] for entry in logs if entry["log_level"] == "error"] == [len(malformed)], "it is told once"
    asked = len(telegram.called("getUpdates"))
    assert len(desk.clock.slept) > asked - 10, "Telegram is not asked without a pause"
