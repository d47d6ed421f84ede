"""`/stop` and `/subagents` over the bridge: what is counted, what is stopped, and what is told of a child."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.flows.spawn_texts import SPAWN_ANNOUNCE_LINE
from backchannel.core.messages import Role
from backchannel.core.runs import RunState
from tests.channels.desk import ChannelDesk, desk
from tests.support.far_end import FarEnd
from tests.support.gateways import CONFIG, MAIN, live_runs, texts_of
from tests.support.resting import at_rest

pytestmark = pytest.mark.anyio
SECRET = "ghp_" + "a1B2" * 9


class Family:
    """A session whose model starts the sub-agents that it is told to, each of which works until it is let go."""

    def __init__(self) -> None:
        self.model = ScriptedModel(replies=self.reply)
        self.let_go = asyncio.Event()

    def reply(self, request: ModelRequest) -> Scripted:
        last = request.messages[-1].text
        if SPAWN_ANNOUNCE_LINE in last:
            return "it is done"
        if "You are a sub-agent" in request.system:
            if request.messages[-1].role is not Role.TOOL_RESULT:
                return Reply(thinking="hm", text="I look.", calls=(call("look", token=SECRET),))
            return Reply(text="still looking", gate=self.let_go)
        if last.startswith("start "):
            return [call("sessions_spawn", task=f"{name}, with {SECRET}", label=name) for name in last[6:].split(", ")]
        return "on it" if request.messages[-1].role is Role.TOOL_RESULT else f"re: {last}"


class Room:
    """The chat of that session."""

    def __init__(self, world: ChannelDesk, far_end: FarEnd, family: Family) -> None:
        self.world, self.gateway, self.far_end, self.family = world, world.gateway, far_end, family
        self._said = 0

    async def says(self, text: str) -> str:
        """Write something that is answered; returns the answer."""
        self._said, count = self._said + 1, len(self.far_end.messages)
        await self.world.say(text=text, messageId=f"m{self._said}")
        return (await self.far_end.took(count + 1))[count].text

    async def starts(self, *names: str, working: int | None = None) -> None:
        """Start sub-agents, and wait until they are at work, or so many of them are."""
        asked = len(self.family.model.requests)
        assert await self.says(f"start {', '.join(names)}") == "on it"
        async with asyncio.timeout(20):
            await self.family.model.asked(asked + 2 + 2 * (len(names) if working is None else working))

    async def over(self) -> None:
        async with asyncio.timeout(20):
            await at_rest(self.gateway)


@asynccontextmanager
async def room(state: Path, **subagents: Any) -> AsyncIterator[Room]:
    family = Family()
    agents = {**CONFIG["agents"], "defaults": {"subagents": subagents}}
    async with FarEnd() as far_end:
        async with desk(state, {"desk": far_end.settings()}, model=family.model, agents=agents) as world:

            @world.gateway.tool(effects="none")
            async def look(token: str) -> str:
                """Look, with a token."""
                return f"found token={token}"

            yield Room(world, far_end, family)
        assert set(far_end.counts.values()) <= {1}
    assert not family.model.refused, family.model.refused


async def test_stop_counts_every_sub_agent_the_waiting_ones_too_and_says_so_once(tmp_path: Path) -> None:
    async with room(tmp_path, maxConcurrent=2) as chat:
        await chat.starts("red", "green", "blue", working=2)
        assert "Sub-agents: 3 at work" in await chat.says("/status")
        assert await chat.says("/stop") == "Stopped 3 sub-agents."
        assert await chat.says("/stop") == "Nothing is running here."
        await chat.over()
        assert "Sub-agents" not in await chat.says("/status")
        assert [run.state for run in await chat.gateway.store.runs(limit=100) if run.kind.value == "child"] == [
            RunState.ABORTED
        ] * 3
        assert not [text for text in chat.far_end.texts if text.startswith("Status: aborted")]
        notes = [text for text in await texts_of(chat.gateway) if text.startswith("[3 sub-agents stopped]")]
        assert len(notes) == 1


async def test_stop_counts_the_run_of_the_session_and_its_sub_agents(tmp_path: Path) -> None:
    async with room(tmp_path) as chat:
        await chat.starts("red", "green")
        reached, gate = asyncio.Event(), asyncio.Event()
        chat.family.model.add(Reply(text="thinking", gate=gate, reached=reached))
        await chat.world.say(text="think for ever", messageId="x")
        await reached.wait()
        assert await chat.says("/stop") == "Stopped 1 run and 2 sub-agents."
        await chat.over()


async def test_after_new_the_sub_agents_go_on_and_the_new_conversation_has_their_results(tmp_path: Path) -> None:
    async with room(tmp_path) as chat:
        await chat.starts("red")
        assert (await chat.says("/new")).startswith("Started a new conversation")
        assert "Sub-agents: 1 at work" in await chat.says("/status")
        chat.family.let_go.set()
        await chat.over()
        assert chat.far_end.texts[-1].startswith("Status: success\nResult: it is done\n")
        assert await texts_of(chat.gateway) == [chat.far_end.texts[-1]]


async def test_stopping_one_child_stops_that_one_only_and_its_end_is_told(tmp_path: Path) -> None:
    async with room(tmp_path) as chat:
        await chat.starts("red")
        await chat.starts("The Scout")
        assert await chat.says('/subagents stop "the scout"') == 'Stopped sub-agent "The Scout".'
        post = (await chat.far_end.took(4))[3].text
        assert post.startswith("Status: aborted\n")
        assert await chat.says("/subagents stop The Scout") == 'Sub-agent "The Scout" is not running.'
        (run,) = await live_runs(chat.gateway)
        assert run.session_key.startswith("agent:main:subagent:")
        chat.family.let_go.set()
        await chat.over()
        posts = [text for text in chat.far_end.texts if text.startswith("Status: ")]
        assert [post.splitlines()[0] for post in posts] == ["Status: aborted", "Status: success"]
        told = [text for text in await texts_of(chat.gateway) if text.startswith("Status: aborted")]
        assert len(told) == 1


async def test_a_number_that_was_read_means_the_same_child_when_another_was_started_since(tmp_path: Path) -> None:
    async with room(tmp_path) as chat:
        await chat.starts("red")
        assert (await chat.says("/subagents list")).startswith('1. "red", running, 0s: "red, with ')
        await chat.starts("green")
        listed = (await chat.says("/subagents list")).splitlines()
        assert [line[:10] for line in listed] == ['1. "red", ', '2. "green"']
        assert await chat.says("/subagents stop 1") == 'Stopped sub-agent "red".'
        await chat.far_end.took(6)
        assert await chat.says("/subagents stop all") == "Stopped 1 sub-agent."
        await chat.over()


async def test_children_of_one_moment_are_numbered_as_they_were_asked_for(tmp_path: Path) -> None:
    names = [f"child{n}" for n in range(8)]
    async with room(tmp_path) as chat:
        await chat.starts(*names)
        listed = (await chat.says("/subagents list")).splitlines()
        assert [line.partition(",")[0] for line in listed] == [f'{n}. "{name}"' for n, name in enumerate(names, 1)]
        await chat.says("/stop")
        await chat.over()


async def test_a_child_is_told_without_what_looks_like_a_credential(tmp_path: Path) -> None:
    async with room(tmp_path) as chat:
        await chat.starts("red")
        listed, told = await chat.says("/subagents list"), await chat.says("/subagents info red")
        log = await chat.says("/subagents log 1")
        assert "a1B2" not in listed + told + log and "[redacted]" in log
        assert told.splitlines()[:2] == ['Sub-agent "red": running', "Task: red, with [redacted]"]
        assert [line.partition(":")[0] for line in log.splitlines()] == ["user", "assistant", "toolResult"]
        assert "I look. look {" in log and "hm" not in log
        unknown = await chat.says("/subagents log nobody")
        assert unknown.startswith('No sub-agent here is "nobody"')
        chat.family.let_go.set()
        await chat.over()
        assert "assistant: it is done" in await chat.says("/subagents log red")
        assert "/subagents" not in " ".join(await texts_of(chat.gateway))


async def test_the_children_of_another_session_are_none_of_ours(tmp_path: Path) -> None:
    async with room(tmp_path) as chat:
        await chat.starts("red")
        (kin,) = (await chat.gateway.store.family(MAIN, 10)).children
        group: dict[str, Any] = {"chatType": "group", "chatId": "G"}
        for number, text in enumerate((f"/subagents stop {kin.session.key}", "/subagents stop all", "/stop")):
            await chat.world.say(text=text, messageId=f"g{number}", **group)
        await chat.far_end.took(4)
        assert chat.far_end.texts[1:] == [
            "This session has started no sub-agents.",
            "No sub-agent is running here.",
            "Nothing is running here.",
        ]
        assert len(await live_runs(chat.gateway)) == 1
        await chat.says("/stop")
        await chat.over()
