"""Updates of Telegram as the channel reads them: sender, chat, topic, and if the bot is meant."""

from __future__ import annotations

from typing import Any

import pytest

from backchannel.channels.telegram.reading import (
    BotIdentity,
    ChatMoved,
    ReadUpdate,
    parse_update,
    read_update,
)
from backchannel.core.delivery.channels import FileKind, InboundEvent
from backchannel.core.keys import ChatType
from tests.support.telegram import entity

BOT = BotIdentity(42, "My_Bot")
ANN = {"id": 7, "is_bot": False, "first_name": "Ann", "last_name": "Lee", "username": "ann"}
PRIVATE = {"id": 7, "type": "private", "first_name": "Ann", "last_name": "Lee"}
GROUP = {"id": -1001, "type": "supergroup", "title": "The group"}
FORUM = {**GROUP, "is_forum": True}


def read(kind: str = "message", /, **fields: Any) -> ReadUpdate | ChatMoved | None:
    message = {"message_id": 5, "date": 1, "chat": PRIVATE, "from": ANN, **fields}
    return read_update(parse_update({"update_id": 1, kind: message}), BOT, "default")


def event(kind: str = "message", /, **fields: Any) -> InboundEvent:
    found = read(kind, **fields)
    assert isinstance(found, ReadUpdate)
    return found.event


def _from(sender: dict[str, Any] | None) -> dict[str, Any]:
    return {"from": sender}


def files(**fields: Any) -> list[tuple[FileKind, str | None, str]]:
    found = read(**fields)
    assert isinstance(found, ReadUpdate)
    return [(each.kind, each.name, each.file.file_id) for each in found.files]


def test_a_direct_message_has_its_sender_chat_and_id() -> None:
    said = event(text="hello")
    assert (said.chat_type, said.chat_id, said.sender_id, said.message_id) == (ChatType.DIRECT, "7", "7", "5")
    assert (said.text, said.sender_name, said.chat_name, said.thread_id) == ("hello", "Ann Lee", "Ann Lee", None)
    assert not said.sender_is_bot and said.ts is None, "a message that waited for the gateway would be refused"


@pytest.mark.parametrize(("kind", "expected"), [("group", "group"), ("supergroup", "group"), ("channel", "channel")])
def test_groups_and_channels_are_what_they_are_called(kind: str, expected: str) -> None:
    assert event(chat={**GROUP, "type": kind}, text="x").chat_type == expected


def test_a_post_in_a_channel_is_of_the_channel_itself() -> None:
    channel = {"id": -1009, "type": "channel", "title": "News"}
    said = event("channel_post", chat=channel, sender_chat=channel, text="x", **_from(None))
    assert (said.sender_id, said.sender_name, said.chat_type) == ("-1009", "News", ChatType.CHANNEL)


def test_an_anonymous_admin_is_the_group_and_no_bot() -> None:
    anonymous: Any = {"id": 1087968824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}
    said = event(chat=GROUP, sender_chat=GROUP, text="x", **_from(anonymous))
    assert (said.sender_id, said.sender_is_bot) == ("-1001", False)


def test_another_bot_is_told_to_be_one() -> None:
    assert event(text="x", **_from({"id": 9, "is_bot": True, "first_name": "B"})).sender_is_bot


def test_a_topic_of_a_forum_is_a_thread_and_general_is_the_group() -> None:
    assert event(chat=FORUM, text="x", message_thread_id=12, is_topic_message=True).thread_id == "12"
    assert event(chat=FORUM, text="x").thread_id is None
    assert event(chat=FORUM, text="x", message_thread_id=1, is_topic_message=True).thread_id is None


def test_an_answer_outside_a_forum_is_in_no_thread() -> None:
    assert event(chat=GROUP, text="x", message_thread_id=12).thread_id is None


@pytest.mark.parametrize(
    ("text", "word", "kind"),
    [
        ("@My_Bot hello", "@My_Bot", "mention"),
        ("hello @my_bot", "@my_bot", "mention"),
        ("😀🇩🇪 hello @my_bot", "@my_bot", "mention"),  # characters of two units before it
        ("/stop@my_bot", "/stop@my_bot", "bot_command"),
    ],
)
def test_the_bots_name_is_a_mention(text: str, word: str, kind: str) -> None:
    assert event(chat=GROUP, text=text, entities=[entity(text, word, kind)]).mentioned
    assert event(chat=GROUP, caption=text, caption_entities=[entity(text, word, kind)]).mentioned


def test_other_names_are_none() -> None:
    for text, word, kind in (
        ("@my_bot2 hello", "@my_bot2", "mention"),
        ("/stop@other_bot", "/stop@other_bot", "bot_command"),
        ("/stop", "/stop", "bot_command"),
        ("see @my_bot", "see", "bold"),
    ):
        assert not event(chat=GROUP, text=text, entities=[entity(text, word, kind)]).mentioned, text
    assert not event(chat=GROUP, text="@my_bot in no entity: a quote, or code").mentioned


def test_a_mention_of_the_bot_by_its_id_counts() -> None:
    user = {"id": 42, "is_bot": True, "first_name": "My Bot"}
    assert event(
        chat=GROUP, text="My Bot?", entities=[entity("My Bot?", "My Bot", "text_mention", user=user)]
    ).mentioned
    other = {**user, "id": 43}
    said = event(chat=GROUP, text="My Bot?", entities=[entity("My Bot?", "My Bot", "text_mention", user=other)])
    assert not said.mentioned


