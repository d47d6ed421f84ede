"""Whole exchanges are killed at each of their commits: every step happens once, and nobody misses anything."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.channels import OutboundPart, Sent
from backchannel.core.contracts import ModelRequest
from backchannel.core.inbound import InboundEvent
from backchannel.core.keys import ChatType
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.kill import Flow, kill_at_every_commit, transcript

pytestmark = pytest.mark.anyio

ANNOUNCE = "The first line of the news.\nThe second line of the news.\nThe third line of the news."
CONFIG: dict[str, Any] = {
    "agents": {
        "list": [{"id": "main", "model": "scripted/test"}, {"id": "writer", "model": "scripted/test"}],
    },
    "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
    "channels": {
        "far": {"adapter": "bridge", "url": "http://127.0.0.1:9/", "secret": "a secret of its own", "allowFrom": ["*"]}
    },
    "bindings": [{"match": {"channel": "far"}, "agentId": "writer"}],
}


class FarEnd:
    """A platform that takes each key once, however often it is sent."""

    name = "far"
    max_text_length = 30
    takes_key = True

    def __init__(self) -> None:
        self.taken: dict[str, OutboundPart] = {}

    async def send(self, part: OutboundPart) -> Sent:
        self.taken.setdefault(part.key, part)
        return Sent(part.key)


class WholeExchange:
    """A send with a wait, five turns, and an announce of three parts."""

    timeout_s: ClassVar[float] = 30
    turns: ClassVar[int] = 5

    def __init__(self) -> None:
        self.far = FarEnd()
        self.model = ScriptedModel(replies=self.reply)

    def reply(self, request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if "announce step" in last.text:
            return ANNOUNCE
        if "reply-back turn" in last.text:
            return "REPLY_SKIP" if f"turn {self.turns + 1} of" in last.text else "and what do you say?"
        if last.text == "go":
            return [call("sessions_send", sessionKey="agent:writer:main", message="ask", timeoutSeconds=self.timeout_s)]
        return "done" if last.role is Role.TOOL_RESULT else "a reply"

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)
        gateway.add_channel(self.far)

    async def drive(self, gateway: Gateway) -> None:
        event = InboundEvent(
            channel="far", chat_type=ChatType.DIRECT, chat_id="C1", sender_id="ada", message_id="1", text="hello"
        )
        taken = await gateway.inbound.take(event)
        await gateway.runtime.wait(taken.outcome.run_id or "", 20)
        await gateway.ask("main", "go", run_id="go")

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        self.check_runs(database)
        states = database.execute("SELECT state FROM exchanges").fetchall()
        assert states == [("done",)], states
        receipt = database.execute("SELECT state, text FROM deliveries WHERE exchange_id IS NOT NULL").fetchall()
        assert receipt == [("sent", ANNOUNCE)], receipt
        assert not database.execute("SELECT 1 FROM waits").fetchall(), "a wait was left"
        (delivery_id,) = database.execute("SELECT id FROM deliveries WHERE exchange_id IS NOT NULL").fetchone()
        posted = [part.text for key, part in sorted(self.far.taken.items()) if key.startswith(delivery_id)]
        assert posted == ANNOUNCE.split("\n"), posted
        assert len(self.far.taken) == 4, "the reply to the person, and the announce, once each"

    def check_runs(self, database: sqlite3.Connection) -> None:
        kinds = [kind for (kind,) in database.execute("SELECT kind FROM runs WHERE state = 'ok' ORDER BY position")]
        assert sorted(kinds) == sorted(["message", "message", "primary", *["turn"] * self.turns, "announce"]), kinds
        (session_id,) = database.execute("SELECT session_id FROM sessions WHERE key = 'agent:main:main'").fetchone()
        results = [message for message in transcript(database, session_id) if message.role is Role.TOOL_RESULT]
        assert len(results) == 1
        assert '"status":"ok"' in results[0].text
        heard = [message.text for message in transcript(database, session_id) if "reply-back turn 1" in message.text]
        assert len(heard) == 1
        assert "you already have this reply" in heard[0]


class FireAndForget(WholeExchange):
    """A send without a wait: turn 1 brings the reply."""

    timeout_s = 0

    def check_runs(self, database: sqlite3.Connection) -> None:
        (session_id,) = database.execute("SELECT session_id FROM sessions WHERE key = 'agent:main:main'").fetchone()
        heard = [message.text for message in transcript(database, session_id) if "reply-back turn 1" in message.text]
        assert len(heard) == 1
        assert "no longer waiting for" in heard[0]


@pytest.mark.parametrize("flow", [WholeExchange, FireAndForget], ids=lambda flow: flow.__name__)
async def test_an_exchange_goes_on_where_it_was_wherever_the_process_dies(
    flow: type[Flow], record_property: Callable[[str, object], None]
) -> None:
    points = await kill_at_every_commit(flow, CONFIG)
    record_property(CRASH_POINTS, (flow.__name__, points))
    assert points >= 20
