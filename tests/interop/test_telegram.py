"""Telegram as others emulate it: `telegram-test-api`, in Node, with aiogram on our side."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from tests.channels.desk import desk

from .conftest import Node, Script

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]

TOKEN = "4242:a-token-of-the-tests-AAAAAAAAAAAAAAAAAAA"


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Import aiogram before the clock of a test runs: it takes seconds."""
    import_module("backchannel.channels.telegram.account")


def _settings(url: str, **more: Any) -> dict[str, Any]:
    return {"telegram": {"adapter": "telegram", "token": TOKEN, "apiRoot": url, "allowFrom": ["7"], **more}}


async def _texts(emulator: Script, wanted: str) -> list[str]:
    """Read on until the bot's last message is this one."""
    while True:
        told = await emulator.line()
        texts: list[str] = told.get("posted") or told["edited"]
        if texts[-1] == wanted:
            return texts


async def test_messages_are_answered_once_and_a_command_is_carried_out(node: Node, tmp_path: Path) -> None:
    async with node.started("telegram_server.mjs", TOKEN) as emulator:
        url = (await emulator.line())["url"]
        async with desk(tmp_path, _settings(url, streaming=False)):
            emulator.say("hello **you**")
            assert await _texts(emulator, "re: hello <b>you</b>") == ["re: hello <b>you</b>"]
            emulator.say("and again")
            assert len(await _texts(emulator, "re: and again")) == 2
            emulator.say("/new")
            told = await emulator.line()
            assert len(told["posted"]) == 3 and "new" in told["posted"][2].lower()


async def test_a_reply_grows_in_one_message(node: Node, tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(replies=[Reply(text=("It is,", " **long**."), gate=gate, held_at=1)])
    async with node.started("telegram_server.mjs", TOKEN) as emulator:
        url = (await emulator.line())["url"]
        async with desk(tmp_path, _settings(url), model=model):
            emulator.say("hello")
            assert await _texts(emulator, "It is,") == ["It is,"]
            gate.set()
            assert await _texts(emulator, "It is, <b>long</b>.") == ["It is, <b>long</b>."]
