"""A person writes to a bot, and is answered: through aiogram, over a real socket, to a strict stand-in of Telegram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.contracts import ModelRequest
from backchannel.core.delivery.delivery import DeliveryState, Post
from backchannel.core.facts import MessageAppended
from backchannel.core.messages import ImageBlock
from backchannel.core.sessions import Address
from backchannel.gateway.methods.channels import channel_states
from tests.channels.desk import desk
from tests.gateway.client import connected
from tests.support.clocks import StageClock
from tests.support.gateways import MAIN, texts_of
from tests.support.logs import captured_logs
from tests.support.telegram import ANN, BOT_NAME, EVE, GROUP, NAMES, TOKEN, Fault, Telegram, entity

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"a picture of a cat"
GROUP_KEY = f"agent:main:telegram:group:{GROUP}"


def plain(telegram: Telegram, **more: Any) -> dict[str, Any]:
    """Make the settings of a bot whose replies come in one piece."""
    return {"telegram": telegram.settings(streaming=False, **more)}


def to_bot(text: str) -> dict[str, Any]:
    words = f"@{BOT_NAME} {text}"
    return {"text": words, "entities": [entity(words, f"@{BOT_NAME}", "mention")]}


async def test_a_message_is_answered_and_acknowledged_once_it_is_committed(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, plain(telegram)):
        telegram.say("hello **you**")
        await telegram.posted(1)
        await telegram.drained()
    (post,) = telegram.posts
    assert (post.chat_id, post.text, post.sent) == (ANN, "re: hello you", "re: hello <b>you</b>")
    assert post.reply_to is None, "in a direct chat nobody needs to be told what is answered"


async def test_what_was_written_while_the_gateway_was_down_is_answered_when_it_is_back(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        telegram.say("one")
        async with desk(tmp_path, plain(telegram)):
            await telegram.posted(1)
            await telegram.drained()
        telegram.say("two")
        async with desk(tmp_path, plain(telegram)):
            await telegram.posted(2)
    assert telegram.texts == ["re: one", "re: two"]


async def test_in_a_group_the_message_that_is_answered_is_quoted(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, plain(telegram)):
        telegram.say("not for the bot", chat=GROUP)
        asked = telegram.say(chat=GROUP, **to_bot("what now?"))
        await telegram.posted(1)
    (post,) = telegram.posts
    assert (post.chat_id, post.reply_to) == (GROUP, asked)


async def test_a_stranger_is_not_answered_and_an_edit_is_not_taken(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, plain(telegram, allowFrom=[str(ANN)])) as at:
        telegram.say("let me in", sender=EVE)
        said = telegram.say("hello")
        telegram.update(edited_message={"message_id": said, "chat": telegram.chats[ANN], "date": 1, "text": "changed"})
        await telegram.posted(1)
        assert await texts_of(at.gateway) == ["hello", "re: hello"]


async def test_a_picture_is_shown_to_the_model(tmp_path: Path) -> None:
    seen: list[ModelRequest] = []

    def reply(request: ModelRequest) -> str:
        seen.append(request)
        return "a cat"

    size = {"file_id": "f1", "file_unique_id": "u1", "width": 90, "height": 90, "file_size": len(PNG)}
    async with Telegram() as telegram:
        telegram.files["f1"] = PNG
        async with desk(tmp_path, plain(telegram), model=ScriptedModel(replies=reply)):
            telegram.say(photo=[size], caption="what is it?")
            assert await telegram.posted(1) == ["a cat"]
    blocks = seen[0].messages[-1].content
    assert any(isinstance(block, ImageBlock) for block in blocks) and "what is it?" in seen[0].messages[-1].text


async def test_a_picture_that_cannot_be_kept_is_shown_in_the_list_and_then_told(tmp_path: Path) -> None:
    size = {"file_id": "f1", "file_unique_id": "u1", "width": 90, "height": 90, "file_size": len(PNG)}
    async with Telegram() as telegram:
        telegram.files["f1"] = PNG
        async with desk(tmp_path, plain(telegram), clock=StageClock()) as at:
            (tmp_path / "media").write_text("a file in the place of the folder")
            telegram.say(photo=[size], caption="what is it?")
            (text,) = await telegram.posted(1)
            await telegram.drained()
            (state,) = channel_states(at.gateway.parts)
    assert "what is it?" in text and "the picture cannot be kept" in text
    assert state.status == "ok" and "Not a directory" in (state.last_error or "")


async def test_half_a_character_is_replaced_and_the_bot_goes_on(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, plain(telegram)):
        telegram.say("a\ud800b")
        telegram.say("after it")
        await telegram.posted(2)
        await telegram.drained()
    assert sorted(telegram.texts) == ["re: after it", "re: a\ufffdb"]


async def test_a_file_that_telegram_does_not_give_is_told_and_the_message_is_taken(tmp_path: Path) -> None:
    size = {"file_id": "gone", "file_unique_id": "u1", "width": 90, "height": 90}
    async with Telegram() as telegram, desk(tmp_path, plain(telegram)):
        telegram.say(photo=[size], caption="what is it?")
        (text,) = await telegram.posted(1)
    assert "what is it?" in text and "not fetched" in text


async def test_a_group_that_becomes_a_supergroup_keeps_its_session_and_its_answers(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        old, new = -5, -1005
        telegram.chats |= {old: {"id": old, "type": "group", "title": "G"}}
        async with desk(tmp_path, plain(telegram)) as at:
            telegram.say(chat=old, **to_bot("before"))
            await telegram.posted(1)
            telegram.chats |= {new: {"id": new, "type": "supergroup", "title": "G"}}
            telegram.say(chat=old, migrate_to_chat_id=new)
            telegram.say(chat=new, migrate_from_chat_id=old)
            telegram.say(chat=new, **to_bot("after"))
            await telegram.posted(2)
            assert len(await texts_of(at.gateway, f"agent:main:telegram:group:{old}")) == 4
    assert [post.chat_id for post in telegram.posts] == [old, new]


async def test_a_delivery_to_a_group_that_was_migrated_follows_it(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        telegram.chats |= {-1005: {"id": -1005, "type": "supergroup", "title": "G"}}
        said = "Bad Request: group chat was upgraded to a supergroup chat"
        telegram.then("sendMessage", Fault(400, said, migrate_to=-1005))
        async with desk(tmp_path, plain(telegram)) as at:
            address = Address(channel="telegram", to="-5")
            receipt = await at.send(Post(session_key=MAIN, address=address, text="hello"))
            await at.becomes(DeliveryState.SENT, receipt)
    assert [(post.chat_id, post.text) for post in telegram.posts] == [(-1005, "hello")]


async def test_when_two_chats_are_to_wait_a_third_is_not_even_tried(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        telegram.then("sendMessage", *[Fault(429, "Too Many Requests: retry after 3", retry_after=3)] * 2)
        async with desk(tmp_path, plain(telegram)) as at:
            posts = [Post(session_key=MAIN, address=Address(channel="telegram", to=str(to)), text="x") for to in NAMES]
            ids: list[str] = []
            for post in posts[:2]:
                ids.append(await at.send(post))
                await at.heard.until(lambda: at.states(ids[-1]).count(DeliveryState.PENDING) > 1)
            ids.append(await at.send(posts[2]))
            for each in ids:
                receipt = await at.becomes(DeliveryState.SENT, each)
    assert receipt.delivery.attempts == 1
    _, second, *later = [call.at for call in telegram.calls if call.method == "sendMessage"]
    assert len(later) == 3 and min(later) - second > 2.5


async def test_a_reply_waits_while_the_token_is_refused_and_goes_out_by_itself(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        telegram.then("sendMessage", Fault(401, "Unauthorized"))
        async with desk(tmp_path, plain(telegram)) as at:
            telegram.say("hello")
            receipt = await at.becomes(DeliveryState.SENT)
    assert telegram.texts == ["re: hello"] and receipt.delivery.attempts == 2


async def test_another_program_with_the_same_bot_is_told_in_words_until_it_is_gone(tmp_path: Path) -> None:
    async with Telegram() as telegram:
        conflict = Fault(409, "Conflict: terminated by other getUpdates request")
        telegram.then("getUpdates", *[conflict] * 4)
        told: list[str] = []
        with captured_logs() as logs:
            async with desk(tmp_path, plain(telegram), clock=StageClock()) as at:
                telegram.say("hello")
                await telegram.posted(1)
                told += [line["error"] for line in logs if line["event"] == "a channel failed"]
                assert at.gateway.parts.keeper.health_of("telegram").is_up
    assert told and all("another program asks for the messages of this bot" in line for line in told)
    assert TOKEN not in str(logs)


async def test_the_button_start_is_answered_with_the_commands_and_no_model_reads_it(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, plain(telegram)) as at:
        telegram.say("/start")
        (text,) = await telegram.posted(1)
        assert "/stop" in text and not at.heard.of(MessageAppended)


async def test_the_length_of_a_message_is_shown_as_telegram_allows_it(tmp_path: Path) -> None:
    async with (
        Telegram() as telegram,
        desk(tmp_path, {"telegram": telegram.settings(maxTextLength=9000)}) as at,
        connected(at.url) as client,
    ):
        shown = (await client.ask("channels.list"))["channels"][-1]
    assert (shown["name"], shown["settings"]["maxTextLength"]) == ("telegram", 4096)


async def test_a_topic_is_one_whatever_the_channel_is_called(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, {"tg": telegram.settings(requireMention=False)}) as at:
        telegram.topics.add((GROUP, 12))
        telegram.say("hello", chat=GROUP, message_thread_id=12, is_topic_message=True)
        await telegram.posted(1)
        assert (await texts_of(at.gateway, f"agent:main:tg:group:{GROUP}:topic:12"))[0] == "hello"


async def test_a_command_in_a_group_is_carried_out_when_it_is_for_this_bot(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, plain(telegram)):
        for command in ("/status@other_bot", f"/status@{BOT_NAME.lower()}"):
            telegram.say(command, chat=GROUP, entities=[entity(command, command, "bot_command")])
        (text,) = await telegram.posted(1)
        await telegram.drained()
    assert text.startswith("Session") or "idle" in text


async def test_typing_in_general_of_a_forum_names_that_topic_and_the_reply_does_not(tmp_path: Path) -> None:
    async with Telegram() as telegram, desk(tmp_path, plain(telegram)):
        telegram.chats[GROUP]["is_forum"] = True
        telegram.say(chat=GROUP, **to_bot("in general"))
        await telegram.posted(1)
        await telegram.until(lambda: len(telegram.called("sendChatAction")) == 1)
        del telegram.chats[GROUP]["is_forum"]
        telegram.say(chat=GROUP, **to_bot("no forum any more"))
        await telegram.posted(2)
        await telegram.until(lambda: len(telegram.called("sendChatAction")) == 2)
    assert [call.get("message_thread_id") for call in telegram.called("sendChatAction")] == ["1", None]
    assert all("message_thread_id" not in call for call in telegram.called("sendMessage"))
