"""Strangers who are sent a code over the bridge, and owners who let them in."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from backchannel.core.policy.inbound import AdmissionRules, Arrival, RoutingRules, check, parse_event, route
from backchannel.core.policy.pairing import APPROVED_TEXT, CODE_LENGTH, MOST_PENDING, PAIRING_LIFE_MS, PairingState
from backchannel.core.policy.send_policy import SendPolicySettings
from backchannel.storage.units.pairing import begin
from tests.channels.desk import ChannelDesk, desk
from tests.support.clocks import StageClock
from tests.support.databases import open_database, with_database
from tests.support.far_end import FarEnd, event, signed
from tests.support.gateways import settled
from tests.support.logs import captured_logs

pytestmark = pytest.mark.anyio
EVE: dict[str, Any] = {"senderId": "eve", "chatId": "Eve-1", "senderName": "Eve"}
OLGA: dict[str, Any] = {"senderId": "olga", "chatId": "Olga-1"}


class Street:
    """A gateway that pairs, and whoever walks by; olga owns its channels."""

    def __init__(self, world: ChannelDesk, state: Path, far_end: FarEnd, shop: FarEnd | None = None) -> None:
        self.world, self.gateway, self.far_end, self._state = world, world.gateway, far_end, state
        self.ends = {"desk": far_end, "shop": shop or far_end}

    async def says(self, text: str, channel: str = "desk", **changed: Any) -> Any:
        """Write a message of its own; returns the verdict."""
        posted = event(**{"text": text, "messageId": uuid.uuid4().hex, **changed})
        body, headers = signed(posted, self.ends[channel].secret)
        answer: Any = await self.gateway.inbound.post(channel, body, headers)
        return answer.verdict

    async def asks(self, text: str, channel: str = "desk", **changed: Any) -> str:
        """Write something that is answered; returns what comes next into that chat."""
        count = len(self.heard(channel, changed["chatId"]))
        await self.says(text, channel, **changed)
        return await self.hears(channel, changed["chatId"], count)

    def heard(self, channel: str, chat: str) -> list[str]:
        """List what was said in a chat, without what an owner is asked about strangers."""
        texts = [message.text for message in self.ends[channel].messages if message.to == chat]
        return [text for text in texts if "wants to speak here" not in text]

    async def hears(self, channel: str, chat: str, count: int) -> str:
        """Wait for a message into a chat that has had so many before."""
        end = self.ends[channel]
        while len(heard := self.heard(channel, chat)) <= count:
            await end.took(len(end.messages) + 1)
        return heard[count]

    async def code(self, **changed: Any) -> str:
        """Write as a stranger; returns the code that comes back."""
        return code_in(await self.asks("hello?", **(EVE | changed)))

    def rows(self, sql: str) -> list[Any]:
        with closing(open_database(self._state)) as database:
            return database.execute(sql).fetchall()


def code_in(text: str) -> str:
    match = re.fullmatch(
        r"This bot does not know you yet\. Ask its owner to run: backchannel pairing approve ([A-Z2-9]+)", text
    )
    assert match is not None and len(match[1]) == CODE_LENGTH, text
    return match[1]


@asynccontextmanager
async def street(state: Path, clock: StageClock | None = None, **config: Any) -> AsyncIterator[Street]:
    session = {"dmScope": "per-account-channel-peer", **config.pop("session", {})}
    who = {"allowFrom": [], "owners": ["olga"], "pairing": True}
    async with FarEnd() as far_end, FarEnd("another secret of the tests") as shop:
        channels = {"desk": far_end.settings(**who), "shop": shop.settings(**who)}
        stored = with_database(config, state)
        async with desk(state, channels, clock=clock or StageClock(), session=session, **stored) as world:
            yield Street(world, state, far_end, shop)


async def test_a_stranger_is_let_in_by_the_owner_in_a_chat_and_writes_again(tmp_path: Path) -> None:
    async with street(tmp_path) as here:
        code = await here.code(threadId="T")
        assert await here.says("anybody?", **EVE) == "ignore"
        assert code in await here.asks("/pairing", **OLGA)
        assert await here.asks(f"/pairing approve {code.lower()}", **OLGA) == (
            "Eve (desk eve) may speak now, and is told so."
        )
        assert await here.hears("desk", "Eve-1", 1) == APPROVED_TEXT
        assert {message.thread_id for message in here.far_end.messages if message.to == "Eve-1"} == {"T"}
        assert await here.asks("hello again", **EVE) == "re: hello again"
        assert await here.asks("/pairing list", **OLGA) == "Nobody waits to be let in."
        await settled(here.gateway)
        assert here.rows("SELECT count(*) FROM runs") == [(1,)]  # what came before was not read
        kept = here.rows("SELECT body FROM messages UNION ALL SELECT body FROM inbox")
        assert "hello again" in str(kept) and "hello?" not in str(kept) and "anybody?" not in str(kept)


async def test_one_code_an_hour_is_sent_and_an_old_one_is_void(tmp_path: Path) -> None:
    clock = StageClock()
    async with street(tmp_path, clock) as here:
        first = await here.code()
        for _ in range(5):
            assert await here.says("please", **EVE) == "ignore"
        clock.move_on(PAIRING_LIFE_MS / 1000)
        assert "nobody waits with this code" in await here.asks(f"/pairing approve {first}", **OLGA)
        without = "/pairing approve needs more: <code> (write /pairing list|approve <code>|deny <code>)"
        assert await here.asks("/pairing Approve", **OLGA) == without
        second = await here.code()
        assert second != first
        assert "`/pairing list` in a chat" in await here.asks(f"/pairing approve {first}", **OLGA)
        assert "may speak now" in await here.asks(f"/pairing approve {second}", **OLGA)
        assert here.rows("SELECT code FROM pairings") == [(second,)]


async def test_who_is_denied_hears_nothing_more_until_they_are_removed(tmp_path: Path) -> None:
    clock = StageClock()
    async with street(tmp_path, clock) as here:
        code = await here.code()
        assert await here.asks(f"/pairing deny {code}", **OLGA) == "Eve (desk eve) is ignored from now on."
        assert "was denied already" in await here.asks(f"/pairing approve {code}", **OLGA)
        clock.move_on(2 * PAIRING_LIFE_MS / 1000)
        assert await here.says("why?", **EVE) == "ignore"
        await here.gateway.store.remove_pairing("desk", "eve")
        assert await here.code() != code
        assert len(here.heard("desk", "Eve-1")) == 2  # the first code, and this one


async def test_who_was_let_in_is_no_owner_and_a_stranger_again_when_the_channel_no_longer_pairs(tmp_path: Path) -> None:
    async with street(tmp_path) as here:
        await here.asks(f"/pairing approve {await here.code()}", **OLGA)
        assert await here.hears("desk", "Eve-1", 1) == APPROVED_TEXT
        for command in ("/pairing list", "/send off"):
            assert "is for owners only" in await here.asks(command, **EVE)
        assert "Status: idle" in await here.asks("/status", **EVE)
        group = {"chatType": "group", "chatId": "G", "senderId": "eve"}
        assert await here.says("in a group", **group, mentioned=True) == "answer"
        await settled(here.gateway)
    async with street(tmp_path) as here:
        assert await here.says("still here", **EVE) == "answer"  # over a restart
        await settled(here.gateway)
    async with FarEnd() as far_end:
        closed = {"desk": far_end.settings(allowFrom=[], owners=["olga"])}
        async with desk(tmp_path, closed, clock=StageClock(), **with_database({}, tmp_path)) as world:
            assert await Street(world, tmp_path, far_end).says("hello", **EVE) == "ignore"


async def test_nobody_is_sent_a_code_in_a_group_or_where_nothing_may_be_said(tmp_path: Path) -> None:
    rules = {"sendPolicy": {"rules": [{"match": {"channel": "shop"}, "action": "deny"}]}}
    async with street(tmp_path, session=rules) as here:
        for chat_type in ("group", "channel"):
            assert await here.says("hello", senderId="eve", chatId="G", chatType=chat_type, mentioned=True) == "ignore"
        assert await here.says("hello", channel="shop", **EVE) == "ignore"
        assert here.rows("SELECT count(*) FROM pairings") == [(0,)] and await here.world.receipts() == []


async def test_the_same_stranger_is_another_one_on_another_channel_or_account(tmp_path: Path) -> None:
    async with street(tmp_path) as here:
        codes = [await here.code(), await here.code(channel="shop"), await here.code(accountId="work")]
        assert len(set(codes)) == 3
        assert "(shop eve) may speak" in await here.asks(f"/pairing approve {codes[1]}", "shop", **OLGA)
        assert await here.hears("shop", "Eve-1", 1) == APPROVED_TEXT
        assert await here.says("hello", channel="shop", **EVE) == "answer"
        assert await here.says("hello", **EVE) == "ignore"
        assert await here.says("hello", accountId="work", **EVE) == "ignore"
        await settled(here.gateway)


async def test_an_owner_lets_in_whoever_asked_on_their_own_channel_and_hears_of_nobody_else(tmp_path: Path) -> None:
    async with street(tmp_path) as here:
        code = await here.code()
        assert await here.asks("/pairing", "shop", **OLGA) == "Nobody waits to be let in."
        for answer in ("approve", "deny"):
            refused = await here.asks(f"/pairing {answer} {code}", "shop", **OLGA)
            assert refused == await here.asks(f"/pairing {answer} ABCD2345", "shop", **OLGA)
        assert code in await here.asks("/pairing", **OLGA)
        assert "may speak now" in await here.asks(f"/pairing approve {code}", **OLGA)


async def test_a_thousand_strangers_fill_neither_the_table_nor_the_chats(tmp_path: Path) -> None:
    with captured_logs() as logs:
        async with street(tmp_path) as here:
            verdicts = await asyncio.gather(
                *(here.says("let me in", senderId=f"s{n}", chatId=f"C{n}") for n in range(1000))
            )
            assert verdicts.count("pair") == MOST_PENDING and verdicts.count("ignore") == 1000 - MOST_PENDING
            assert await here.says("hello", channel="shop", **EVE) == "pair"  # each channel has its own
            assert await here.gateway.store.pairings_pending() == MOST_PENDING + 1
            texts = [message.text for message in await here.far_end.took(MOST_PENDING)]
            assert len({code_in(text) for text in texts}) == MOST_PENDING
            denied = code_in(texts[0])
            assert "is ignored" in await here.asks(f"/pairing deny {denied}", **OLGA)
            assert await here.says("me too", senderId="late", chatId="late") == "pair"  # a place is free again
            await here.far_end.took(MOST_PENDING + 2)
            assert here.rows("SELECT count(*) FROM pairings WHERE state = 'pending'") == [(MOST_PENDING + 1,)]
            assert here.rows("SELECT count(*) FROM runs") == [(0,)]
    asked = [line for line in logs if line["event"] == "a stranger was sent a code"]
    assert len(asked) == MOST_PENDING + 2 and denied not in str(logs)


async def test_a_name_and_an_id_with_escapes_of_a_terminal_are_told_without_them(tmp_path: Path) -> None:
    evil = {"senderId": "e\x1b]0;owned\x07ve\n", "senderName": "\x1b[2JOlga\nOlga", "chatId": "E"}
    async with street(tmp_path) as here:
        code = await here.code(**evil)
        for told in (await here.asks("/pairing", **OLGA), await here.asks(f"/pairing approve {code}", **OLGA)):
            assert "Olga Olga (desk e\\u001b]0;owned\\u0007ve\\u000a)" in told
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", told)
        (approved,) = await here.gateway.store.pairings(limit=9)
        assert approved.state is PairingState.APPROVED and approved.answered_by == "desk olga"


async def test_a_stranger_to_whom_another_gateway_has_just_sent_a_code_gets_no_second_one(tmp_path: Path) -> None:
    async with street(tmp_path) as here:
        code = await here.code()
        said = check(parse_event(json.dumps(event(**EVE))), channel="desk", now_ms=here.gateway.clock.now_ms())
        routed, settings = route(said, RoutingRules(here.gateway.scheme)), here.gateway.channels["desk"].settings
        rules = AdmissionRules(settings=settings, policy=SendPolicySettings(), destination=routed.destination)
        arrival = Arrival(event=said, routed=routed, rules=rules)
        await here.gateway.store.driver.write(begin, arrival)  # as if this one had looked before the other's commit
        assert here.rows("SELECT code FROM pairings") == [(code,)] and len(await here.world.receipts()) == 1
