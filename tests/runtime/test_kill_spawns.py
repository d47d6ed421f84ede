"""Sub-agents are killed at each of their commits and sends: every result comes home once, to where it was promised."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.delivery.channels import InboundEvent
from backchannel.core.flows.spawn_texts import SPAWN_ANNOUNCE_LINE, WAKE_LINE
from backchannel.core.keys import ChatType
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.far_end import FarEnd
from tests.support.kill import Flow, kill_at_every_commit, kill_at_every_send, transcript
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio

CHILDREN = ("red", "green", "blue")


def config(far_end: FarEnd, **subagents: Any) -> dict[str, Any]:
    return {
        "agents": {"list": [{"id": "main", "model": "scripted/test"}], "defaults": {"subagents": subagents}},
        "channels": {"far": far_end.settings()},
    }


def message(number: int, chat: str, text: str) -> InboundEvent:
    return InboundEvent(
        channel="far", chat_type=ChatType.DIRECT, chat_id=chat, sender_id="ada", message_id=str(number), text=text
    )


async def spawned(gateway: Gateway) -> None:
    """Wait until there is a sub-agent."""
    changed = asyncio.Event()
    unlisten = gateway.runtime.hub.listen(lambda event: changed.set())
    try:
        while not (await gateway.store.family("agent:main:main", 1)).children:
            await changed.wait()
            changed.clear()
    finally:
        unlisten()


class ToolUsingChild:
    """A person asks for a sub-agent, which uses a tool; before its result is there, the person has moved on."""

    def __init__(self) -> None:
        self.model = ScriptedModel(replies=self.reply)
        self.moved = asyncio.Event()

    def reply(self, request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if SPAWN_ANNOUNCE_LINE in last.text:
            return "the answer is 42"
        if last.text.endswith("start one"):
            return [call("sessions_spawn", task="look it up", label="seeker", cleanup="delete")]
        if last.text.endswith("look it up"):
            return [call("look", where="the shelf")]
        if last.role is Role.TOOL_RESULT and "found" in last.text:
            return "it is on the shelf"
        return "started" if last.role is Role.TOOL_RESULT else "hello again"

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

        @gateway.tool(effects="none")
        async def look(where: str) -> str:
            """Look somewhere, for as long as it takes the person to move."""
            await self.moved.wait()
            return f"found on {where}"

    async def drive(self, gateway: Gateway) -> None:
        first = await gateway.inbound.take(message(1, "Old Home", "start one"))
        await spawned(gateway)
        second = await gateway.inbound.take(message(2, "New Home", "I have moved"))
        self.moved.set()
        for taken in (first, second):
            await gateway.runtime.wait(taken.outcome.run_id or "", 20)
        await at_rest(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        assert database.execute("SELECT state FROM spawns").fetchall() == [("done",)]
        kinds = sorted(kind for (kind,) in database.execute("SELECT kind FROM runs WHERE state = 'ok'"))
        assert kinds == ["announce", "child", "message", "message"], kinds
        posts = database.execute("SELECT target, state FROM deliveries WHERE text LIKE 'Status:%'").fetchall()
        assert posts == [("Old Home", "sent")], posts
        (session_id,) = database.execute("SELECT session_id FROM sessions WHERE key = 'agent:main:main'").fetchone()
        told = [message.text for message in transcript(database, session_id) if "the answer is 42" in message.text]
        assert len(told) == 1, told
        assert told[0].startswith("Status: success\nResult: the answer is 42\nStats: ")
        (archived,) = database.execute("SELECT archived_at FROM sessions WHERE spawned_by IS NOT NULL").fetchone()
        assert archived is not None, "the child was to be cleaned up"


class BarrierOfThree(ToolUsingChild):
    """Three children wake their requester once, with all their results."""

    def reply(self, request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if SPAWN_ANNOUNCE_LINE in last.text:
            return f"painted {next(name for name in CHILDREN if name in last.text)}"
        if last.text.endswith("start one"):
            return [call("sessions_spawn", task=f"paint it {name}") for name in CHILDREN]
        if WAKE_LINE in last.text:
            return "all painted"
        return "started" if last.role is Role.TOOL_RESULT else "done"

    async def drive(self, gateway: Gateway) -> None:
        await gateway.inbound.take(message(1, "Home", "start one"))
        await at_rest(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        assert database.execute("SELECT state FROM spawns").fetchall() == [("done",)] * 3
        assert database.execute("SELECT state FROM barriers").fetchall() == [("done",)]
        kinds = sorted(kind for (kind,) in database.execute("SELECT kind FROM runs WHERE state = 'ok'"))
        assert kinds == ["announce"] * 3 + ["child"] * 3 + ["message", "wake"], kinds
        sent = database.execute("SELECT count(*) FROM deliveries WHERE state = 'sent' AND text LIKE 'Status:%'")
        assert sent.fetchone() == (3,)
        assert database.execute("SELECT count(*) FROM deliveries WHERE text = 'all painted'").fetchone() == (1,)
        (session_id, held) = database.execute(
            "SELECT session_id, held_posts FROM sessions WHERE key = 'agent:main:main'"
        ).fetchone()
        assert held == 0
        for name in CHILDREN:
            told = [message for message in transcript(database, session_id) if f"painted {name}" in message.text]
            assert len(told) == 1, f"{name} was told {len(told)} times"


@pytest.mark.parametrize(
    ("flow", "announce"), [(ToolUsingChild, "post"), (BarrierOfThree, "wake")], ids=["ToolUsingChild", "BarrierOfThree"]
)
async def test_every_result_comes_home_once_wherever_the_process_dies(
    flow: type[Flow], announce: str, record_property: Callable[[str, object], None]
) -> None:
    async with FarEnd() as far_end:
        points = await kill_at_every_commit(flow, config(far_end, announce=announce))
    record_property(CRASH_POINTS, (flow.__name__, points))
    assert points >= 20
    assert set(far_end.counts.values()) == {1}


@pytest.mark.parametrize(
    ("flow", "announce"), [(ToolUsingChild, "post"), (BarrierOfThree, "wake")], ids=["ToolUsingChild", "BarrierOfThree"]
)
async def test_every_post_is_taken_once_wherever_the_process_dies_while_it_is_sent(
    flow: type[Flow], announce: str, record_property: Callable[[str, object], None]
) -> None:
    async with FarEnd() as far_end:
        points = await kill_at_every_send(flow, far_end, "far", config(far_end, announce=announce))
    record_property(CRASH_POINTS, (f"{flow.__name__} sends", points))
    assert points >= 9
    assert set(far_end.counts.values()) == {1}
