"""Every flow of the engine is killed at each of its commits, and nothing is lost, doubled or left open."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest, ToolContext
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.errors import SessionNotFound
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.kill import Flow, kill_at_every_commit, transcript

pytestmark = pytest.mark.anyio
CONFIG: dict[str, object] = {"agents": {"list": [{"id": "main", "model": "scripted/test"}]}}
MAIN = "agent:main:main"
Outcomes = dict[str, tuple[str, str | None]]


class Scene:
    """What most flows share: one scripted model, one session, and the outcome of each run by its id."""

    expected: ClassVar[Outcomes] = {}

    def __init__(self) -> None:
        self.model = ScriptedModel(replies=self.reply)

    def reply(self, request: ModelRequest) -> Scripted:
        return f"re: {request.messages[-1].text}"

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        outcomes = {
            run_id: (state, reply) for run_id, state, reply in database.execute("SELECT id, state, reply FROM runs")
        }
        assert outcomes == self.expected


class QueuedMessages(Scene):
    """Three messages come at once; they are answered one after the other."""

    expected: ClassVar[Outcomes] = {f"m{n}": ("ok", f"re: message {n}") for n in range(3)}

    async def drive(self, gateway: Gateway) -> None:
        for n in range(3):
            await gateway.submit("main", f"message {n}", run_id=f"m{n}")
        for n in range(3):
            await gateway.runtime.wait(f"m{n}", 10)

    def check(self, database: sqlite3.Connection) -> None:
        super().check(database)
        (session_id,) = database.execute("SELECT session_id FROM sessions").fetchone()
        texts = [message.text for message in transcript(database, session_id)]
        assert texts == [text for n in range(3) for text in (f"message {n}", f"re: message {n}")]


class Indexed(QueuedMessages):
    """Messages are answered and taken into the index of words, one after the other."""

    async def drive(self, gateway: Gateway) -> None:
        for n in range(3):
            await gateway.submit("main", f"message {n}", run_id=f"m{n}")
            await gateway.runtime.wait(f"m{n}", 10)
            await gateway.store.take_into_index(await gateway.store.unindexed(1))

    def check(self, database: sqlite3.Connection) -> None:
        super().check(database)
        written = [row for (row,) in database.execute("SELECT rowid FROM messages ORDER BY rowid")]
        waiting = [row for (row,) in database.execute("SELECT position FROM unindexed")]
        found = database.execute("SELECT rowid FROM message_words WHERE message_words MATCH 'said : message'")
        assert sorted([*waiting, *(row for (row,) in found)]) == written, "each message is found once"


class ToolRounds(Scene):
    """A run of two rounds: tools with and without outside effects side by side."""

    expected: ClassVar[Outcomes] = {"t": ("ok", "done")}

    def __init__(self) -> None:
        super().__init__()
        self.posted: Counter[str] = Counter()

    def reply(self, request: ModelRequest) -> Scripted:
        rounds = sum(message.role is Role.ASSISTANT for message in request.messages)
        if rounds == 2:
            return "done"
        return [call("post", n=rounds), call("look", n=rounds), call("post", n=rounds + 10)]

    def equip(self, gateway: Gateway) -> None:
        super().equip(gateway)

        @gateway.tool(effects="outside")
        async def post(n: int, context: ToolContext) -> str:
            self.posted[context.call_id] += 1
            return f"posted {n}"

        @gateway.tool(effects="none")
        async def look(n: int) -> str:
            return f"saw {n}"

    async def drive(self, gateway: Gateway) -> None:
        await gateway.ask("main", "go", run_id="t")

    def check(self, database: sqlite3.Connection) -> None:
        super().check(database)
        assert max(self.posted.values()) == 1, f"a tool with outside effects ran twice: {self.posted}"
        (session_id,) = database.execute("SELECT session_id FROM sessions").fetchone()
        results = [message for message in transcript(database, session_id) if message.role is Role.TOOL_RESULT]
        assert [message.tool_call_id for message in sorted(results, key=lambda m: m.tool_call_id or "")] == [
            f"t/{step}/{index}" for step in (0, 1) for index in (0, 1, 2)
        ]
        for message in results:
            honest = not message.is_error or "not known" in message.text
            assert honest, f"a call ended otherwise than by its result or the truth: {message.text}"


class Abort(Scene):
    """The active run is aborted in the middle of its reply, and a queued one before it starts."""

    expected: ClassVar[Outcomes] = {
        "active": ("aborted", None),
        "queued": ("aborted", None),
        "next": ("ok", "re: next"),
    }

    def reply(self, request: ModelRequest) -> Scripted:
        text = request.messages[-1].text
        if "next" in text:
            return "re: next"
        return Reply(text=("half of ", "a reply"), gate=asyncio.Event(), held_at=1)

    async def drive(self, gateway: Gateway) -> None:
        await gateway.submit("main", "hold", run_id="active")
        await gateway.submit("main", "later", run_id="queued")
        await gateway.runtime.abort(MAIN, "queued")
        await gateway.runtime.abort(MAIN, "active")
        for run_id in ("active", "queued"):
            await gateway.runtime.wait(run_id, 10)
        await gateway.ask("main", "next", run_id="next")

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        states = dict(database.execute("SELECT id, state FROM runs").fetchall())
        assert states == {run_id: state for run_id, (state, _) in self.expected.items()}
        (reply,) = database.execute("SELECT reply FROM runs WHERE id = 'active'").fetchone()
        assert reply in (None, "half of "), reply


class Reset(Scene):
    """A session is reset while one run is active and another waits: the second goes on in the new transcript."""

    def reply(self, request: ModelRequest) -> Scripted:
        if "hold" in request.messages[-1].text:
            return Reply(text=("half", ""), gate=asyncio.Event(), held_at=1)
        return "re: second"

    async def drive(self, gateway: Gateway) -> None:
        await gateway.submit("main", "hold", run_id="first")
        await gateway.submit("main", "second", run_id="second")
        first = await gateway.runtime.wait("first", 0)
        if not first.is_finished and not first.abort_requested:
            await gateway.store.reset_session(SessionKey.parse(MAIN))
        await gateway.runtime.wait("second", 10)

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        runs = {row[0]: row[1:] for row in database.execute("SELECT id, state, session_id FROM runs")}
        assert runs["first"][0] == "aborted"
        assert runs["second"][0] == "ok"
        assert runs["first"][1] != runs["second"][1]
        (current,) = database.execute("SELECT session_id FROM sessions").fetchone()
        assert [message.text for message in transcript(database, current)] == ["second", "re: second"]


class Delete(Scene):
    """A session is deleted while a run is active: the run is aborted, the session archived, its file renamed."""

    key = "agent:main:side"

    def reply(self, request: ModelRequest) -> Scripted:
        return Reply(text="never", gate=asyncio.Event())

    async def drive(self, gateway: Gateway) -> None:
        await gateway.submit(self.key, "hold", run_id="first")
        with suppress(SessionNotFound):  # the first life had deleted it
            await gateway.runtime.delete(SessionKey.parse(self.key))

    def check(self, database: sqlite3.Connection) -> None:
        assert database.execute("SELECT state FROM runs").fetchall() == [("aborted",)]
        (archived_at,) = database.execute("SELECT archived_at FROM sessions").fetchone()
        assert archived_at is not None


class NotesWhileRunning(Scene):
    """A note comes while a run with a tool call is at work; it enters when the run has ended."""

    expected: ClassVar[Outcomes] = {"t": ("ok", "done")}

    def __init__(self) -> None:
        super().__init__()
        self.noted = False

    def reply(self, request: ModelRequest) -> Scripted:
        return "done" if request.messages[-1].role is Role.TOOL_RESULT else [call("note")]

    def equip(self, gateway: Gateway) -> None:
        super().equip(gateway)

        @gateway.tool(effects="none")
        async def note() -> str:
            if not self.noted:
                await gateway.runtime.inject(SessionKey.parse(MAIN), "by the way", None)
                self.noted = True
            return "noted"

    async def drive(self, gateway: Gateway) -> None:
        await gateway.ask("main", "go", run_id="t")


class FunctionAgent:
    """A function agent that calls a tool with outside effects twice, and runs again from its beginning."""

    def __init__(self) -> None:
        self.posted: Counter[str] = Counter()

    def equip(self, gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def count(n: int, context: ToolContext) -> int:
            self.posted[context.call_id] += 1
            return n + 1

        @gateway.agent("adder")
        async def adder(context: FunctionContext) -> str:
            first = await context.call("count", n=1)
            second = await context.call("count", n=first)
            return f"{context.text} {second}"

    async def drive(self, gateway: Gateway) -> None:
        await gateway.ask("agent:adder:main", "sum", run_id="f")

    def check(self, database: sqlite3.Connection) -> None:
        assert database.execute("SELECT state, reply FROM runs").fetchall() == [("ok", "sum 3")]
        assert set(self.posted) == {"f/f/1", "f/f/2"}


@pytest.mark.parametrize(
    "flow",
    [QueuedMessages, Indexed, ToolRounds, Abort, Reset, Delete, NotesWhileRunning, FunctionAgent],
    ids=lambda f: f.__name__,
)
async def test_nothing_is_lost_doubled_or_left_open_wherever_the_process_dies(
    flow: type[Flow], record_property: Callable[[str, object], None]
) -> None:
    points = await kill_at_every_commit(flow, CONFIG)
    record_property(CRASH_POINTS, (flow.__name__, points))
    assert points >= 6
