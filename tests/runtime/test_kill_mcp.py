"""The gateway dies while an agent uses an MCP server: no call is made twice that may not be, and no process is left."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from tests.cli.program import Program, Up
from tests.conftest import CRASH_POINTS
from tests.support.kill import kill_at_every_commit, transcript
from tests.support.processes import Watched, all_ended
from tests.support.stub_provider import Answer, Call, StubProvider

pytestmark = pytest.mark.anyio
SERVER = Path(__file__).parent.parent / "support" / "mcp_server.py"


def server(diary: Path, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", str(SERVER)], "env": {"MCP_DIARY": str(diary)}, **more}


class McpRound:
    """A round of two calls of a server's tools, one with outside effects and one without."""

    def __init__(self, diary: Path) -> None:
        self.model = ScriptedModel(replies=self.reply)
        self._diary = diary
        self._mark = uuid4().hex

    def reply(self, request: ModelRequest) -> Scripted:
        if request.messages[-1].role is Role.TOOL_RESULT:
            return "done"
        return [call("far__post", text=self._mark), call("far__echo", text=self._mark)]

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

    async def drive(self, gateway: Gateway) -> None:
        await gateway.ask("main", "go", run_id="t")

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        assert database.execute("SELECT id, state, reply FROM runs").fetchall() == [("t", "ok", "done")]
        calls = [line for line in self._diary.read_text().splitlines() if self._mark in line]
        assert sum(line.startswith("call post") for line in calls) <= 1, "a call with outside effects was made twice"
        (session_id,) = database.execute("SELECT session_id FROM sessions").fetchone()
        results = {m.tool_name: m for m in transcript(database, session_id) if m.role is Role.TOOL_RESULT}
        assert results["far__echo"].text == f"echo: {self._mark}"
        posted = results["far__post"]
        assert posted.text == f"post: {self._mark}" or "Whether it had its effect is not known" in posted.text


async def test_a_round_over_mcp_is_right_wherever_the_process_dies(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    diary = tmp_path / "diary"
    config: dict[str, object] = {
        "agents": {"list": [{"id": "main", "model": "scripted/test"}]},
        "tools": {"allow": ["group:mcp:far"]},
        "mcp": {"servers": {"far": server(diary, effects={"echo": "none"})}},
    }
    points = await kill_at_every_commit(lambda: McpRound(diary), config)
    record_property(CRASH_POINTS, (McpRound.__name__, points))
    assert points >= 6


async def test_kill_9_in_a_call_leaves_no_process_and_the_next_start_tells_or_repeats_it(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    async with StubProvider() as stub:
        program = Program(tmp_path)
        write_config(program, stub, diary, looks_for_s=60)
        stub.then(
            Answer(calls=(Call("acts__fork", {}),)),
            Answer(calls=(Call("acts__hang", {"text": "act"}), Call("looks__hang", {"text": "look"}))),
            Answer(text="told"),
        )
        before = await started(program)
        await asyncio.to_thread(program.answer, "send", "main", "go", "--wait", "0", "--json")
        await seen(diary, "call hang", 2)
        forked = int(stub.requests[1].messages[-1]["content"])
        pids = [int(line.split()[1]) for line in diary.read_text().splitlines() if line.startswith("started")]
        assert len(pids) == 2
        processes = [Watched(pid) for pid in (*pids, forked)]
        assert not any(process.has_ended(0) for process in processes)

        await asyncio.to_thread(before.kill)
        assert await asyncio.to_thread(all_ended, processes)

        write_config(program, stub, diary, looks_for_s=1)
        after = await started(program)
        try:
            await stub.asked(3)
        finally:
            await asyncio.to_thread(after.kill)
    acted, looked = (message["content"] for message in stub.requests[2].messages[-2:])
    assert "interrupted while this call was in progress" in acted
    assert "took longer than 1 s and was cancelled" in looked
    assert diary.read_text().count('call hang {"text": "act"}') == 1
    assert diary.read_text().count('call hang {"text": "look"}') == 2


def write_config(program: Program, stub: StubProvider, diary: Path, *, looks_for_s: float) -> None:
    servers = {
        "acts": server(diary),
        "looks": server(diary, effects={"hang": "none"}, timeoutSeconds=looks_for_s),
    }
    config = {
        "agents": {"list": [{"id": "main", "model": "stub/test"}]},
        "models": {"providers": {"stub": {"api": "openai", "baseUrl": stub.base_url, "apiKey": "any"}}},
        "tools": {"allow": ["group:mcp:acts", "group:mcp:looks"]},
        "mcp": {"servers": servers},
    }
    program.write_config(json.dumps(config))


async def started(program: Program) -> Up:
    def start() -> Up:
        up = Up(program.command("up", "--port", "0"), program.env, program.home)
        up.wait_ready()
        return up

    return await asyncio.to_thread(start)


async def seen(diary: Path, what: str, times: int) -> None:
    async with asyncio.timeout(60):  # a gateway, and a server that it starts, have to come up first
        while _count(diary, what) < times:  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.02)


def _count(diary: Path, what: str) -> int:
    return diary.read_text().count(what) if diary.exists() else 0
