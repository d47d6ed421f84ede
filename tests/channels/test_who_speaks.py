"""The speaker in a group, room or shared direct chat: stored, and shown to the model."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.messages import Chat, Sender
from tests.channels.desk import ChannelDesk, desk
from tests.support.far_end import FarEnd
from tests.support.gateways import MAIN, transcript_of

pytestmark = pytest.mark.anyio

GROUP: dict[str, Any] = {"chatType": "group", "chatId": "G1", "chatName": "Team", "mentioned": True}
KEY = "agent:main:desk:group:g1"


class Listener:
    """A model that writes down what it was told last."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.model = ScriptedModel(replies=self._answer)

    def _answer(self, request: Any) -> str:
        self.told.append(request.messages[-1].text)
        return f"answer {len(self.told)}"


async def test_a_group_message_says_who_wrote_it_and_where(tmp_path: Path) -> None:
    listener = Listener()
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=listener.model) as world:
        await world.say(**GROUP, text="shall we?", senderId="u-1", senderName="Ann", messageId="1")
        await far_end.took(1)
        message, *_ = await transcript_of(world.gateway, KEY)
        shown = await world.gateway.tools().sessions_history(sessionKey=KEY)
    assert (message.sender, message.chat) == (
        Sender(id="u-1", name="Ann"),
        Chat(type="group", id="G1", name="Team"),
    )
    assert shown["messages"][0]["sender"] == {"id": "u-1", "name": "Ann"}
    header, text = listener.told[0].split("\n")
    assert header.endswith('user message | sender "Ann" (id "u-1") | group "Team" | channel "desk"]')
    assert text == "shall we?"


async def test_what_is_recorded_says_who_wrote_it_too(tmp_path: Path) -> None:
    listener = Listener()
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=listener.model) as world:
        group = GROUP | {"mentioned": False}
        await world.say(**group, text="by the way", senderId="u-2", senderName="Bob", messageId="1")
        await world.say(**GROUP, text="and now?", senderId="u-1", senderName="Ann", messageId="2")
        await far_end.took(1)
    note, said, question, asked = listener.told[0].replace("\n\n", "\n").split("\n")
    assert 'note | sender "Bob" (id "u-2") | group "Team"' in note and said == "by the way"
    assert 'user message | sender "Ann" (id "u-1") | group "Team"' in question and asked == "and now?"


async def _two_people(world: ChannelDesk, far_end: FarEnd, **second: Any) -> None:
    await world.say(text="I am Ann", senderId="ann", chatId="A", messageId="1")
    await far_end.took(1)
    await world.say(**{"text": "I am Bob", "senderId": "bob", "chatId": "B", "messageId": "2", **second})
    await far_end.took(2)


async def test_a_direct_chat_names_people_from_the_second_one_on_also_after_a_restart(tmp_path: Path) -> None:
    listener = Listener()
    async with FarEnd() as far_end:
        channels = {"desk": far_end.settings()}
        async with desk(tmp_path, channels, model=listener.model) as world:
            await _two_people(world, far_end)
        async with desk(tmp_path, channels, model=listener.model) as world:
            await world.say(text="Ann again", senderId="ann", chatId="A", messageId="3")
            await far_end.took(3)
    assert listener.told[0] == "I am Ann"
    assert 'sender "bob" | direct chat | channel "desk"]\nI am Bob' in listener.told[1]
    assert 'sender "ann" | direct chat | channel "desk"]\nAnn again' in listener.told[2]


async def test_one_person_alone_is_not_named_however_many_chats_they_have(tmp_path: Path) -> None:
    listener = Listener()
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=listener.model) as world:
        await _two_people(world, far_end, senderId="ann", text="still Ann")
    assert listener.told == ["I am Ann", "still Ann"]


async def test_ids_that_are_linked_are_one_person(tmp_path: Path) -> None:
    listener = Listener()
    links = {"identityLinks": {"ann": ["desk:ann", "desk:bob"]}}
    async with (
        FarEnd() as far_end,
        desk(tmp_path, {"desk": far_end.settings()}, model=listener.model, session=links) as world,
    ):
        await _two_people(world, far_end)
    assert listener.told == ["I am Ann", "I am Bob"]


async def test_each_person_with_a_session_of_their_own_is_not_named(tmp_path: Path) -> None:
    listener = Listener()
    apart = {"dmScope": "per-peer"}
    async with (
        FarEnd() as far_end,
        desk(tmp_path, {"desk": far_end.settings()}, model=listener.model, session=apart) as world,
    ):
        await _two_people(world, far_end)
    assert listener.told == ["I am Ann", "I am Bob"]


async def test_long_and_hostile_names_are_cleaned_when_they_come_in_and_cut_where_they_are_shown(
    tmp_path: Path,
) -> None:
    listener = Listener()
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=listener.model) as world:
        name = "\x1b[31mTeam\u202e\n" + "x" * 50_000
        await world.say(**GROUP | {"chatName": name}, senderName=name, text="hi", messageId="1")
        await far_end.took(1)
        session = await world.gateway.store.session(KEY)
        (row,) = (await world.gateway.tools().sessions_list(search="team"))["sessions"]
        (message, *_) = (await world.gateway.tools().sessions_history(sessionKey=KEY))["messages"]
    assert session is not None and session.display_name is not None
    assert session.display_name.startswith("Team xxx") and len(session.display_name) == 256
    assert row["displayName"].startswith("Team xxx") and len(row["displayName"]) == 64
    assert len(message["sender"]["name"]) == 64
    assert max(map(len, listener.told[0].split("\n"))) < 400


async def test_names_of_an_older_database_are_cleaned_where_they_are_shown(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        await world.say()
        await far_end.took(1)
        with closing(sqlite3.connect(tmp_path / "backchannel.db")) as database, database:
            database.execute("UPDATE sessions SET display_name = ?", ("\x1b[2Jold\n" + "x" * 50_000,))
        (row,) = (await world.gateway.tools().sessions_list())["sessions"]
        status = await world.gateway.tools().session_status(sessionKey=MAIN)
    assert row["displayName"] == status["displayName"]
    assert row["displayName"].startswith("old xxx") and len(row["displayName"]) == 64


async def test_an_id_that_no_platform_would_give_is_refused(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        answer = await world.post(senderId="x" * 600)
        assert answer.status_code == 400 and "senderId" in answer.text