def test_an_answer_to_the_bot_is_a_mention_but_not_one_to_a_topic_that_it_opened() -> None:
    mine = {"id": 42, "is_bot": True, "first_name": "My Bot"}
    answered = {"message_id": 3, "date": 1, "chat": GROUP, "from": mine, "text": "yes?"}
    assert event(chat=GROUP, text="x", reply_to_message=answered).mentioned
    opened = {**answered, "forum_topic_created": {"name": "T", "icon_color": 1}}
    assert not event(chat=FORUM, text="x", reply_to_message=opened).mentioned
    assert not event(chat=GROUP, text="x", reply_to_message={**answered, "from": ANN}).mentioned


def test_entities_that_lead_out_of_the_text_harm_nobody() -> None:
    for offset, length in ((-5, 3), (10**9, 10**9), (0, -1)):
        wrong = [{"type": "mention", "offset": offset, "length": length}]
        assert not event(chat=GROUP, text="hello", entities=wrong).mentioned


def test_a_caption_is_the_text_of_a_photo_and_the_best_size_that_fits_is_taken() -> None:
    sizes = [
        {"file_id": "small", "file_unique_id": "1", "width": 1, "height": 1, "file_size": 10},
        {"file_id": "large", "file_unique_id": "2", "width": 2, "height": 2, "file_size": 10_000_000},
        {"file_id": "huge", "file_unique_id": "3", "width": 3, "height": 3, "file_size": 11_000_000},
    ]
    assert event(photo=sizes, caption="look").text == "look"
    assert files(photo=sizes) == [(FileKind.IMAGE, "photo.jpg", "large")]


@pytest.mark.parametrize(
    ("field", "kind", "name"),
    [
        ("document", FileKind.FILE, "a.pdf"),
        ("audio", FileKind.AUDIO, "a.pdf"),
        ("video", FileKind.VIDEO, "a.pdf"),
    ],
)
def test_files_keep_the_names_that_they_have(field: str, kind: FileKind, name: str) -> None:
    given = {"file_id": "f", "file_unique_id": "u", "file_name": name}
    assert files(**{field: given}) == [(kind, name, "f")]


def test_voice_and_round_videos_get_a_name_and_an_animation_comes_once() -> None:
    given = {"file_id": "f", "file_unique_id": "u", "duration": 1}
    assert files(voice=given) == [(FileKind.AUDIO, "voice.ogg", "f")]
    assert files(video_note=given) == [(FileKind.VIDEO, "video.mp4", "f")]
    assert files(animation=given, document=given) == [(FileKind.VIDEO, "animation.mp4", "f")]
    assert files(document={**given, "mime_type": "image/png"}) == [(FileKind.IMAGE, None, "f")]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"sticker": {"emoji": "👍"}}, "[sticker 👍]"),
        ({"location": {"latitude": 52.5, "longitude": 13.4}}, "[location 52.500000, 13.400000]"),
        ({"contact": {"phone_number": "+49", "first_name": "Bob"}}, "[contact Bob: +49]"),
        ({"poll": {"question": "When?"}}, "[poll: When?]"),
        ({"dice": {"emoji": "🎲", "value": 4}}, "[dice 🎲: 4]"),
    ],
)
def test_what_is_neither_text_nor_file_is_said_in_a_line(fields: dict[str, Any], line: str) -> None:
    assert event(**fields).text == line


def test_service_messages_edits_and_what_is_new_are_left_out() -> None:
    assert read(new_chat_members=[ANN]) is None
    assert read_update(parse_update({"update_id": 1, "edited_message": {"anything": 1}}), BOT, "default") is None
    assert read(chat={"id": 1, "type": "something new"}, text="x") is None


def test_the_copy_of_a_channels_post_in_the_linked_group_is_left_out() -> None:
    linked = {"id": -1002, "type": "channel", "title": "News"}
    assert read(chat=GROUP, sender_chat=linked, text="a post", is_automatic_forward=True) is None
    assert event(chat=GROUP, sender_chat=linked, text="by hand").sender_id == "-1002"


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("/start", "/help"),
        ("/Start ", "/help"),
        ("/start@My_Bot", "/help@My_Bot"),
        ("/start from-a_link42", "/help"),
        ("/start@My_Bot from-a_link42", "/help@My_Bot"),
        (f"/start {'x' * 65}", f"/start {'x' * 65}"),
        ("/start the engine", "/start the engine"),
        ("/started", "/started"),
        ("please /start", "please /start"),
    ],
)
def test_the_button_start_asks_for_help(text: str, taken: str) -> None:
    assert event(text=text).text == taken


def test_a_group_that_becomes_a_supergroup_is_told_from_both_sides() -> None:
    old = {"id": -5, "type": "group", "title": "The group"}
    assert read(chat=old, migrate_to_chat_id=-1005) == ChatMoved("-5", "-1005")
    assert read(chat={**old, "id": -1005, "type": "supergroup"}, migrate_from_chat_id=-5) == ChatMoved("-5", "-1005")


def test_fields_that_nobody_knows_yet_change_nothing() -> None:
    origin = {"type": "a kind of origin that is not invented yet"}
    assert event(text="x", forward_origin=origin, some_new_thing={"a": [1]}).text == "x"
