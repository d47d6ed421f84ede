"""Answers to our own requests hold nobody up: those of a bridge, of an OAuth issuer, and of Telegram's server.

See test_outside_readers.py for how that is measured. An answer is as long as it may be, and one that is compressed is a
thousand times as long as it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from backchannel.channels.bridge.channel import Bridge
from backchannel.channels.bridge.settings import BridgeSettings
from backchannel.channels.telegram.channel import SECRET_HEADER
from backchannel.channels.telegram.wire import MOST_BYTES, TelegramConnections, Wire
from backchannel.config.defaults import probe_ollama
from backchannel.config.schema_doors import OAuthSettings
from backchannel.core.delivery.channels import ChannelError, OutboundPart, Sent
from backchannel.errors import Unavailable
from backchannel.gateway.oauth import MOST_METADATA_BYTES, Issuer
from backchannel.runtime.clocks import SystemClock
from tests.support.answering import Answering, bomb
from tests.support.beside import Beside, beside
from tests.support.telegram import TOKEN, Telegram

from .conftest import MakeWorld
from .test_outside_readers import WORST, post, watched, worst

pytestmark = pytest.mark.anyio
DEEP = b'{"x":%b1%b}' % (b"[" * 20_000, b"]" * 20_000)
BOMB = bomb(64 * 1024 * 1024)
PART = OutboundPart(delivery_id="d", key="d/1", to="c", text="hello")
SECRET = "a-secret-of-the-webhook"
PROOF = {SECRET_HEADER: SECRET}


@pytest.fixture
async def side(anyio_backend: str) -> AsyncIterator[Beside]:
    with beside() as opened:
        yield opened


def answers(size: int) -> list[tuple[bytes, str]]:
    """List bodies of a size, each with its encoding."""
    forms = [b'{"keys":[],"ok":true,"result":%b}' % worst(kind, size - 40) for kind in ("lists", "texts", "letters")]
    return [*((form, "") for form in forms), (DEEP, ""), (BOMB, "gzip")]


async def test_an_answer_of_a_bridge_holds_nobody_up_and_one_of_success_means_sent(side: Beside) -> None:
    far = side.open(Answering())
    bridge = Bridge("wall", BridgeSettings(url=far.url, secret="a-secret-of-the-wall"), SystemClock())
    await bridge.send(PART)
    for status in (200, 500):
        for body, encoding in answers(4 * 1024 * 1024):
            side.tell(far.answer, status, body, "text/plain", encoding)
            with watched():
                try:
                    assert isinstance(await bridge.send(PART), Sent) and status == 200
                except ChannelError as error:
                    assert status != 200 and len(error.reason) < 300
    await bridge.close()


@pytest.mark.parametrize("place", ["metadata", "keys"])
async def test_an_answer_of_an_oauth_issuer_holds_nobody_up(side: Beside, place: str) -> None:
    far = side.open(Answering())
    url = f"{far.url}/keys" if place == "keys" else None
    token = jwt.encode({"sub": "ann"}, ec.generate_private_key(ec.SECP256R1()), algorithm="ES256")
    for body, encoding in answers(MOST_METADATA_BYTES):
        side.tell(far.answer, 200, body, encoding=encoding)
        issuer = Issuer(OAuthSettings(issuer=far.url, jwks_url=url), "us", SystemClock())
        with watched(), suppress(Unavailable):
            assert await issuer.find(token) is None


@pytest.mark.parametrize("status", [200, 429])
async def test_an_answer_of_telegrams_server_holds_nobody_up(side: Beside, status: int) -> None:
    far = side.open(Answering())
    connections = TelegramConnections(far.url)
    wire = Wire(TOKEN, connections)
    for body, encoding in answers(MOST_BYTES):
        side.tell(far.answer, status, body, encoding=encoding)
        with watched(), suppress(ChannelError):
            await wire.updates(None, 0)
    side.tell(far.answer, status, b" " * (MOST_BYTES + 1))
    with pytest.raises(ChannelError, match="the answer is longer than"):
        await wire.updates(None, 0)
    await connections.close()


async def test_a_file_of_telegrams_server_holds_nobody_up(side: Beside) -> None:
    far = side.open(Answering())
    connections = TelegramConnections(far.url)
    wire = Wire(TOKEN, connections)
    side.tell(far.answer, 200, b'{"ok":true,"result":{"file_id":"f","file_unique_id":"u","file_path":"x"}}')
    assert await wire.download("f", 1000)  # the same answer, as a file
    side.tell(far.answer_under, "/file/", BOMB, "gzip")
    with watched(), pytest.raises(ChannelError):
        await wire.download("f", 1000)
    await connections.close()


async def test_a_post_of_telegram_holds_nobody_up_whatever_is_in_it(make_world: MakeWorld) -> None:
    webhook = {"url": "https://gateway.example/channels/telegram/inbound", "secret": SECRET}
    form = (
        b'{"update_id":%d,"message":{"message_id":%d,"date":1700000000,"chat":{"id":7,"type":"private"},'
        b'"from":{"id":7,"is_bot":false,"first_name":"A"},"text":%b,"entities":%b}}'
    )
    async with Telegram() as telegram:
        config: dict[str, Any] = {"channels": {"telegram": telegram.settings(webhook=webhook)}}
        async with make_world(config) as world:
            await telegram.until(lambda: telegram.webhook is not None, 20)
            size = world.gateway.config.gateway.limits.body_bytes - 300
            for number, kind in enumerate(WORST):
                for text, entities in ((worst(kind, size), b"[]"), (b'"hello"', worst(kind, size))):
                    with watched():
                        body = form % (number, number, text, entities)
                        assert await asyncio.to_thread(post, world, "/channels/telegram/inbound", body, PROOF) == 200


def test_an_ollama_that_answers_with_anything_is_taken_for_none(anyio_backend: str) -> None:
    with beside() as side:
        far = side.open(Answering())
        for body, encoding in answers(1024 * 1024):
            side.tell(far.answer, 200, body, encoding=encoding)
            assert probe_ollama(far.url) is None
