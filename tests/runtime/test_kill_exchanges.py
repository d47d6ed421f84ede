"""Whole exchanges are killed at each of their commits: every step happens once, and nobody misses anything."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.delivery.channels import InboundEvent
from backchannel.core.keys import ChatType, SessionKey
from backchannel.core.messages import Provenance, ProvenanceKind, Role, text_content
from backchannel.core.runs import RunRequest
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.databases import open_database
from tests.support.far_channel import FAR, FarChannel
from tests.support.gateways import Heard
from tests.support.kill import Flow, kill_at_every_commit, transcript

pytestmark = pytest.mark.anyio

ANNOUNCE = "The first line of the news.\nThe second line of the news.\nThe third line of the news."
CONFIG: dict[str, Any] = {
    "agents": {
        "list": [{"id": "main", "model": "scripted/test"}, {"id": "writer", "model": "scripted/test"}],
    },
    "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
    "channels": {"far": FAR},
    "bindings": [{"match": {"channel": "far"}, "agentId": "writer"}],
}


class WholeExchange:
    """A send with a wait, five turns, and an announce of three parts."""

    timeout_s: ClassVar[float] = 30
    turns: ClassVar[int] = 5
    receipt: ClassVar[tuple[str, str | None]] = ("sent", ANNOUNCE)
    posts: ClassVar[tuple[str, ...]] = tuple(ANNOUNCE.split("\n"))

    def __init__(self) -> None:
        self.far = FarChannel(max_text_length=30)
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
        await self.write_in(gateway)
        await gateway.ask("main", "go", run_id="go")

    async def write_in(self, gateway: Gateway) -> None:
        """Let a person write to the target, so that it has a chat."""
        event = InboundEvent(
            channel="far", chat_type=ChatType.DIRECT, chat_id="C1", sender_id="ada", message_id="1", text="hello"
        )
        taken = await gateway.inbound.take(event)
        await gateway.runtime.wait(taken.outcome.run_id or "", 20)

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        self.check_runs(database)
        states = database.execute("SELECT state FROM exchanges").fetchall()
        assert states == [("done",)], states
        receipt = database.execute("SELECT state, text FROM deliveries WHERE exchange_id IS NOT NULL").fetchall()
        assert receipt == [self.receipt], receipt
        assert not database.execute("SELECT 1 FROM waits").fetchall(), "a wait was left"
        self.check_posts(database)

    def check_posts(self, database: sqlite3.Connection) -> None:
        (delivery_id,) = database.execute("SELECT id FROM deliveries WHERE exchange_id IS NOT NULL").fetchone()
        posted = [part.text for key, part in sorted(self.far.taken.items()) if key.startswith(delivery_id)]
        assert tuple(posted) == self.posts, posted
        assert len(self.far.taken) == 1 + len(self.posts), "the reply to the person, and the announce, once each"

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


class OneTurn(WholeExchange):
    """A send whose target replies only when something has happened, and that is over after one turn."""

    turns = 1
    until: ClassVar[str] = "SELECT 1 FROM exchanges"

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    def reply(self, request: ModelRequest) -> Scripted:
        asked = request.messages[-1].text
        if "reply-back turn" in asked:
            return "REPLY_SKIP"
        is_request = "[Agent-to-agent context]" in asked and "announce step" not in asked
        return Reply(text="a reply", gate=self.gate) if is_request else super().reply(request)

    async def drive(self, gateway: Gateway) -> None:
        heard = Heard(gateway)
        state = gateway.store.folder.path
        await self.write_in(gateway)
        await gateway.submit("main", "go", run_id="go")
        await heard.until(lambda: self.is_so(state))
        await self.interfere(gateway)
        self.gate.set()
        await gateway.runtime.wait("go", 20)

    async def interfere(self, gateway: Gateway) -> None: ...

    def is_so(self, state: Path) -> bool:
        with closing(open_database(state)) as database:
            return database.execute(self.until).fetchone() is not None

    def check_runs(self, database: sqlite3.Connection) -> None:
        (session_id,) = database.execute("SELECT session_id FROM sessions WHERE key = 'agent:main:main'").fetchone()
        messages = transcript(database, session_id)
        (result,) = [message.text for message in messages if message.role is Role.TOOL_RESULT]
        told = [message.text for message in messages if message.role is Role.USER][1:]
        self.check_told(result, told)

    def check_told(self, result: str, told: list[str]) -> None:
        assert '"status":"ok"' in result, result
        assert len(told) == 1 and "you already have this reply" in told[0], told


class WaitRunsOut(OneTurn):
    """The wait is over before the target replies: the call says so, and turn 1 too."""

    timeout_s = 0.1
    until = "SELECT 1 FROM exchanges WHERE NOT EXISTS (SELECT 1 FROM waits)"

    def check_told(self, result: str, told: list[str]) -> None:
        assert '"status":"timeout"' in result, result
        assert len(told) == 1 and "no longer waiting for" in told[0], told


class StoppedInItsWait(OneTurn):
    """The caller is stopped while it waits: it is told that the message was sent, and gets the reply in turn 1."""

    async def interfere(self, gateway: Gateway) -> None:
        await gateway.runtime.abort("agent:main:main", "go")

    def check_told(self, result: str, told: list[str]) -> None:
        assert "its message was sent" in result and "do not send it again" in result, result
        assert len(told) == 1 and "no longer waiting for" in told[0], told


class TargetFails(OneTurn):
    """The target fails: the caller is told as the call's result, and nothing is announced."""

    receipt = ("cancelled", None)
    posts = ()

    def reply(self, request: ModelRequest) -> Scripted:
        replied = super().reply(request)
        return ModelFailed("no luck", retryable=False) if isinstance(replied, Reply) else replied

    def check_told(self, result: str, told: list[str]) -> None:
        assert '"status":"error"' in result and "no luck" in result, result
        assert told == []


class OnWebchat(OneTurn):
    """The target's chat is webchat: the announce is one message of its transcript, and its receipt is settled."""

    async def write_in(self, gateway: Gateway) -> None:
        person = Provenance(kind=ProvenanceKind.EXTERNAL_USER, source_channel="webchat")
        key = SessionKey.parse("agent:writer:main")
        hello = RunRequest(key=key, content=text_content("hello"), provenance=person, id="hello")
        await gateway.runtime.submit(hello)
        await gateway.runtime.wait("hello", 20)

    def check_posts(self, database: sqlite3.Connection) -> None:
        assert not self.far.taken
        assert database.execute("SELECT n, text, state FROM delivery_parts").fetchall() == [(1, ANNOUNCE, "sent")]
        (session_id,) = database.execute("SELECT session_id FROM sessions WHERE key = 'agent:writer:main'").fetchone()
        assert [message.text for message in transcript(database, session_id)].count(ANNOUNCE) == 1


FLOWS = [WholeExchange, FireAndForget, OneTurn, WaitRunsOut, StoppedInItsWait, TargetFails, OnWebchat]


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
async def test_an_exchange_goes_on_where_it_was_wherever_the_process_dies(
    flow: type[Flow], record_property: Callable[[str, object], None]
) -> None:
    points = await kill_at_every_commit(flow, CONFIG)
    record_property(CRASH_POINTS, (flow.__name__, points))
    assert points >= 20
