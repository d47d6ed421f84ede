"""Sessions that begin anew by themselves, in a gateway: chats, open flows, what people see of it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.delivery.channels import InboundEvent
from backchannel.core.keys import ChatType
from backchannel.gateway.app import Gateway
from tests.channels.desk import desk
from tests.conftest import CRASH_POINTS
from tests.runtime.test_kill import CONFIG, Outcomes, Scene
from tests.support.children import Gate, family, spawn
from tests.support.clocks import AheadClock
from tests.support.far_end import FarEnd
from tests.support.gateways import MAIN, dying, echo, ended, running, session_of, texts_of, transcript_of
from tests.support.kill import kill_at_every_commit, transcript
from tests.support.resting import at_rest
from tests.support.talks import config as talk_config
from tests.support.talks import send, talking

pytestmark = pytest.mark.anyio
TWO_HOURS = 7200.0
IDLE: dict[str, Any] = {"reset": {"mode": "idle", "idleMinutes": 60}}


def with_resets(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "session": {**settings.get("session", {}), **IDLE}}


def message(text: str, id: str, **more: Any) -> InboundEvent:
    return InboundEvent(
        channel="desk",
        chat_type=more.pop("chat_type", ChatType.DIRECT),
        chat_id="Chat-1",
        sender_id="Ann",
        message_id=id,
        text=text,
        **more,
    )


async def test_a_new_conversation_knows_nothing_of_the_old_one(tmp_path: Path) -> None:
    seen: list[int] = []

    def reply(request: ModelRequest) -> str:
        seen.append(len(request.messages))
        return "yes"

    clock = AheadClock(0)
    async with running(tmp_path, ScriptedModel(replies=reply), config=with_resets(CONFIG), clock=clock) as gateway:
        await gateway.ask("main", "first")
        await gateway.ask("main", "second")
        clock.ahead_s = TWO_HOURS
        await gateway.ask("main", "third", run_id="third")
        assert await texts_of(gateway) == ["third", "yes"]
        told = await gateway.store.timeline("third")
    assert seen == [1, 3, 1]
    assert [(entry.kind, entry.status) for entry in told.timeline.entries][:2] == [("reset", "idle"), ("queued", None)]


async def test_a_message_of_a_chat_begins_anew_and_is_answered_there_once(tmp_path: Path) -> None:
    clock = AheadClock(0)
    async with FarEnd() as far_end:
        channels = {"desk": far_end.settings(allowFrom=["Ann"])}
        async with desk(tmp_path, channels, clock=clock, session=IDLE) as world:
            inbound = world.gateway.inbound
            await inbound.receive("desk", message("good evening", "1"))
            await far_end.took(1)
            clock.ahead_s = TWO_HOURS
            await inbound.receive("desk", message("good morning", "2"))
            again = await inbound.receive("desk", message("good morning", "2"))
            await far_end.took(2)
            said = await texts_of(world.gateway)
            session = await session_of(world.gateway)
            status = await inbound.receive("desk", message("/status", "3"))
            shown = await far_end.took(3)
    assert said == ["good morning", "re: good morning"]
    assert again.repeat
    assert session.address is not None and session.address.to == "Chat-1"
    assert status.command == "status"
    assert "Began anew: " in shown[-1].text and "ago, after a pause" in shown[-1].text


async def test_a_recorded_message_of_a_group_begins_anew_too(tmp_path: Path) -> None:
    clock, key = AheadClock(0), "agent:main:desk:group:chat-1"
    group = {"chat_type": ChatType.GROUP}
    async with FarEnd() as far_end:
        channels = {"desk": far_end.settings(allowFrom=["Ann"])}
        async with desk(tmp_path, channels, clock=clock, session=IDLE) as world:
            inbound = world.gateway.inbound
            await inbound.receive("desk", message("anyone?", "1", **group))
            clock.ahead_s = TWO_HOURS
            await inbound.receive("desk", message("hello again", "2", **group))
            assert await texts_of(world.gateway, key) == ["hello again"]


async def test_an_open_sub_agent_keeps_the_conversation(tmp_path: Path) -> None:
    clock, gate = AheadClock(0), Gate()
    says: dict[str, Any] = {"person": [[spawn()], "still at it", "all new"], "task": gate.holds()}
    async with family(tmp_path, with_resets(CONFIG), clock=clock, **says) as home:
        await home.gateway.ask("main", "dig a hole")
        await gate.reached()
        old = (await session_of(home.gateway)).session_id
        clock.ahead_s = TWO_HOURS
        await home.gateway.ask("main", "how far is it?")
        assert (await session_of(home.gateway)).session_id == old
        clock.ahead_s = 2 * TWO_HOURS
        gate.open()
        await at_rest(home.gateway)
        await home.gateway.ask("main", "what did you find?")
        assert (await session_of(home.gateway)).session_id == old  # the result was a use
        clock.ahead_s = 3 * TWO_HOURS
        await home.gateway.ask("main", "good morning")
        assert (await session_of(home.gateway)).session_id != old


async def test_a_message_of_another_session_resets_nothing(tmp_path: Path) -> None:
    clock, settings = AheadClock(0), talk_config("a", "b", **IDLE)
    async with talking(
        tmp_path, settings, clock=clock, a={"person": send()}, b={"person": "hi", "request": "fine"}
    ) as talk:
        await talk.gateway.ask("agent:b:main", "hello")
        old = (await session_of(talk.gateway, "agent:b:main")).session_id
        clock.ahead_s = TWO_HOURS
        await talk.gateway.ask("agent:a:main", "ask b")
        await at_rest(talk.gateway)
        assert (await session_of(talk.gateway, "agent:b:main")).session_id == old
        await talk.gateway.ask("agent:b:main", "me again")
        assert await texts_of(talk.gateway, "agent:b:main") == ["me again", "hi"]


class BegunAnew(Scene):
    """A message comes two hours after the last one: the session begins anew, once."""

    expected: ClassVar[Outcomes] = {
        "old": ("ok", "re: good evening"),
        "new": ("ok", "re: good morning"),
        "next": ("ok", "re: and then?"),
    }

    def __init__(self) -> None:
        super().__init__()
        self.clock = AheadClock(0)

    def equip(self, gateway: Gateway) -> None:
        super().equip(gateway)
        gateway.clock = self.clock

    async def drive(self, gateway: Gateway) -> None:
        await gateway.ask("main", "good evening", run_id="old")
        self.clock.ahead_s = TWO_HOURS
        await gateway.ask("main", "good morning", run_id="new")
        await gateway.ask("main", "and then?", run_id="next")

    def check(self, database: sqlite3.Connection) -> None:
        super().check(database)
        rows = database.execute(
            "SELECT session_id, end_reason, follows FROM session_ids ORDER BY created_at"
        ).fetchall()
        (old, reason, before), (new, end, follows) = rows
        assert (reason, before, end, follows) == ("idle", None, None, old)
        assert [line.text for line in transcript(database, old)] == ["good evening", "re: good evening"]
        assert [line.text for line in transcript(database, new)][::2] == ["good morning", "and then?"]


async def test_a_session_begins_anew_once_wherever_the_process_dies(
    record_property: Callable[[str, object], None],
) -> None:
    points = await kill_at_every_commit(BegunAnew, with_resets(CONFIG))
    record_property(CRASH_POINTS, ("BegunAnew", points))
    assert points >= 6


async def test_a_restart_in_the_night_changes_nothing(tmp_path: Path) -> None:
    clock = AheadClock(0)
    async with running(tmp_path, ScriptedModel(replies=echo), config=with_resets(CONFIG), clock=clock) as gateway:
        await gateway.ask("main", "good evening")
    clock = AheadClock(TWO_HOURS)
    async with running(tmp_path, ScriptedModel(replies=echo), config=with_resets(CONFIG), clock=clock) as gateway:
        await gateway.ask("main", "good morning")
        assert await texts_of(gateway, MAIN) == ["good morning", "re: good morning"]


# --- A summary is carried over ---

CARRIED: dict[str, Any] = {**CONFIG, "session": {"reset": {"mode": "idle", "idleMinutes": 60, "carry": True}}}


def remembering(request: ModelRequest) -> str:
    """Summarise what is told as a conversation, and tell what the request begins with."""
    if "<conversation>" in request.messages[-1].text:
        return "The cat is called Minka."
    return "Minka" if "The cat is called Minka." in request.messages[0].text else "yes"


async def talked(gateway: Gateway) -> None:
    for text in ("my cat is called Minka", "good", "and so on"):
        await gateway.ask("main", text)


async def test_with_carry_a_new_conversation_begins_with_a_summary_of_the_old_one(tmp_path: Path) -> None:
    clock, model = AheadClock(0), ScriptedModel(replies=remembering)
    async with running(tmp_path, model, config=CARRIED, clock=clock) as gateway:
        await talked(gateway)
        clock.ahead_s = TWO_HOURS
        assert await gateway.ask("main", "what is my cat called?") == "Minka"
        question, entry, answer = await transcript_of(gateway)
        assert (question.text, answer.text) == ("what is my cat called?", "Minka")
        assert entry.compaction is not None and entry.compaction.messages == 6
        assert await gateway.ask("main", "and now?") == "Minka"
        assert len([m for m in await transcript_of(gateway) if m.compaction]) == 1
    assert not model.refused


async def test_a_conversation_begins_without_a_summary_that_cannot_be_made(tmp_path: Path) -> None:
    def unwilling(request: ModelRequest) -> str:
        if "<conversation>" in request.messages[-1].text:
            raise ModelFailed("no summaries here", retryable=False)
        return "yes"

    clock, model = AheadClock(0), ScriptedModel(replies=unwilling)
    async with running(tmp_path, model, config=CARRIED, clock=clock) as gateway:
        await talked(gateway)
        clock.ahead_s = TWO_HOURS
        assert await gateway.ask("main", "hello") == "yes"
        assert await texts_of(gateway) == ["hello", "yes"]


async def test_a_process_that_dies_while_it_carries_a_summary_over_carries_it_in_its_next_life(tmp_path: Path) -> None:
    clock, reached = AheadClock(0), asyncio.Event()

    def held_up(request: ModelRequest) -> Reply | str:
        if "<conversation>" in request.messages[-1].text:
            return Reply(text="never said", gate=asyncio.Event(), reached=reached)
        return "yes"

    async with dying(tmp_path, ScriptedModel(replies=held_up), config=CARRIED, clock=clock) as gateway:
        await talked(gateway)
        clock.ahead_s = TWO_HOURS
        await gateway.submit("main", "what is my cat called?", run_id="r")
        await reached.wait()
    async with running(tmp_path, ScriptedModel(replies=remembering), config=CARRIED, clock=clock) as gateway:
        assert (await ended(gateway, "r")).reply == "Minka"
        assert len([m for m in await transcript_of(gateway) if m.compaction]) == 1
