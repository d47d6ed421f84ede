"""A compaction is killed at each of its commits: there is the old view or the new one, and never half of one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable

import pytest

from backchannel.agents.scripted import Scripted, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.cut import Cut, read_cut
from backchannel.core.messages import Message, Role
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.kill import Flow, kill_at_every_commit, transcript
from tests.support.remembering import Remembering

pytestmark = pytest.mark.anyio

FILLER = "we talk about the weather for a while, and nothing of it matters. " * 40
MAIN, OTHER = "agent:main:main", "agent:other:main"
CONFIG: dict[str, object] = {
    "agents": {
        "list": [{"id": "main", "model": "scripted/test"}, {"id": "other", "model": "scripted/test"}],
        "defaults": {"context": {"at": 0.5, "hard": 0.6}},
    },
    "tools": {"allow": ["sessions_send"], "sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
}


async def settled(gateway: Gateway) -> None:
    compaction = gateway.runtime.compaction
    while waiting := [*compaction._tasks.values(), *compaction._asked]:
        await asyncio.gather(*waiting, return_exceptions=True)


def view_of(database: sqlite3.Connection, key: str) -> tuple[Cut, list[Message]]:
    session_id, cut = database.execute(
        "SELECT i.session_id, i.cut FROM session_ids i JOIN sessions s ON s.session_id = i.session_id WHERE s.key = ?",
        (key,),
    ).fetchone()
    return read_cut(cut), transcript(database, session_id)


def check_whole(cut: Cut, messages: list[Message]) -> None:
    """Check that a cut and the summary that it names belong together, and that calls and results do."""
    entries = {message.id: message for message in messages if message.compaction is not None}
    if cut.summary_id is None:
        assert not cut.covered
    else:
        entry = entries[cut.summary_id].compaction
        assert entry is not None
        assert messages[cut.covered - 1].id == entry.through_message_id
    assert cut.is_undone or cut.summary_id == next(reversed(entries), None), "a summary without its cut"
    for at, message in enumerate(messages):
        calls = [call.id for call in message.tool_calls]
        assert [later.tool_call_id for later in messages[at + 1 : at + 1 + len(calls)]] == calls


class Scene:
    """One session grows until its older part is summarised."""

    def __init__(self) -> None:
        self.scene = Remembering(window=4_000, reply=self.reply)

    def reply(self, request: ModelRequest) -> Scripted | None:
        return None

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.scene.model)

    async def say(self, gateway: Gateway, count: int = 4) -> None:
        await gateway.ask("main", "fact harbour is Varna", run_id="fact")
        for n in range(count):
            await gateway.ask("main", f"{n}: {FILLER}", run_id=f"m{n}")

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.scene.model.refused, self.scene.model.refused
        check_whole(*view_of(database, MAIN))


class Beside(Scene):
    """The summary is made beside the lane, and the next question is answered from it."""

    async def drive(self, gateway: Gateway) -> None:
        await self.say(gateway)
        await settled(gateway)
        assert await gateway.ask("main", "what is harbour?", run_id="q") == "Varna"
        await settled(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        super().check(database)
        assert view_of(database, MAIN)[0].summary_id is not None


class AskedAndUndone(Scene):
    """A person asks for a summary, and takes it back."""

    async def drive(self, gateway: Gateway) -> None:
        await self.say(gateway, 2)
        session = await gateway.store.session(MAIN)
        assert session is not None
        if (await gateway.store.context(session.session_id, max_bytes=1)).head.cut is None:
            await gateway.runtime.compaction.asked(session, None)
        await gateway.runtime.compaction.undo(MAIN)
        assert await gateway.ask("main", "what is harbour?", run_id="q") == "Varna"

    def check(self, database: sqlite3.Connection) -> None:
        super().check(database)
        cut, _ = view_of(database, MAIN)
        assert cut.is_undone and cut.summary_id is None


class InAnExchange(Scene):
    """A session waits for another whose run waits for a summary of its own conversation."""

    def reply(self, request: ModelRequest) -> Scripted | None:
        last = request.messages[-1]
        if last.role is Role.USER and last.text == "ask the other":
            return [call("sessions_send", sessionKey=OTHER, message="what is harbour?", timeoutSeconds=60)]
        return f"it said {last.text}" if last.role is Role.TOOL_RESULT else None

    async def drive(self, gateway: Gateway) -> None:
        await gateway.ask(OTHER, "fact harbour is Varna", run_id="fact")
        for n in range(5):
            await gateway.ask(OTHER, f"{n}: {FILLER}", run_id=f"m{n}")
        reply = await gateway.ask("main", "ask the other", run_id="q")
        assert "Varna" in reply, reply
        await settled(gateway)

    def check(self, database: sqlite3.Connection) -> None:
        super().check(database)
        check_whole(*view_of(database, OTHER))
        assert view_of(database, OTHER)[0].summary_id is not None


@pytest.mark.parametrize("flow", [Beside, AskedAndUndone, InAnExchange])
async def test_killed_at_any_commit_there_is_one_view_and_nothing_is_lost(
    flow: type[Flow], record_property: Callable[[str, object], None]
) -> None:
    hit = await kill_at_every_commit(flow, CONFIG)
    record_property(CRASH_POINTS, (flow.__name__, hit))
    assert hit > 5
