"""Several bots of one channel in one chat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backchannel.channels.telegram.channel import SECRET_HEADER
from backchannel.core.delivery.delivery import Post
from backchannel.core.messages import Role
from backchannel.core.runs import Run
from backchannel.core.sessions import Address
from tests.channels.desk import ChannelDesk, desk
from tests.support.gateways import transcript_of
from tests.support.platform import Moment
from tests.support.resting import at_rest
from tests.support.telegram import GROUP, Telegram, entity

pytestmark = pytest.mark.anyio

SUPERGROUP = -1001234567890
NEWS = -1009876543210
OTHER_TOKEN = "4343:another-token-of-the-tests-BBBBBBBBBBB"
SECRETS = {"default": "a-secret-of-the-tests_1234", "work": "a-secret-of-the-tests_work"}


@dataclass
class TwoBots:
    """A gateway with two bots, and what Telegram posts to each of them."""

    at: ChannelDesk
    telegram: Telegram

    async def hear(self, update: dict[str, Any], *bots: str) -> None:
        """Post an update to these bots, one after the other."""
        body = json.dumps(update).encode()
        for bot in bots or SECRETS:
            headers = {SECRET_HEADER: SECRETS[bot]}
            answer = await self.at.http.post("/channels/telegram/inbound", content=body, headers=headers)
            assert answer.status_code == 200

    async def post(self, text: str, chat: int, *bots: str, **more: Any) -> None:
        """Let somebody write a message that these bots read."""
        self.telegram.say(text, chat=chat, **more)
        await self.hear(self.telegram.updates[-1], *bots)

    async def broadcast(self, text: str, message_id: int, *bots: str) -> None:
        """Let these bots read a post of the broadcast channel, which names nobody."""
        chat = self.telegram.chats[NEWS]
        post = {"message_id": message_id, "date": 1, "chat": chat, "sender_chat": chat, "text": text}
        await self.hear(self.telegram.update(channel_post=post), *bots)

    async def runs(self) -> list[Run]:
        return await self.at.gateway.store.runs(session_key=None, states=(), limit=100, before=None)


@asynccontextmanager
async def two_bots(telegram: Telegram, state: Path, *, streaming: bool = True, **config: Any) -> AsyncIterator[TwoBots]:
    telegram.other_bots[OTHER_TOKEN] = (4343, "Work_Bot")
    telegram.chats[SUPERGROUP] = {"id": SUPERGROUP, "type": "supergroup", "title": "Us"}
    telegram.chats[NEWS] = {"id": NEWS, "type": "channel", "title": "News"}
    url = "https://gateway.example/channels/telegram/inbound"
    work = {"token": OTHER_TOKEN, "webhook": {"url": url, "secret": SECRETS["work"]}}
    own = {"webhook": {"url": url, "secret": SECRETS["default"]}, "accounts": {"work": work}}
    settings = telegram.settings(**own, requireMention=config.pop("requireMention", False), streaming=streaming)
    async with desk(state, {"telegram": settings}, **config) as at:
        await telegram.until(lambda: len(telegram.called("setWebhook")) == 2)
        yield TwoBots(at, telegram)


async def test_a_command_for_one_of_two_bots_in_a_group_is_carried_out_once(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        async with two_bots(telegram, tmp_path) as bots:
            await bots.post("/status@work_bot", GROUP)
            await telegram.posted(1)
            await at_rest(bots.at.gateway)
            (receipt,) = await bots.at.receipts()
        assert receipt.delivery.account_id == "work" and len(telegram.texts) == 1


@pytest.mark.parametrize(("chat", "times"), [(SUPERGROUP, 1), (-42, 2)], ids=["supergroup", "small group"])
async def test_a_command_for_any_of_two_bots_is_carried_out_once_where_messages_have_one_number(
    tmp_path: Path, chat: int, times: int
) -> None:
    async with Telegram() as telegram:
        telegram.chats[-42] = {"id": -42, "type": "group", "title": "Us"}
        async with two_bots(telegram, tmp_path) as bots:
            for count, command in enumerate(("/new", "/new"), 1):
                await bots.post(command, chat)
                await at_rest(bots.at.gateway)
                assert len(telegram.texts) == count * times, "the second time is another message"


async def test_a_command_for_any_of_two_bots_is_for_the_sessions_of_both_agents(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        agents = {"list": [{"id": id, "model": "scripted/test"} for id in ("main", "other")]}
        bindings = [{"match": {"channel": "telegram", "accountId": "work"}, "agentId": "other"}]
        async with two_bots(telegram, tmp_path, agents=agents, bindings=bindings) as bots:
            await bots.post("/new", SUPERGROUP)
            await at_rest(bots.at.gateway)
    assert len(telegram.texts) == 2


# What both of them read

BOTH_ORDERS = pytest.mark.parametrize("order", [("default", "work"), ("work", "default")], ids=" then ".join)


async def said(bots: TwoBots, agent: str = "main") -> list[str]:
    """List what people have said in the session of the supergroup, notes that wait included."""
    await at_rest(bots.at.gateway)
    key = f"agent:{agent}:telegram:group:{SUPERGROUP}"
    waiting = await bots.at.gateway.store.pending(key, 50)
    messages = [*(await transcript_of(bots.at.gateway, key)), *waiting.messages]
    return [message.text for message in messages if message.role is Role.USER]


@BOTH_ORDERS
async def test_a_message_that_two_bots_read_is_written_down_once(tmp_path: Path, order: tuple[str, str]) -> None:
    async with Telegram() as telegram, two_bots(telegram, tmp_path, requireMention=True) as bots:
        await bots.post("just so", SUPERGROUP, *order)
        await bots.post("once more", SUPERGROUP, *order)
        assert await said(bots) == ["just so", "once more"]


@BOTH_ORDERS
async def test_a_message_that_two_bots_read_is_answered_once_by_the_first(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    async with Telegram() as telegram, two_bots(telegram, tmp_path) as bots:
        await bots.post("hello", SUPERGROUP, *order)
        assert await said(bots) == ["hello"]
        (receipt,) = await bots.at.receipts()
        assert receipt.delivery.account_id == order[0]


@pytest.mark.parametrize("requires", [True, False])
@pytest.mark.parametrize("is_reply", [True, False])
@BOTH_ORDERS
async def test_a_message_for_one_of_two_bots_is_left_to_that_one(
    tmp_path: Path, order: tuple[str, str], is_reply: bool, requires: bool
) -> None:
    async with Telegram() as telegram, two_bots(telegram, tmp_path, requireMention=requires) as bots:
        text, sender = "hello @Work_Bot", {"id": 4343, "is_bot": True, "first_name": "Work"}
        more: dict[str, Any] = {"entities": [entity(text, "@Work_Bot", "mention")]}
        if is_reply:
            more = {"reply_to_message": {"message_id": 1, "from": sender}}
        await bots.post(text, SUPERGROUP, *order, **more)
        assert await said(bots) == [text]
        (receipt,) = await bots.at.receipts()
        assert receipt.delivery.account_id == "work"


@BOTH_ORDERS
async def test_a_message_for_both_bots_is_answered_once(tmp_path: Path, order: tuple[str, str]) -> None:
    async with Telegram() as telegram, two_bots(telegram, tmp_path, requireMention=True) as bots:
        text = "@Work_Bot @Test_Bot hello"
        both = [entity(text, name, "mention") for name in ("@Work_Bot", "@Test_Bot")]
        await bots.post(text, SUPERGROUP, *order, entities=both)
        assert await said(bots) == [text] and len(telegram.texts) == 1


async def test_a_message_for_the_bot_of_another_agent_is_a_note_for_this_one(tmp_path: Path) -> None:
    agents = {"list": [{"id": id, "model": "scripted/test"} for id in ("main", "other")]}
    bindings = [{"match": {"channel": "telegram", "accountId": "work"}, "agentId": "other"}]
    config: dict[str, Any] = {"agents": agents, "bindings": bindings, "requireMention": True}
    async with Telegram() as telegram, two_bots(telegram, tmp_path, **config) as bots:
        text = "hello @Work_Bot"
        await bots.post(text, SUPERGROUP, entities=[entity(text, "@Work_Bot", "mention")])
        assert await said(bots) == await said(bots, "other") == [text]
        assert [run.session_key for run in await bots.runs()] == [f"agent:other:telegram:group:{SUPERGROUP}"]


# What one of them writes


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_post_of_one_bot_in_a_broadcast_channel_is_not_answered_by_the_other(
    tmp_path: Path, streaming: bool
) -> None:
    async with Telegram() as telegram, two_bots(telegram, tmp_path, streaming=streaming) as bots:
        await bots.broadcast("hello", 7000, "default")
        await at_rest(bots.at.gateway)
        (answer,) = telegram.posts
        await bots.broadcast(answer.text, answer.message_id, "work")
        await at_rest(bots.at.gateway)
        assert len(telegram.texts) == len(await bots.runs()) == 1


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_post_is_known_as_our_own_also_when_the_other_bot_hears_of_it_before_the_answer(
    tmp_path: Path, streaming: bool
) -> None:
    heard: list[asyncio.Task[None]] = []
    async with Telegram() as telegram, two_bots(telegram, tmp_path, streaming=streaming) as bots:

        async def early(call: int, moment: Moment) -> None:
            if (call, moment) == (1, "taken"):
                (post,) = telegram.posts
                heard.append(asyncio.ensure_future(bots.broadcast(post.text, post.message_id, "work")))
                done, _ = await asyncio.wait(heard, timeout=0.3)
                assert not done, "nobody knows yet whose it is"

        telegram.at_call = early
        await bots.broadcast("hello", 7000, "default")
        await telegram.until(lambda: bool(heard))
        await heard[0]
        await at_rest(bots.at.gateway)
        assert len(telegram.texts) == len(await bots.runs()) == 1


async def test_a_post_of_a_person_in_a_broadcast_channel_is_read_though_another_chat_has_that_number(
    tmp_path: Path,
) -> None:
    async with Telegram() as telegram, two_bots(telegram, tmp_path) as bots:
        address = Address(channel="telegram", to=str(SUPERGROUP))
        await bots.at.send(Post(session_key="agent:main:main", address=address, text="elsewhere"))
        await telegram.posted(1)
        await at_rest(bots.at.gateway)
        await bots.broadcast("hello", telegram.posts[0].message_id, "work")
        await telegram.posted(2)
