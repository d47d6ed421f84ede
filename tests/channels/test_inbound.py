"""Messages from outside: whose session they reach, where the answer goes, and what is not let in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel
from backchannel.core.contracts import ModelRequest
from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.messages import Role, Sender
from backchannel.core.runs import RunState
from backchannel.gateway.ws.throttling import CREDENTIAL_FAILURES
from tests.channels.desk import desk
from tests.gateway.client import connected
from tests.support.far_end import SECRET, FarEnd, event, signed
from tests.support.gateways import MAIN, ended, live_runs, session_of, texts_of, transcript_of

pytestmark = pytest.mark.anyio
S = DeliveryState


async def test_a_message_is_answered_at_the_place_that_it_came_from(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        said = await world.say(accountId="work", threadId="T-7", chatName="Ann's chat")
        assert said["verdict"] == "answer" and said["sessionKey"] == MAIN
        (message,) = await far_end.took(1)
        receipt = await world.becomes(S.SENT)
        session = await session_of(world.gateway)
    assert (message.text, message.to, message.account_id, message.thread_id) == ("re: hello", "Chat-1", "work", "T-7")
    assert receipt.delivery.run_id == said["runId"] and message.key == f"{receipt.delivery.id}/1"
    assert receipt.parts[0].message_id == message.message_id
    assert session.address is not None
    assert (session.address.channel, session.address.to, session.address.account_id) == ("desk", "Chat-1", "work")


@pytest.mark.parametrize(("name", "word"), [("telegram", "topic"), ("desk", "thread")])
async def test_a_bridge_with_the_name_of_a_platform_has_that_platforms_keys(
    tmp_path: Path, name: str, word: str
) -> None:
    group = {"chatType": "group", "chatId": "G1", "threadId": "7", "mentioned": True}
    async with FarEnd() as far_end, desk(tmp_path, {name: far_end.settings()}) as world:
        said = await world.say(name, **group)
    assert said["sessionKey"] == f"agent:main:{name}:group:g1:{word}:7"


async def test_the_same_message_again_is_not_answered_again_not_even_after_a_restart(tmp_path: Path) -> None:
    async with FarEnd() as far_end:
        async with desk(tmp_path, {"desk": far_end.settings()}) as world:
            first = await world.say()
            again = await world.say(text="another text under the same id")
            await world.becomes(S.SENT)
        async with desk(tmp_path, {"desk": far_end.settings()}) as world:
            later = await world.say()
            assert await texts_of(world.gateway) == ["hello", "re: hello"]
    assert again == later == first | {"repeat": True}
    assert far_end.texts == ["re: hello"]


async def test_what_is_forged_old_or_no_event_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:

        async def post(body: bytes, headers: dict[str, str], path: str = "/channels/desk/inbound") -> tuple[int, str]:
            answer = await world.http.post(path, content=body, headers=headers)
            return answer.status_code, answer.json()["error"]["details"]["code"]

        body, headers = signed(event())
        assert await post(body, {}) == (401, "bad_signature")
        assert await post(body + b" ", headers) == (401, "bad_signature")
        assert await post(*signed(event(), "not the secret of this channel")) == (401, "bad_signature")
        assert await post(body, headers, "/channels/nobody/inbound") == (404, "not_found")
        assert await post(*signed({"text": "hello"})) == (400, "bad_params")
        assert await post(*signed(event(channel="other"))) == (400, "bad_params")
        assert await post(*signed(event(ts=world.gateway.clock.now_ms() - 400_000))) == (400, "bad_params")
        assert await post(*signed(event(text="x" * 2_000_000))) == (413, "payload_too_large")
        assert (await world.http.get("/channels/desk/inbound")).status_code == 405
        assert await world.gateway.store.session(MAIN) is None
        assert SECRET not in (await world.http.post("/channels/desk/inbound", content=b"{}")).text
        recent = await world.say(ts=world.gateway.clock.now_ms() - 60_000)
        assert recent["verdict"] == "answer"
        await far_end.took(1)


async def test_wrong_signatures_are_slowed_down_and_hold_up_no_right_one(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        body, headers = signed(event(), "not the secret of this channel")
        for _ in range(CREDENTIAL_FAILURES):
            assert (await world.http.post("/channels/desk/inbound", content=body, headers=headers)).status_code == 401
        slowed = await world.http.post("/channels/desk/inbound", content=body, headers=headers)
        assert slowed.status_code == 429 and slowed.json()["error"]["details"]["code"] == "rate_limited"
        assert 0 < int(slowed.headers["Retry-After"]) <= 60
        async with connected(world.url) as client:
            assert (await client.ask("health"))["ok"] is True
        assert await world.gateway.store.session(MAIN) is None
        assert (await world.post()).status_code == 200
        await far_end.took(1)


async def test_a_stranger_hears_nothing_and_leaves_no_trace_in_the_session(tmp_path: Path) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings(allowFrom=["bob"])}) as world:
        said = await world.say(text="/stop")
        assert said["verdict"] == "ignore" and "channels.desk.allowFrom" in said["reason"]
        assert await world.gateway.store.session(MAIN) is None and await world.receipts() == []


async def test_a_group_message_without_a_mention_is_recorded_and_read_with_the_next_that_has_one(
    tmp_path: Path,
) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        group: dict[str, Any] = {"chatType": "group", "chatId": "G1", "chatName": "Team"}
        said = await world.say(**group, text="by the way", messageId="1", senderName="Ann")
        assert said["verdict"] == "record" and "requireMention" in said["reason"]
        await world.say(**group, text="@bot hello", messageId="2", mentioned=True)
        await far_end.took(1)
        key = "agent:main:desk:group:g1"
        note, *_ = await transcript_of(world.gateway, key)
        session = await session_of(world.gateway, key)
    assert (note.role, note.text, note.sender) == (Role.USER, "by the way", Sender(id="ann", name="Ann"))
    assert (session.display_name, session.channel) == ("Team", "desk")
    assert far_end.messages[0].to == "G1"


async def test_what_the_policy_denies_is_recorded_and_not_answered(tmp_path: Path) -> None:
    policy = {"sendPolicy": {"rules": [{"match": {"channel": "desk"}, "action": "deny"}]}}
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, session=policy) as world:
        said = await world.say()
        assert said["verdict"] == "record" and "session.sendPolicy.rules[0]" in said["reason"]
        assert await texts_of(world.gateway) == ["hello"]
        await world.say(text="/status", messageId="2")  # commands and their replies pass
        (message,) = await far_end.took(1)
        assert message.text.startswith("Status: idle")


class Held:
    """A model that answers nothing before it is let go."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    def __call__(self, request: ModelRequest) -> Scripted:
        return Reply(text=f"re: {request.messages[-1].text}", gate=self.release)


