"""Telegram's answers as a channel reads them: missing files, and requests to retry later."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from backchannel.core.delivery.channels import ChannelBusy, ChannelRefused, ChannelSilent, ChannelUnusable
from backchannel.core.incoming_json import TooMuchJson
from tests.support.servers import Break
from tests.support.telegram import ANN, TOKEN, Fault, Telegram, Told

if TYPE_CHECKING:
    from backchannel.channels.telegram.wire import Wire

pytestmark = pytest.mark.anyio

CONTENT = bytes(range(256)) * 1000


@asynccontextmanager
async def wired(telegram: Telegram) -> AsyncIterator[Wire]:
    from backchannel.channels.telegram.wire import TelegramConnections, Wire

    connections = TelegramConnections(telegram.api_root)
    try:
        yield Wire(TOKEN, connections)
    finally:
        await connections.close()


async def test_what_cannot_be_a_token_of_telegrams_own_server_is_refused_without_asking_it() -> None:
    from backchannel.channels.telegram.wire import TelegramConnections, Wire

    with pytest.raises(ChannelUnusable, match="no token of a Telegram bot"):
        Wire("sampleToken", TelegramConnections("https://api.telegram.org/"))


@pytest.mark.parametrize(
    ("told", "why"),
    [(Fault(404), "Telegram answered 404"), (Break(), "the connection ended before the file did")],
    ids=["not found", "cut"],
)
async def test_a_file_that_does_not_come_whole_may_another_time(told: Told, why: str) -> None:
    async with Telegram() as telegram, wired(telegram) as wire:
        telegram.files["f1"] = CONTENT
        telegram.then("file", told)
        with pytest.raises(ChannelSilent, match=f"^the file did not come: {why}$") as raised:
            await wire.download("f1", len(CONTENT))
        assert await wire.download("f1", len(CONTENT)) == CONTENT
    assert TOKEN not in str(raised.value)


async def test_a_file_that_is_larger_than_it_may_be_is_not_read_to_its_end() -> None:
    async with Telegram() as telegram, wired(telegram) as wire:
        telegram.files["f1"] = CONTENT
        with pytest.raises(ChannelRefused, match=r"the file is larger than 250 KB$"):
            await wire.download("f1", len(CONTENT) - 1)


@pytest.mark.parametrize("asked", [None, "soon", -3, 0, [5], {"s": 5}], ids=repr)
async def test_a_wish_to_be_asked_later_that_names_no_time_is_one_all_the_same(asked: object) -> None:
    async with Telegram() as telegram, wired(telegram) as wire:
        told = Fault(429, "Flood: please slow down", retry_after=asked)
        telegram.then("sendMessage", told, Fault(429, body="<html>slow down</html>"), Fault(429, body='["slow down"]'))
        for _ in range(3):
            with pytest.raises(ChannelBusy, match="slow down") as raised:
                await wire.post(str(ANN), "hello", is_html=False)
            assert raised.value.retry_after_s == 5
    assert telegram.posts == []


@pytest.mark.parametrize(("asked", "wait_s"), [(3, 3), (0.5, 0.5), (10**400, 86_400)])
async def test_a_wish_to_be_asked_later_is_told_with_its_time_and_its_words(asked: float, wait_s: float) -> None:
    async with Telegram() as telegram, wired(telegram) as wire:
        telegram.then("getFile", Fault(429, f"Too Many Requests: {TOKEN}", retry_after=asked))
        with pytest.raises(ChannelBusy, match="Telegram: Too Many Requests: <token>") as raised:
            await wire.download("f1", 1)
    assert raised.value.retry_after_s == wait_s


def test_an_answer_of_very_many_parts_is_refused_before_it_is_decoded() -> None:
    from backchannel.channels.telegram.wire import read_answer

    began = time.thread_time()
    with pytest.raises(TooMuchJson):
        read_answer('{"ok":true,"result":[%s1]}' % ("[]," * 1_500_000))
    assert time.thread_time() - began < 0.2
    updates = [{"update_id": n, "message": {"text": "x" * 4_000}} for n in range(100)]
    assert read_answer(json.dumps({"ok": True, "result": updates}))["result"] == updates
