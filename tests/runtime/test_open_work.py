"""Open work of a session: it stands in the entry of a summary, from rows and not from a model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import Scripted, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.facts import ApprovalChanged
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.gateway.app import Gateway
from backchannel.runtime.events import Event
from tests.support.gateways import MAIN, ended, running, session_of, transcript_of
from tests.support.remembering import Remembering

pytestmark = pytest.mark.anyio

CONFIG: dict[str, Any] = {
    "agents": {
        "list": [{"id": "main", "model": "scripted/test", "subagents": {"allowAgents": ["*"]}}, {"id": "helper"}]
    },
    "tools": {
        "allow": ["sessions_spawn", "sessions_send", "danger", "write"],
        "sessions": {"visibility": "all"},
        "agentToAgent": {"enabled": True},
        "approval": [{"tool": "danger", "ask": "always"}],
    },
    "cron": {"jobs": [{"id": "nightly", "schedule": "0 3 * * *", "agentId": "main", "message": "count the ships"}]},
}


def reply(request: ModelRequest) -> Scripted | None:
    last = request.messages[-1]
    if last.role is not Role.USER:
        return "done"
    if last.text.endswith("delegate"):
        return [
            call("sessions_spawn", task="count the ships", label="counter", agentId="helper"),
            call("sessions_send", sessionKey="agent:helper:main", message="how many harbours?", timeoutSeconds=0),
        ]
    return [call("danger", path="/harbour")] if last.text.endswith("be brave") else None


class Scene:
    def __init__(self) -> None:
        self.model = Remembering(window=100_000, reply=reply)
        self.release = asyncio.Event()
        self.asked = asyncio.Event()

    def equip(self, gateway: Gateway) -> None:
        @gateway.agent("helper")
        async def helper(context: FunctionContext) -> str:
            await self.release.wait()
            return "There are 42 ships.\nThey are old."

        @gateway.tool(effects="outside")
        async def danger(path: str) -> str:
            return f"went to {path}"


async def test_approvals_sends_children_and_people_who_wait_are_named(tmp_path: Path) -> None:
    scene = Scene()
    async with running(tmp_path, scene.model.model, config=CONFIG, equip=scene.equip) as gateway:
        await gateway.ask("main", "delegate")

        def on_event(event: Event) -> None:
            scene.asked.set()

        gateway.runtime.hub.listen(on_event, ApprovalChanged)
        await gateway.submit("main", "be brave", run_id="brave")
        await scene.asked.wait()
        await gateway.submit("main", "are you there?", run_id="waiting")
        session = await session_of(gateway)
        lines = "\n".join((await gateway.store.open_work(MAIN, session.session_id)).lines)
        assert "the call of danger" in lines and "waits for a person's answer" in lines
        assert "Sent to agent:helper:main: 'how many harbours?'" in lines
        assert "(counter) works on 'count the ships' (receipt " in lines
        assert "waits for an answer to 'are you there?' (run waiting, in the queue)" in lines
        other = await session_of(gateway, "agent:helper:main")
        assert "Asked by agent:main:main" in "\n".join(
            (await gateway.store.open_work("agent:helper:main", other.session_id)).lines
        )
        scene.release.set()


async def test_results_of_sub_agents_and_words_of_people_are_in_the_entry_and_of_this_session_only(
    tmp_path: Path,
) -> None:
    scene = Scene()
    scene.release.set()
    async with running(tmp_path, scene.model.model, config=CONFIG, equip=scene.equip) as gateway:
        await gateway.ask("agent:main:other", "a secret of another session")
        await gateway.ask("main", "delegate")
        for n in range(6):
            await gateway.ask("main", f"Number {n}:  never say 'ahoy'!\n" + "and so on. " * 40)
        made = await gateway.runtime.compaction.asked(await session_of(gateway), None)
        assert made.entry is not None, made.reason
        (entry,) = [message for message in await transcript_of(gateway) if message.compaction is not None]
        assert "Results of sub-agents" in entry.text and "There are 42 ships." in entry.text
        assert "agent:helper:subagent:" in entry.text
        assert "> Number 3:  never say 'ahoy'!\n> and so on." in entry.text
        assert "secret" not in entry.text
        assert "secret" not in str(scene.model.summaries)


async def test_a_job_is_named_in_its_session(tmp_path: Path) -> None:
    scene = Scene()
    async with running(tmp_path, scene.model.model, config=CONFIG, equip=scene.equip) as gateway:
        run = await gateway.store.run_cron_job("nightly")
        await ended(gateway, run.id)
        key = str(SessionKey.cron("main", "nightly"))
        work = await gateway.store.open_work(key, (await session_of(gateway, key)).session_id)
        assert "Job nightly (0 3 * * *): 'count the ships'." in work.lines
        assert not [line for line in (await gateway.store.open_work(MAIN, "none")).lines if "nightly" in line]
