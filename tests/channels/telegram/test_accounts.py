"""Bots, their tokens, webhooks and menus, from the configuration to what Telegram is asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backchannel.channels.registry import why_no_channel
from backchannel.channels.telegram.channel import SECRET_HEADER, TelegramChannel
from backchannel.channels.telegram.settings import TelegramSettings, TelegramWebhookSettings
from backchannel.config import Surroundings, check_config
from backchannel.core.delivery.channels import (
    ChannelBusy,
    ChannelUnusable,
    InboundAnswer,
    InboundEvent,
    IncomingFile,
    OutboundPart,
)
from backchannel.core.delivery.outgoing import PartProof
from backchannel.errors import Unavailable
from backchannel.gateway.condition import examine
from backchannel.gateway.methods.channels import channel_states
from tests.channels.desk import ChannelDesk, desk
from tests.support.clocks import StageClock
from tests.support.logs import captured_logs
from tests.support.servers import Hang
from tests.support.telegram import ANN, TOKEN, Fault, Telegram

pytestmark = pytest.mark.anyio

SECRET = "a-secret-of-the-tests_1234"
OTHER_TOKEN = "4343:another-token-of-the-tests-BBBBBBBBBBB"


class FaultyTaker:
    """Takes nothing, because of a bug."""

    async def __call__(self, event: InboundEvent, files: Sequence[IncomingFile] = ()) -> InboundAnswer:
        raise ZeroDivisionError("a bug")

    async def moved(self, account_id: str, chat_id: str, to: str) -> None:
        raise ZeroDivisionError("a bug")

    async def proved(self, proof: PartProof) -> bool:
        raise ZeroDivisionError("a bug")


async def test_the_bot_says_who_it_is(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, {"telegram": telegram.settings()}) as at:
        telegram.say("hello")
        await telegram.posted(1)
        channel = at.gateway.channels["telegram"]
        told = channel.test()
        assert told is not None
        assert await told == "@Test_Bot, id 4242, reads in groups only commands and replies to it (privacy mode)"
        assert set(channel.own_names) == {"4242", "Test_Bot"}


async def test_commands_are_in_the_menu_and_those_of_owners_only_in_their_chats(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        settings = telegram.settings(owners=[str(ANN), "999", "not-a-number"])
        async with desk(tmp_path, {"telegram": settings}):
            await telegram.until(lambda: len(telegram.called("getUpdates")) > 0)
    assert set(telegram.menus) == {"default", str(ANN)}  # 999 never wrote to the bot, and has no chat with it
    assert "stop" in telegram.menus["default"] and "send" not in telegram.menus["default"]
    assert {"stop", "send"} <= set(telegram.menus[str(ANN)])


async def test_a_menu_that_cannot_be_set_keeps_nobody_from_being_answered(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        telegram.then("setMyCommands", Fault(500))
        async with desk(tmp_path, {"telegram": telegram.settings()}):
            telegram.say("hello")
            await telegram.posted(1)


async def test_a_server_of_ones_own_has_tokens_of_any_form(tmp_path: Path) -> None:
    async with Telegram("a-token-of-another-form") as telegram:
        file, channel = tmp_path / "backchannel.json5", telegram.settings(allowFrom=["7"])
        file.write_text(json.dumps({"channels": {"telegram": channel}}))
        assert check_config(file, {}, state=tmp_path) == []
        async with desk(tmp_path, {"telegram": telegram.settings()}):
            telegram.say("hello")
            await telegram.posted(1)


@pytest.mark.parametrize("token", ["no token at all", "4242:wrong"])
async def test_a_wrong_token_is_told_in_words_and_stops_nothing_else(token: str, tmp_path: Path) -> None:
    async with Telegram() as telegram:
        right = telegram.settings(accounts={"wrong": {"token": token}})
        with captured_logs() as logs:
            async with desk(tmp_path, {"telegram": right}) as at:
                telegram.say("hello")
                await telegram.posted(1)
                await telegram.until(lambda: len(telegram.called("getMe")) >= 2)
                health = at.gateway.parts.keeper.health_of("telegram")
                assert not health.is_up and not health.is_usable
                assert health.error is not None and health.error.startswith("account wrong: ")
        (line,) = [line for line in logs if line["event"] == "a channel cannot be used"]
        assert line["account"] == "wrong" and token not in str(logs) and "exc_info" not in line


async def test_without_aiogram_the_channel_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("backchannel.channels.telegram.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiogram", None)
    channel = TelegramChannel("telegram", TelegramSettings(token=TOKEN), StageClock())
    with pytest.raises(ChannelUnusable, match=r"pip install 'backchannel\[telegram\]'") as raised:
        await channel.test()
    assert sys.executable in raised.value.reason and raised.value.remedy == "install it"
    with pytest.raises(ChannelBusy, match="not installed"):
        await channel.send(OutboundPart(delivery_id="d", key="d/1", to="7", text="x"))


def test_a_check_of_the_configuration_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "backchannel.json5"
    channel = {"adapter": "telegram", "token": TOKEN, "owners": ["7"]}
    file.write_text(json.dumps({"channels": {"telegram": channel}}))
    here = Surroundings(
        why_not_asked=lambda provider, own: None,
        tools=(),
        why_no_sandbox=lambda backend: None,
        why_no_channel=why_no_channel,
    )
    assert check_config(file, {}, state=tmp_path, here=here) == []
    monkeypatch.setattr("backchannel.config.adapters.find_spec", lambda name: None)
    (finding,) = check_config(file, {}, state=tmp_path, here=here)
    assert finding.level == "warning" and "pip install 'backchannel[telegram]'" in finding.message


# How it is


async def test_a_bot_is_connecting_until_telegram_answers_and_neither_up_nor_down(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        telegram.then("getMe", Hang())
        async with desk(tmp_path, {"telegram": telegram.settings()}) as at:
            (before,) = channel_states(at.gateway.parts)
            await telegram.until(lambda: telegram.called("getMe") != [])
            (asked,) = channel_states(at.gateway.parts)
            assert before.status == asked.status == "connecting" and asked.last_error is None
            assert at.gateway.parts.keeper.down() == {} and (await examine(at.gateway.parts)).problems == []


async def test_a_bot_to_whom_nobody_writes_is_up_when_telegram_has_answered(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, {"telegram": telegram.settings()}) as at:
        await telegram.until(lambda: telegram.called("getUpdates") != [])
        (state,) = channel_states(at.gateway.parts)
        assert (state.status, state.last_error, state.last_error_at) == ("ok", None, None)


async def test_what_went_wrong_is_told_with_its_time_when_the_bot_is_up_again(tmp_path: Path) -> None:
    clock = StageClock()
    async with Telegram() as telegram:
        telegram.then("getMe", Fault(502, body="<html>Bad Gateway</html>"))
        started = clock.now_ms()
        async with desk(tmp_path, {"telegram": telegram.settings()}, clock=clock) as at:
            telegram.say("hello")
            await telegram.posted(1)
            (state,) = channel_states(at.gateway.parts)
    assert state.status == "ok" and state.since is not None and "Bad Gateway" in (state.last_error or "")
    assert state.last_error_at is not None and started <= state.last_error_at < state.since


# Webhooks


async def test_telegram_posts_where_the_settings_say_and_is_answered_after_the_commit(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        webhook = {"url": "https://gateway.example/channels/telegram/inbound", "secret": SECRET}
        async with desk(tmp_path, {"telegram": telegram.settings(webhook=webhook)}) as at:
            await telegram.until(lambda: telegram.webhook is not None)
            telegram.say("hello")
            body = json.dumps(telegram.updates[0]).encode()
            for host in ("127.0.0.1", "gateway.example"):  # a proxy may pass on by which name it was asked
                headers = {SECRET_HEADER: SECRET, "Host": host}
                answer = await at.http.post("/channels/telegram/inbound", content=body, headers=headers)
                assert answer.status_code == 200, answer.text
            await telegram.posted(1)
            wrong = await at.http.post("/channels/telegram/inbound", content=body, headers={SECRET_HEADER: "wrong"})
            without = await at.http.post("/channels/telegram/inbound", content=body)
            assert (wrong.status_code, without.status_code) == (401, 401)
            for nonsense in (b"{", b"[]", b"[" * 200_000, b"\xff", b'{"update_id": 1, "message": 5}'):
                headers = {SECRET_HEADER: SECRET}
                answer = await at.http.post("/channels/telegram/inbound", content=nonsense, headers=headers)
                assert answer.status_code == 200, "Telegram would post it again for ever"
    assert telegram.texts == ["re: hello"] and telegram.called("getUpdates") == []
    assert telegram.webhook is not None and telegram.webhook["secret_token"] == SECRET
    assert "drop_pending_updates" not in telegram.webhook
    assert telegram.webhook["max_connections"] == "1", "with more, messages of a chat would come in any order"


async def test_a_test_says_how_the_posts_of_telegram_fare(tmp_path: Path) -> None:
    url = "https://gateway.example/channels/telegram/inbound"
    async with Telegram() as telegram:
        settings = telegram.settings(webhook={"url": url, "secret": SECRET})
        async with desk(tmp_path, {"telegram": settings}) as at:
            await telegram.until(lambda: telegram.webhook is not None)
            fine = await _tested(at)
            telegram.say("hello")
            words = f"Wrong response from the webhook: 502 {TOKEN}"
            telegram.webhook_error = {"last_error_date": 1_700_000_000, "last_error_message": words}
            failing = await _tested(at)
            telegram.webhook = None
            removed = await _tested(at)
    assert fine.endswith("; its webhook is set, messages waiting: 0")
    assert "its webhook is set, messages waiting: 1, posting failed last at 2023-11-14 22:13 UTC: Wrong resp" in failing
    assert "502" in failing and TOKEN not in failing
    assert removed.endswith("; its webhook is not set: restart the gateway")


async def _tested(at: ChannelDesk) -> str:
    told = at.gateway.channels["telegram"].test()
    assert told is not None
    return await told


async def test_a_post_that_a_fault_keeps_from_being_taken_is_asked_for_again_but_not_for_ever() -> None:
    async with Telegram() as telegram:
        webhook = TelegramWebhookSettings(url="https://gateway.example/", secret=SECRET)
        settings = TelegramSettings(token=TOKEN, api_root=telegram.api_root, webhook=webhook)
        channel = TelegramChannel("telegram", settings, StageClock())
        told = channel.test()
        assert told is not None and await told
        telegram.say("hello")
        body, headers, taker = json.dumps(telegram.updates[0]).encode(), {SECRET_HEADER: SECRET}, FaultyTaker()
        with captured_logs() as logs:
            for _ in range(5):
                with pytest.raises(Unavailable):
                    await channel.post(body, headers, taker)
            assert await channel.post(body, headers, taker) == {"ok": True}
        assert "left out" in (channel.health().error or "")
        assert ["exc_info" in line for line in logs] == [True, False]
        await channel.close()


async def test_what_is_posted_before_the_bot_knows_itself_is_to_be_posted_again(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        telegram.then("getMe", *[Fault(500)] * 100)
        webhook = {"url": "https://gateway.example/", "secret": SECRET}
        async with desk(tmp_path, {"telegram": telegram.settings(webhook=webhook)}) as at:
            telegram.say("hello")
            body = json.dumps(telegram.updates[0]).encode()
            answer = await at.http.post("/channels/telegram/inbound", content=body, headers={SECRET_HEADER: SECRET})
            assert answer.status_code == 503


async def test_without_a_webhook_nothing_can_be_posted(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, {"telegram": telegram.settings()}) as at:
        answer = await at.http.post("/channels/telegram/inbound", content=b"{}", headers={SECRET_HEADER: ""})
        assert answer.status_code in (401, 404)


def _hook(url: str) -> dict[str, Any]:
    return {"webhook": {"url": url, "secret": SECRET}}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"accounts": {"default": {"token": OTHER_TOKEN}}}, "give this one another name"),
        ({"accounts": {"work": {"token": TOKEN}}}, "must differ from `channels.telegram.token`"),
        ({"webhook": {"url": "https://x.y", "secret": "with spaces and so on"}}, "letters, digits, `_` and `-`"),
        ({"token": ""}, "expected text"),
    ],
)
def test_settings_that_cannot_work_are_told(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    file = tmp_path / "backchannel.json5"
    channel = {"adapter": "telegram", "token": TOKEN, "owners": ["7"], **changed}
    file.write_text(json.dumps({"channels": {"telegram": channel}}))
    (finding,) = check_config(file, {}, state=tmp_path)
    assert told in finding.message and TOKEN not in finding.message


@pytest.mark.parametrize(
    "token",
    ["4242" * 5, f"bot{OTHER_TOKEN}", OTHER_TOKEN.replace(":", ": "), "${TELEGRAM_TOKEN", OTHER_TOKEN[:39]],
)
def test_what_cannot_be_a_token_is_warned_of_without_showing_it(tmp_path: Path, token: str) -> None:
    file = tmp_path / "backchannel.json5"
    channel = {"adapter": "telegram", "token": TOKEN, "owners": ["7"], "accounts": {"work": {"token": token}}}
    file.write_text(json.dumps({"channels": {"telegram": channel}}))
    (finding,) = check_config(file, {}, state=tmp_path)
    assert (finding.level, finding.path) == ("warning", "channels.telegram.accounts.work.token")
    assert "expected <number>:<letters and digits>" in finding.message and token not in finding.message


@pytest.mark.parametrize(
    ("changed", "path", "told"),
    [
        ({"owners": ["7", "@ann"]}, "owners[1]", "got '@ann', Telegram knows people by a number"),
        ({"allowFrom": ["*", "-1001", "Ann"]}, "allowFrom[2]", "`backchannel pairing list --all` shows the number"),
        (_hook("http://a.example/channels/telegram/inbound"), "webhook.url", "Telegram posts by https only"),
        (_hook("https://a.example/hook"), "webhook.url", "posts are taken at /channels/telegram/inbound"),
        (_hook("https:///channels/telegram/inbound"), "webhook.url", "no host is named in it"),
        (_hook("https://[a/channels/telegram/inbound"), "webhook.url", "no host is named in it"),
        (_hook("https://a.example/below/channels/telegram/inbound"), None, None),
        (_hook("http://a/channels/telegram/inbound") | {"apiRoot": "http://127.0.0.1:8081"}, None, None),
    ],
)
def test_what_telegram_would_never_send_or_take_is_warned_of(
    tmp_path: Path, changed: dict[str, Any], path: str | None, told: str | None
) -> None:
    file = tmp_path / "backchannel.json5"
    channel = {"adapter": "telegram", "token": TOKEN, "owners": ["7"], **changed}
    settings = {"session": {"dmScope": "per-peer"}, "channels": {"telegram": channel}}
    file.write_text(json.dumps(settings))
    found = check_config(file, {}, state=tmp_path)
    if path is None or told is None:
        assert found == []
    else:
        assert [(finding.level, finding.path) for finding in found] == [("warning", f"channels.telegram.{path}")]
        assert told in found[0].message


def test_the_settings_hide_every_token_and_secret() -> None:
    webhook = {"url": "https://gateway.example/", "secret": SECRET}
    settings = msgspec.convert(
        {
            "adapter": "telegram",
            "token": TOKEN,
            "webhook": webhook,
            "accounts": {"work": {"token": OTHER_TOKEN}},
        },
        TelegramSettings,
    )
    assert not [word for word in (TOKEN, OTHER_TOKEN, SECRET) if word in repr(settings)]
