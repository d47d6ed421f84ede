"""Slots through a real gateway: one agent cannot keep another out, and the operator sees and ends what works."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.config.load import config_from
from backchannel.core.contracts import ModelRequest
from backchannel.core.facts import RunChanged
from backchannel.core.messages import Role
from backchannel.core.runs import Run, RunState
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import listening
from backchannel.runtime.events import Event
from backchannel.wire.rows import SlotUse
from tests.gateway.client import OPERATOR, Client, connected
from tests.support.processes import all_ended, watched_in
from tests.workspace.test_exec import STUBBORN, rung

pytestmark = pytest.mark.anyio
SERVER = Path(__file__).parent.parent / "support" / "mcp_server.py"
HOLD = "while [ ! -e go ]; do sleep 0.05; done; echo held"


class Room:
    """A gateway with two agents, `box` and `quick`, whose messages are the tool calls that they make."""

    def __init__(self, gateway: Gateway, url: str, go_on: asyncio.Event) -> None:
        self.gateway = gateway
        self.url = url
        self.go_on = go_on
        """Lets models go on that were asked to hold."""

    async def submit(self, session: str, *calls: tuple[str, dict[str, Any]]) -> Run:
        return await self.gateway.submit(session, json.dumps(calls))

    async def ask(self, session: str, *calls: tuple[str, dict[str, Any]]) -> str:
        return await self.gateway.ask(session, json.dumps(calls), timeout_s=20)

    async def reply(self, run: Run) -> str:
        ended = await self.gateway.runtime.wait(run.id, 20)
        return ended.reply or f"{ended.state}: {ended.error_code}: {ended.error}"

    async def used(self, kind: str, used: int, waiting: int = 0) -> list[SlotUse]:
        """Wait until so many slots are used and waited for; returns all of them."""
        async with asyncio.timeout(20):
            while True:
                uses = [use for use in self.gateway.gates.uses() if use.kind == kind]
                if [sum(use.is_waiting is state for use in uses) for state in (False, True)] == [used, waiting]:
                    return uses
                await asyncio.sleep(0.01)

    def go(self) -> None:
        for agent in ("box", "quick"):
            root = self.gateway.sandboxes.workspace(agent)
            root.mkdir(parents=True, exist_ok=True)
            (root / "go").touch()
        self.go_on.set()

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Client]:
        async with connected(self.url, OPERATOR) as client:
            yield client


@asynccontextmanager
async def room(state: Path, **more: Any) -> AsyncIterator[Room]:
    defaults = {"model": "scripted/test", **more.pop("defaults", {})}
    config = {
        "gateway": {"port": 0},
        "agents": {"list": [{"id": "box"}, {"id": "quick"}], "defaults": defaults},
        "tools": {"allow": ["group:fs", "group:exec", "group:mcp:far"], **more.pop("tools", {})},
        **more,
    }
    go_on = asyncio.Event()

    def reply(request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if last.role is Role.TOOL_RESULT:
            results = [message.text for message in request.messages if message.role is Role.TOOL_RESULT]
            return "\n".join(results)
        if last.text == "hold":
            return Reply(text="held", gate=go_on)
        return [call(name, **arguments) for name, arguments in json.loads(last.text)] or "nothing to do"

    gateway = Gateway(config_from(config, {}, state=state))
    gateway.add_model(ScriptedModel(replies=reply))
    async with gateway, listening(gateway, OPERATOR) as at:
        made = Room(gateway, at.websocket_url, go_on)
        try:
            yield made
        finally:
            made.go()


def run_it(command: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "exec", {"command": command, **more}


async def test_an_agent_whose_commands_take_all_it_may_have_keeps_no_other_agent_waiting(tmp_path: Path) -> None:
    async with room(tmp_path) as at:
        runs = [await at.submit(f"agent:box:s{n}", run_it(HOLD)) for n in range(16)]
        await at.used("exec", 12, 4)
        assert (await at.ask("agent:quick:main", run_it("echo quick"))).startswith("quick\n[exit code 0")
        others = [run_it("echo quick") for _ in range(4)]
        assert (await at.ask("agent:quick:other", *others)).count("quick") == 4
        await at.used("exec", 12, 4)
        at.go()
        assert all("held" in said for said in [await at.reply(run) for run in runs])
        await at.used("exec", 0)


async def test_a_session_with_many_commands_leaves_room_for_the_other_sessions_of_its_agent(tmp_path: Path) -> None:
    async with room(tmp_path) as at:
        run = await at.submit("agent:box:greedy", *(run_it(HOLD) for _ in range(20)))
        await at.used("exec", 4, 16)
        assert "beside" in await at.ask("agent:box:other", run_it("echo beside"))
        at.go()
        assert (await at.reply(run)).count("held") == 20


async def test_an_agent_whose_background_commands_take_all_it_may_have_leaves_others_theirs(tmp_path: Path) -> None:
    async with room(tmp_path) as at:
        for n in range(6):
            said = await at.ask(f"agent:box:s{n}", *(run_it("sleep 600", background=True) for _ in range(8)))
            assert said.count("started in the background") == 8 and said.count("it is stopped after 3600 s") == 8
        refused = await at.ask("agent:box:new", run_it("sleep 600", background=True))
        assert refused.startswith("too many commands run in the background: 48 of this agent")
        assert "This session has none; each ends by its time limit at the latest" in refused
        assert "8 of this session, which may have no more" in await at.ask(
            "agent:box:s0", run_it("sleep 600", background=True)
        )
        assert "started in the background" in await at.ask("agent:quick:main", run_it("sleep 600", background=True))


async def test_a_background_command_is_stopped_after_the_time_that_the_setting_says(tmp_path: Path) -> None:
    async with room(tmp_path, tools={"exec": {"backgroundSeconds": 0.2}}) as at:
        said = await at.ask("agent:box:main", run_it("sleep 600", background=True))
        assert "it is stopped after 0.2 s" in said
        await at.used("background", 0)
        async with asyncio.timeout(20):
            while "stopped after 0.2 s, its time limit" not in said:
                said = await at.ask("agent:box:main", ("process", {"action": "list"}))
        described = at.gateway.workspace.tools()["exec"].description
        assert "for 0.2 s or `timeoutSeconds`" in described
        too_long = await at.ask("agent:box:main", run_it("true", background=True, timeoutSeconds=90_000))
        assert "timeoutSeconds: at most 86400 in the background" in too_long


async def test_an_agent_whose_mcp_calls_take_all_it_may_have_keeps_no_other_agent_waiting(tmp_path: Path) -> None:
    async with room(tmp_path, mcp={"servers": {"far": _server()}}) as at:
        for n in range(4):
            await at.submit(f"agent:box:s{n}", *(("far__hang", {}) for _ in range(16)))
        await at.used("mcp:far", 48, 16)
        assert await at.ask("agent:quick:main", ("far__echo", {"text": "hello"})) == "echo: hello"
        await at.used("mcp:far", 48, 16)


def _server() -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", str(SERVER), "{}"]}


async def test_an_agent_whose_runs_wait_for_their_model_keeps_no_other_agent_waiting(tmp_path: Path) -> None:
    async with room(tmp_path, defaults={"maxConcurrent": 4}) as at:
        runs = [await at.gateway.submit(f"agent:box:s{n}", "hold") for n in range(8)]
        await at.used("model", 3)
        await at.used("run", 3, 5)
        assert await at.ask("agent:quick:main") == "nothing to do"
        at.go()
        assert [await at.reply(run) for run in runs] == ["held"] * 8


async def test_agents_take_turns_where_a_setting_leaves_fewer_slots_than_agents(tmp_path: Path) -> None:
    async with room(tmp_path, defaults={"maxConcurrent": 1}) as at:
        started: list[str] = []

        def on_run(event: Event) -> None:
            if isinstance(event, RunChanged) and event.run.state is RunState.RUNNING and not event.run.step:
                started.append(event.run.session_key)

        at.gateway.runtime.hub.listen(on_run, RunChanged)
        runs = [await at.gateway.submit("agent:box:first", "hold")]
        runs += [await at.submit(f"agent:box:s{n}") for n in range(4)]
        runs += [await at.submit("agent:quick:main")]
        at.go()
        for run in runs:
            await at.reply(run)
        assert "agent:quick:main" in started[:3], started


async def test_the_operator_sees_what_works_and_what_waits(tmp_path: Path) -> None:
    async with room(tmp_path) as at, at.operator() as operator:
        await at.submit("agent:box:greedy", *(run_it(HOLD + " sk-ant-api03-" + "a" * 60) for _ in range(5)))
        await at.used("exec", 4, 1)
        listed = await operator.ask("slots.list")
        kinds = {each["kind"]: each for each in listed["kinds"]}
        assert kinds["exec"] == {"kind": "exec", "limit": 16, "own": 4, "used": 4, "waiting": 1}
        assert kinds["run"]["used"] == 1 and kinds["background"]["limit"] == 64
        execs = [use for use in listed["slots"] if use["kind"] == "exec"]
        assert [use.get("isWaiting", False) for use in execs] == [False] * 4 + [True]
        assert {use["sessionKey"] for use in execs} == {"agent:box:greedy"} and {use["agentId"] for use in execs} == {
            "box"
        }
        assert all(use["what"].startswith("while [ ! -e go ]") and "sk-ant" not in use["what"] for use in execs)
        assert all(use["since"] <= at.gateway.clock.now_ms() for use in execs)
        assert {use["what"] for use in listed["slots"] if use["kind"] == "run"} == {"message run"}


async def test_the_operator_ends_a_command_with_all_that_it_started_and_the_model_is_told(tmp_path: Path) -> None:
    async with room(tmp_path) as at, at.operator() as operator:
        root = at.gateway.sandboxes.workspace("box")
        root.mkdir(parents=True)
        ready = root / "ready"
        os.mkfifo(ready)
        run = await at.submit("agent:box:main", run_it(f"echo begun; {STUBBORN}"))
        await rung(ready)
        alive = watched_in(root / "pids")
        (use,) = await at.used("exec", 1)
        found = await operator.ask("ids.resolve", kind="slot", id=use.id[:14])
        assert (await operator.ask("slots.end", id=found["id"])) == {"ok": True, "id": use.id}
        said = await at.reply(run)
        assert said == "begun\n[ended by the operator, with all that it had started]"
        assert await asyncio.to_thread(all_ended, alive)
        await at.used("exec", 0)
        assert (await operator.refused("slots.end", {"id": use.id}))["details"]["code"] == "slot_not_found"


async def test_the_operator_ends_a_command_that_waits_for_its_slot(tmp_path: Path) -> None:
    async with room(tmp_path) as at, at.operator() as operator:
        run = await at.submit("agent:box:main", *(run_it(HOLD) for _ in range(5)))
        (waiting,) = [use for use in await at.used("exec", 4, 1) if use.is_waiting]
        await operator.ask("slots.end", id=waiting.id)
        await at.used("exec", 4)
        at.go()
        said = await at.reply(run)
        assert said.count("held") == 4 and said.count("[ended by the operator, before it had begun]") == 1


async def test_the_operator_ends_a_background_command_and_its_session_is_told(tmp_path: Path) -> None:
    async with room(tmp_path) as at, at.operator() as operator:
        await at.ask("agent:box:main", run_it("sleep 600", background=True))
        (use,) = await at.used("background", 1)
        assert use.what == "sleep 600"
        await operator.ask("slots.end", id=use.id)
        await at.used("background", 0)
        assert "ended by the operator after" in await at.ask("agent:box:main", ("process", {"action": "list"}))


async def test_the_operator_ends_a_call_of_an_mcp_server_and_the_model_is_told(tmp_path: Path) -> None:
    async with room(tmp_path, mcp={"servers": {"far": _server()}}) as at, at.operator() as operator:
        run = await at.submit("agent:box:main", ("far__hang", {}))
        (use,) = await at.used("mcp:far", 1)
        await operator.ask("slots.end", id=use.id)
        assert (await at.reply(run)).startswith("The operator ended the call. Whether the call had its effect")
        assert await at.ask("agent:box:after", ("far__echo", {"text": "still there"})) == "echo: still there"


async def test_the_operator_ends_a_model_call_and_the_run_fails_in_words(tmp_path: Path) -> None:
    async with room(tmp_path) as at, at.operator() as operator:
        run = await at.gateway.submit("agent:box:main", "hold")
        (use,) = await at.used("model", 1)
        assert (use.what, use.run_id) == ("scripted/test", run.id)
        await operator.ask("slots.end", id=use.id)
        assert await at.reply(run) == "error: ended_by_operator: the operator ended this call"
        assert await at.ask("agent:box:after") == "nothing to do"


async def test_the_operator_ends_a_run_as_an_abort_does(tmp_path: Path) -> None:
    async with room(tmp_path) as at, at.operator() as operator:
        run = await at.gateway.submit("agent:box:main", "hold")
        await at.used("model", 1)
        await operator.ask("slots.end", id=run.id)
        assert await at.reply(run) == "aborted: aborted: aborted"
        await at.used("run", 0)


async def test_only_the_scope_admin_ends_what_works(tmp_path: Path) -> None:
    async with room(tmp_path) as at, at.operator() as operator:
        run = await at.gateway.submit("agent:box:main", "hold")
        await at.used("model", 1)
        made = await operator.ask("tokens.create", scopes=["operator.read", "operator.write"])
        async with connected(at.url, made["token"], scopes=["operator.read", "operator.write"]) as writer:
            assert any(use["kind"] == "run" for use in (await writer.ask("slots.list"))["slots"])
            assert (await writer.refused("slots.end", {"id": run.id}))["details"]["code"] == "scope_missing"
