"""Posts and edits of a bot, and the receipts that follow from Telegram's answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backchannel.channels.telegram.channel import TelegramChannel
from backchannel.channels.telegram.settings import TelegramSettings
from backchannel.core.contracts import Clock
from backchannel.core.delivery.channels import (
    ChannelBusy,
    ChannelMoved,
    ChannelRefused,
    ChannelSilent,
    Draft,
    DraftGone,
    OutboundPart,
    Sent,
)
from tests.support.clocks import StageClock
from tests.support.servers import Break, Hang
from tests.support.telegram import ANN, BOB, GROUP, TOKEN, Fault, Telegram

pytestmark = pytest.mark.anyio
NOON = "2026-06-01T12:00"


@asynccontextmanager
async def opened(telegram: Telegram, clock: Clock | None = None, **settings: Any) -> AsyncIterator[TelegramChannel]:
    fields: Any = {"token": TOKEN, "api_root": telegram.api_root, **settings}
    channel = TelegramChannel("telegram", TelegramSettings(**fields), clock or StageClock())
    try:
        yield channel
    finally:
        await channel.close()


@pytest.fixture
async def telegram() -> AsyncIterator[Telegram]:
    async with Telegram() as stand_in:
        yield stand_in


@pytest.fixture
async def channel(telegram: Telegram) -> AsyncIterator[TelegramChannel]:
    async with opened(telegram) as made:
        yield made


def part(text: str = "hello", to: int = ANN, **more: Any) -> OutboundPart:
    return OutboundPart(delivery_id="d", key="d/1", to=str(to), text=text, **more)


def draft(text: str = "hel", to: int = ANN, **more: Any) -> Draft:
    return Draft(to=str(to), text=text, **more)


async def test_a_part_is_posted_as_html_and_its_id_is_told(telegram: Telegram, channel: TelegramChannel) -> None:
    assert await channel.send(part("**bold** & <plain>")) == Sent("1")
    (post,) = telegram.posts
    assert post.sent == "<b>bold</b> &amp; &lt;plain&gt;" and post.text == "bold & <plain>"


async def test_what_telegram_does_not_take_as_html_is_posted_as_it_is(
    telegram: Telegram, channel: TelegramChannel
) -> None:
    telegram.then("sendMessage", Fault(400, "Bad Request: can't parse entities: Unsupported start tag"))
    await channel.send(part("**bold**"))
    (post,) = telegram.posts
    assert post.text == "**bold**" and not post.is_html


async def test_a_reply_in_a_group_quotes_and_goes_to_its_topic(telegram: Telegram, channel: TelegramChannel) -> None:
    telegram.topics.add((GROUP, 12))
    await channel.send(part(to=GROUP, thread_id="12", reply_to="33"))
    await channel.send(part(to=GROUP, thread_id="1"))  # the topic General, which Telegram wants left out
    first, second = telegram.posts
    assert (first.thread_id, first.reply_to) == (12, 33) and second.thread_id is None
    assert '"allow_sending_without_reply": true' in telegram.called("sendMessage")[0]["reply_parameters"]
    with pytest.raises(ChannelRefused, match="no topic"):
        await channel.send(part(to=GROUP, thread_id="abc"))


@pytest.mark.parametrize(
    ("status", "description"),
    [
        (400, "Bad Request: chat not found"),
        (403, "Forbidden: bot was blocked by the user"),
        (403, "Forbidden: bot was kicked from the supergroup chat"),
        (413, "Request Entity Too Large"),
    ],
)
async def test_what_telegram_refuses_is_refused_with_its_words(
    telegram: Telegram, channel: TelegramChannel, status: int, description: str
) -> None:
    telegram.then("sendMessage", Fault(status, description))
    with pytest.raises(ChannelRefused, match=description):
        await channel.send(part())
    assert len(telegram.called("sendMessage")) == 1


@pytest.mark.parametrize(("status", "description"), [(401, "Unauthorized"), (404, "Not Found")])
async def test_what_meets_a_token_that_is_refused_may_be_taken_later(
    telegram: Telegram, channel: TelegramChannel, status: int, description: str
) -> None:
    shown = await channel.show_draft(draft("hel"))
    for method in ("sendMessage", "editMessageText", "deleteMessage"):
        telegram.then(method, Fault(status, description))
    calls = (
        lambda: channel.send(part()),
        lambda: channel.send(part(draft_id=shown.message_id)),
        lambda: channel.remove_draft(draft(draft_id=shown.message_id)),
    )
    for call in calls:
        with pytest.raises(ChannelBusy, match=f"refuses the bot's token: {description}") as busy:
            await call()
        assert busy.value.retry_after_s is None and not busy.value.is_account_wide
    assert telegram.texts == ["hel"]


async def test_a_group_that_was_migrated_is_told_with_its_new_id(telegram: Telegram, channel: TelegramChannel) -> None:
    said = "Bad Request: group chat was upgraded to a supergroup chat"
    telegram.then("sendMessage", Fault(400, said, migrate_to=-1005))
    with pytest.raises(ChannelMoved) as moved:
        await channel.send(part(to=GROUP))
    assert moved.value.to == "-1005"


async def test_a_wait_is_for_one_chat_until_a_second_is_told_to_wait_too(telegram: Telegram) -> None:
    clock = StageClock()
    async with opened(telegram, clock) as channel:
        for to, after_s, is_account_wide in ((ANN, 0, False), (ANN, 5, False), (BOB, 0, True)):
            clock.move_on(after_s)
            telegram.then("sendMessage", Fault(429, "Too Many Requests: retry after 5", retry_after=5))
            with pytest.raises(ChannelBusy, match="retry after 5") as busy:
                await channel.send(part(to=to))
            assert (busy.value.retry_after_s, busy.value.is_account_wide) == (5, is_account_wide)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(500),
        Fault(502, body="<html>Bad Gateway</html>"),
        Break(takes=True),
        Fault(200, body='{"ok": true', takes=True),
    ],
)
async def test_an_answer_that_is_lost_or_broken_leaves_it_open(
    telegram: Telegram, channel: TelegramChannel, fault: Fault | Break
) -> None:
    telegram.then("sendMessage", fault)
    with pytest.raises(ChannelSilent):
        await channel.send(part())
    assert len(telegram.called("sendMessage")) == 1, "it is not for the channel to try it again"


async def test_an_answer_that_does_not_come_in_time_leaves_it_open(
    telegram: Telegram, channel: TelegramChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backchannel.channels.telegram.wire._ANSWER_LIMIT_S", 0.2)
    telegram.then("sendMessage", Hang(takes=True))
    with pytest.raises(ChannelSilent, match="timeout"):
        await channel.send(part())


async def test_without_a_connection_nothing_can_have_been_posted() -> None:
    async with Telegram() as gone:
        pass
    async with opened(gone) as channel:
        with pytest.raises(ChannelBusy, match="cannot be reached") as busy:
            await channel.send(part())
    assert TOKEN not in busy.value.reason and busy.value.__cause__ is None


async def test_the_token_is_in_nothing_that_is_said(telegram: Telegram, channel: TelegramChannel) -> None:
    for fault in (Fault(400, f"Bad Request: {TOKEN}"), Fault(500, body=f"{TOKEN}"), Break(takes=False)):
        telegram.then("sendMessage", fault)
        with pytest.raises((ChannelRefused, ChannelSilent)) as raised:
            await channel.send(part())
        assert TOKEN not in str(raised.value)
    assert TOKEN not in repr(channel.settings)


async def test_an_account_that_is_not_configured_sends_nothing(channel: TelegramChannel) -> None:
    with pytest.raises(ChannelRefused, match="no account 'other' is configured"):
        await channel.send(part(account_id="other"))


# Drafts


async def test_a_draft_grows_and_the_reply_takes_its_place(telegram: Telegram, channel: TelegramChannel) -> None:
    shown = await channel.show_draft(draft("**hel"))
    assert await channel.show_draft(draft("**hello**", draft_id=shown.message_id)) == shown
    assert await channel.send(part("**hello** you", draft_id=shown.message_id)) == shown
    (post,) = telegram.posts
    assert (post.text, post.edits) == ("hello you", ["**hel", "hello"])


async def test_an_edit_that_was_made_already_is_made(telegram: Telegram, channel: TelegramChannel) -> None:
    shown = await channel.show_draft(draft("hello"))
    assert await channel.send(part("hello", draft_id=shown.message_id)) == shown
    assert telegram.texts == ["hello"]


async def test_a_draft_that_somebody_deleted_is_told_and_nothing_is_posted(
    telegram: Telegram, channel: TelegramChannel
) -> None:
    shown = await channel.show_draft(draft("hel"))
    telegram.delete(telegram.posts[0])
    with pytest.raises(DraftGone, match="message to edit not found"):
        await channel.send(part(draft_id=shown.message_id))
    telegram.then("editMessageText", Fault(400, "Bad Request: MESSAGE_ID_INVALID"))
    with pytest.raises(DraftGone, match="MESSAGE_ID_INVALID"):
        await channel.send(part(draft_id=shown.message_id))
    assert telegram.texts == []


async def test_a_draft_that_may_not_be_edited_is_not_told_to_be_gone(
    telegram: Telegram, channel: TelegramChannel
) -> None:
    shown = await channel.show_draft(draft("hel"))
    for fault in (Fault(400, "Bad Request: message can't be edited"), Fault(413, "Request Entity Too Large")):
        telegram.then("editMessageText", fault)
        with pytest.raises(ChannelRefused, match=fault.description) as refused:
            await channel.send(part(draft_id=shown.message_id))
        assert not isinstance(refused.value, DraftGone)


async def test_a_draft_is_removed_also_when_it_is_gone_already(telegram: Telegram, channel: TelegramChannel) -> None:
    shown = await channel.show_draft(draft("hel"))
    for _ in range(2):
        await channel.remove_draft(draft(draft_id=shown.message_id))
    assert telegram.texts == []


async def test_drafts_in_a_group_keep_telegrams_pace(telegram: Telegram) -> None:
    async with opened(telegram, StageClock.held(NOON)) as channel:
        shown = await channel.show_draft(draft("a", to=GROUP))
        with pytest.raises(ChannelBusy) as busy:
            await channel.show_draft(draft("ab", to=GROUP, draft_id=shown.message_id))
        assert busy.value.retry_after_s == 3
        await channel.send(part("abc", to=GROUP, draft_id=shown.message_id))  # the reply itself waits for nothing
    assert telegram.texts == ["abc"]


async def test_typing_is_shown_in_the_chat_and_topic(telegram: Telegram, channel: TelegramChannel) -> None:
    await channel.show_typing(str(GROUP), None, "12")
    assert telegram.called("sendChatAction") == [{"chat_id": str(GROUP), "action": "typing", "message_thread_id": "12"}]


FLOOD = Fault(429, "Too Many Requests: retry after 60", retry_after=60)


async def test_a_chat_that_has_to_wait_is_asked_for_nothing_meanwhile_in_none_of_its_topics(telegram: Telegram) -> None:
    clock = StageClock.held(NOON)
    telegram.topics |= {(GROUP, 5), (GROUP, 7)}
    async with opened(telegram, clock) as channel:
        telegram.then("sendMessage", FLOOD)
        with pytest.raises(ChannelBusy, match="retry after 60"):
            await channel.show_draft(draft(to=GROUP, thread_id="5"))
        for call in (
            lambda: channel.send(part(to=GROUP, thread_id="7")),
            lambda: channel.send(part(to=GROUP, thread_id="5", draft_id="1")),
            lambda: channel.remove_draft(draft(to=GROUP, draft_id="1")),
            lambda: channel.show_typing(str(GROUP), None, "7"),
        ):
            with pytest.raises(ChannelBusy, match="asked to wait") as busy:
                await call()
            assert busy.value.retry_after_s == 60
            assert not busy.value.is_account_wide
        assert [call.method for call in telegram.calls] == ["sendMessage"]
        await channel.send(part(to=ANN))
        clock.move_on(60)
        await channel.send(part(to=GROUP, thread_id="7"))
    assert [post.chat_id for post in telegram.posts] == [ANN, GROUP]


async def test_a_wait_that_typing_meets_is_for_typing_alone(telegram: Telegram) -> None:
    clock = StageClock()
    async with opened(telegram, clock) as channel:
        telegram.then("sendChatAction", FLOOD)
        for _ in range(3):
            with pytest.raises(ChannelBusy):
                await channel.show_typing(str(ANN), None, None)
        await channel.send(part())
        assert len(telegram.called("sendChatAction")) == 1 and telegram.texts == ["hello"]
        clock.move_on(60)
        await channel.show_typing(str(ANN), None, None)
    assert len(telegram.called("sendChatAction")) == 2


@pytest.mark.parametrize(("text", "length"), [("abc", 3), ("é", 1), ("😀", 2), ("👩‍👩‍👧", 8)])
async def test_texts_are_measured_as_telegram_does(channel: TelegramChannel, text: str, length: int) -> None:
    assert channel.text_length(text) == length
