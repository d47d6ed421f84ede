"""A run that was set aside is killed at each commit of its way back, and nothing is lost, doubled or left open."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.clocks import StageClock
from tests.support.gateways import CONFIG, die_in, dying, stored
from tests.support.kill import kill_at_every_commit, transcript

pytestmark = [pytest.mark.anyio, pytest.mark.sqlite_only]  # it copies the file


class SetAside:
    """A process finds a run that was interrupted three times in one step; meanwhile another message comes."""

    def __init__(self, left_behind: Path) -> None:
        self._left_behind = left_behind
        self.model = ScriptedModel(replies=self.reply)

    def reply(self, request: ModelRequest) -> Scripted:
        return f"re: {next(m.text for m in reversed(request.messages) if m.role is Role.USER)}"

    def equip(self, gateway: Gateway) -> None:
        if not gateway.config.state_dir.joinpath("backchannel.db").exists():
            shutil.copytree(self._left_behind, gateway.config.state_dir, dirs_exist_ok=True)
        gateway.clock = StageClock()
        gateway.add_model(self.model)
        gateway.tool(effects="outside", name="dig")(_never)

    async def drive(self, gateway: Gateway) -> None:
        await gateway.submit("main", "later", run_id="later")
        for run_id in ("later", "r"):
            assert (await gateway.runtime.wait(run_id, 10)).is_finished

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        outcomes = dict(database.execute("SELECT id, state FROM runs").fetchall())
        assert outcomes == {"r": "ok", "later": "ok"}
        (session_id,) = database.execute("SELECT session_id FROM sessions").fetchone()
        replies = [m for m in transcript(database, session_id) if m.role is Role.ASSISTANT and not m.tool_calls]
        assert sorted(str(m.run_id) for m in replies) == ["later", "r"]
        assert not database.execute("SELECT 1 FROM timers WHERE kind = 'resume'").fetchall()
        assert database.execute("SELECT set_aside FROM sessions").fetchall() == [(0,)]


async def _never() -> str:
    await asyncio.Event().wait()
    return "never"


async def killed_in_a_tool(state: Path) -> None:
    """Let the process die three times while a call of the run is at work."""
    begun = asyncio.Event()

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none", name="dig")
        async def dig() -> str:
            begun.set()
            return await _never()

    for _ in range(3):
        begun.clear()
        async with dying(state, ScriptedModel(replies=[[call("dig")]]), equip=equip) as gateway:
            await gateway.submit("main", "go", run_id="r")
            await begun.wait()
            assert (await stored(gateway, "r")).step == 1


@pytest.mark.parametrize("in_a_tool", [False, True], ids=["in a model call", "in a tool call"])
async def test_a_run_that_was_set_aside_is_answered_wherever_the_process_dies_then(
    tmp_path: Path, in_a_tool: bool, record_property: Callable[[str, object], None]
) -> None:
    if in_a_tool:
        await killed_in_a_tool(tmp_path)
    else:
        await die_in(tmp_path, "r", times=3)
    (tmp_path / "lock").unlink(missing_ok=True)
    points = await kill_at_every_commit(lambda: SetAside(tmp_path), CONFIG)
    record_property(CRASH_POINTS, ("SetAside", points))
    assert points >= 6
