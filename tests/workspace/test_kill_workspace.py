"""A run with commands and files is killed at every step, and with `kill -9`: nothing is done twice, nothing is left."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.handy import RUN_ID, open_handy
from tests.support.kill import kill_at_every_commit, transcript
from tests.support.processes import Watched, all_ended, watched_in
from tests.workspace.test_exec import STUBBORN, rung

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
CONFIG: dict[str, object] = {
    "agents": {"list": [{"id": "main", "model": "scripted/test"}]},
    "tools": {"allow": ["group:fs", "group:exec"]},
}
INTERRUPTED = "The gateway was interrupted while this call was in progress."


class Hands:
    """A run that writes a file and runs a command side by side, then leaves one in the background."""

    def __init__(self) -> None:
        self._model = ScriptedModel(replies=self._reply)
        self._root = Path()

    def _reply(self, request: ModelRequest) -> Scripted:
        match sum(message.role is Role.ASSISTANT for message in request.messages):
            case 0:
                return [call("write", path="a", content="a"), call("exec", command="echo once >> log")]
            case 1:
                return [call("exec", command="echo background >> log; sleep 600", background=True)]
        return "done"

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self._model)
        self._root = gateway.sandboxes.workspace("main")

    async def drive(self, gateway: Gateway) -> None:
        assert await gateway.ask("main", "go", run_id="h") == "done"

    def check(self, database: sqlite3.Connection) -> None:
        (session_id,) = database.execute("SELECT session_id FROM sessions").fetchone()
        results = [m for m in transcript(database, session_id) if m.role is Role.TOOL_RESULT]
        assert len(results) == 3
        log = (self._root / "log").read_text().split() if (self._root / "log").exists() else []
        assert log.count("once") <= 1 and log.count("background") <= 1
        for message in results:
            assert message.text.startswith((INTERRUPTED, "wrote a", "[exit code 0", "[started in the background"))
            if message.text.startswith("[exit code 0"):
                assert "once" in log
            if message.text.startswith("wrote a"):
                assert (self._root / "a").read_text() == "a"
        assert not list(self._root.glob(".*.tmp"))


async def test_a_run_with_hands_is_killed_at_every_commit(record_property: Callable[[str, object], None]) -> None:
    hit = await kill_at_every_commit(Hands, CONFIG)
    assert hit > 10
    record_property(CRASH_POINTS, ("commands and files", hit))


@pytest.mark.usefixtures("real_sandbox")
@pytest.mark.parametrize(("mode", "where"), [("off", "call"), ("off", "background"), ("all", "call")])
async def test_kill_9_leaves_no_process_and_the_command_is_told_as_interrupted(
    tmp_path: Path, mode: str, where: str
) -> None:
    root = tmp_path / "agents/main/workspace"
    root.mkdir(parents=True)
    os.mkfifo(root / "ready")
    inside = "trap '' TERM; (setsid sleep 600 &); echo ran >> log; echo ready > ready; sleep 600"
    command = inside if mode == "all" else f"echo ran >> log; {STUBBORN}"
    words = [sys.executable, "-m", "tests.support.handy", str(tmp_path), mode, command]
    process = await asyncio.create_subprocess_exec(*words, *(["background"] if where == "background" else []), cwd=ROOT)
    await rung(root / "ready")
    alive = await asyncio.to_thread(_alive, root, mode)
    assert len(alive) >= 3
    process.kill()
    await process.wait()
    assert await asyncio.to_thread(all_ended, alive)
    async with open_handy(tmp_path, mode, background=where == "background") as gateway, asyncio.timeout(20):
        run = await gateway.runtime.wait(RUN_ID, 20)
        if where == "background":
            assert "it ended when the gateway stopped  echo ran >> log" in await gateway.ask("main", "list")
        else:
            assert (run.reply or "").startswith(INTERRUPTED)
        assert not [use for use in gateway.gates.uses() if use.kind in ("exec", "background")]
    assert (root / "log").read_text() == "ran\n"


def _alive(root: Path, mode: str) -> list[Watched]:
    """Watch what runs: what wrote its number down, or, in a sandbox, what has the workspace in its words."""
    if mode == "off":
        return watched_in(root / "pids")
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(root).encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(Watched(int(path.parent.name)))
        except (OSError, ProcessLookupError):
            continue
    return found


async def test_an_aborted_run_ends_its_command_with_all_that_it_started(tmp_path: Path) -> None:
    root = tmp_path / "agents/main/workspace"
    root.mkdir(parents=True)
    os.mkfifo(root / "ready")
    async with open_handy(tmp_path, "off", STUBBORN) as gateway, asyncio.timeout(20):
        await gateway.submit("main", "go", run_id=RUN_ID)
        await rung(root / "ready")
        alive = watched_in(root / "pids")
        await gateway.runtime.abort("agent:main:main", RUN_ID)
        assert (await gateway.runtime.wait(RUN_ID, 20)).state == "aborted"
        assert await asyncio.to_thread(all_ended, alive)


async def test_a_deleted_session_ends_its_background_commands(tmp_path: Path) -> None:
    root, side = tmp_path / "agents/main/workspace", "agent:main:side"
    root.mkdir(parents=True)
    os.mkfifo(root / "ready")
    async with open_handy(tmp_path, "off", STUBBORN, background=True) as gateway, asyncio.timeout(20):
        await gateway.submit(side, "go", run_id=RUN_ID)
        await rung(root / "ready")
        alive = watched_in(root / "pids")
        await gateway.runtime.delete(gateway.key(side))
        assert await asyncio.to_thread(all_ended, alive)