async def test_two_people_on_two_channels_who_share_a_session_each_get_their_own_answer(tmp_path: Path) -> None:
    held = Held()
    async with FarEnd() as red, FarEnd("the secret of the other one") as blue:
        channels = {"red": red.settings(), "blue": blue.settings()}
        async with desk(tmp_path, channels, model=ScriptedModel(replies=held)) as world:
            ann = await world.say("red", text="I am Ann", chatId="A")
            body, headers = signed(event(text="I am Bob", senderId="bob", chatId="B"), blue.secret)
            bob = (await world.http.post("/channels/blue/inbound", content=body, headers=headers)).json()
            assert ann["sessionKey"] == bob["sessionKey"] == MAIN and ann["runId"] != bob["runId"]
            assert len(await live_runs(world.gateway)) == 2
            held.release.set()
            await red.took(1)
            await blue.took(1)
    assert [(message.to, message.text) for message in red.messages] == [("A", "re: I am Ann")]
    ((to, reply),) = [(message.to, message.text) for message in blue.messages]
    assert to == "B" and reply.endswith('sender "bob" | direct chat | channel "blue"]\nI am Bob')


# Commands


async def test_stop_does_not_wait_for_the_run_that_it_stops(tmp_path: Path) -> None:
    held = Held()
    async with FarEnd() as far_end:
        model = ScriptedModel(replies=held)
        async with desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
            said = await world.say(text="think for ever", messageId="1")
            waiting = await world.say(text="a person's message stays", messageId="2")
            stopped = await world.say(text="/STOP@helper", messageId="3")
            assert stopped["verdict"] == "command" and stopped["command"] == "stop" and "runId" not in stopped
            assert (await ended(world.gateway, said["runId"])).state is RunState.ABORTED
            held.release.set()
            assert (await ended(world.gateway, waiting["runId"])).state is RunState.OK
            await far_end.took(2)
            await world.say(text="/stop", messageId="4")
            await far_end.took(3)
            assert "/stop" not in " ".join(await texts_of(world.gateway)).lower()
    stopped_text, answer, nothing = far_end.texts
    assert (stopped_text, nothing) == ("Stopped 1 run.", "Nothing is running here.")
    assert answer.endswith("a person's message stays")


@pytest.mark.parametrize("command", ["/new", "/reset"])
async def test_new_starts_another_conversation_and_keeps_the_address(tmp_path: Path, command: str) -> None:
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}) as world:
        await world.say(text=command, messageId="0")
        await world.say(messageId="1")
        await far_end.took(2)
        before = await session_of(world.gateway)
        await world.say(text=command, messageId="2")
        await world.say(text=command, messageId="2")
        await far_end.took(3)
        after = await session_of(world.gateway)
        assert after.session_id != before.session_id and after.address == before.address
        assert await texts_of(world.gateway) == []
    assert far_end.texts[0] == "This conversation is new already."
    assert far_end.texts[2] == "Started a new conversation; the old one is kept."


async def test_commands_answer_who_may_use_them(tmp_path: Path) -> None:
    settings = {"allowFrom": ["ann"], "owners": ["olga"]}
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings(**settings)}) as world:
        await world.say(text="/help", messageId="1")
        await world.say(text="/send off", messageId="2")
        await world.say(text="/send sideways", messageId="3", senderId="olga")
        await world.say(text="/send off", messageId="4", senderId="olga")
        await world.say(text="/model nobody/knows", messageId="5")
        help_text, denied, usage, done, unknown = [message.text for message in await far_end.took(5)]
        assert "/stop" in help_text and "/send" not in help_text
        assert "owners" in denied and "/send on|off|inherit" in usage and "held back" in done
        assert "nobody" in unknown and (await session_of(world.gateway)).model is None
        assert (await world.say(messageId="6"))["verdict"] == "record"


async def test_a_control_word_never_reaches_a_person(tmp_path: Path) -> None:
    model = ScriptedModel(replies=lambda request: " NO_REPLY\n")
    async with FarEnd() as far_end, desk(tmp_path, {"desk": far_end.settings()}, model=model) as world:
        said = await world.say()
        assert (await ended(world.gateway, said["runId"])).state is RunState.OK
        assert await world.receipts() == []
    assert far_end.posts == []
