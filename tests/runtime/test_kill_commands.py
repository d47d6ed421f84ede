"""Commands are killed at each of their commits and answers: each is carried out once, and answered once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, Scripted, ScriptedModel, call
from backchannel.core.commands.commands import Command, CommandName, Rank
from backchannel.core.contracts import ModelRequest
from backchannel.core.delivery.channels import InboundAnswer
from backchannel.core.messages import Role
from backchannel.core.runs import RunKind, RunState
from backchannel.gateway.app import Gateway
from tests.conftest import CRASH_POINTS
from tests.support.far_end import FarEnd, event, signed
from tests.support.kill import kill_at_every_commit, kill_at_every_send, transcript
from tests.support.resting import at_rest, until

pytestmark = pytest.mark.anyio
MAIN = "agent:main:main"
STOPPED, STARTED_OVER = "Stopped 2 sub-agents.", "Started a new conversation; the old one is kept."


class StopAndNew:
    """A person starts two sub-agents that never end, stops them, and starts over; then an operator starts over."""

    def __init__(self, far_end: FarEnd) -> None:
        self.far_end = far_end
        far_end.messages.clear()
        self.model = ScriptedModel(replies=self.reply)
        self.never = asyncio.Event()

    def reply(self, request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if "You are a sub-agent" in request.system:
            return Reply(text="so far", gate=self.never)
        if last.role is Role.TOOL_RESULT:
            return "on it"
        return [call("sessions_spawn", task="dig"), call("sessions_spawn", task="fill")]

    def equip(self, gateway: Gateway) -> None:
        gateway.add_model(self.model)

    async def drive(self, gateway: Gateway) -> None:
        first = await self._post(gateway, "1", "start two")
        assert first is not None
        await gateway.runtime.wait(first, 20)
        await _at_work(gateway)
        await self._post(gateway, "2", "/stop")
        await self._post(gateway, "3", "/new")
        key, command = gateway.key(MAIN), Command(CommandName.RESET)
        said = await gateway.commands.carry_out(command, key, Rank.OWNER, idempotency_key="k", digest="d")
        assert said == STARTED_OVER
        await at_rest(gateway)

    @staticmethod
    async def _post(gateway: Gateway, id: str, text: str) -> str | None:
        body, headers = signed(event(messageId=id, text=text))
        answer = await gateway.inbound.post("desk", body, headers)
        assert isinstance(answer, InboundAnswer)
        return answer.run_id

    def check(self, database: sqlite3.Connection) -> None:
        assert not self.model.refused, self.model.refused
        runs = database.execute("SELECT kind, state FROM runs ORDER BY position").fetchall()
        assert runs == [("message", "ok"), ("child", "aborted"), ("child", "aborted")], runs
        told = database.execute("SELECT text, state FROM deliveries WHERE text IS NOT NULL ORDER BY number").fetchall()
        assert told == [("on it", "sent"), (STOPPED, "sent"), (STARTED_OVER, "sent")], told
        assert self.far_end.texts == ["on it", STOPPED, STARTED_OVER]
        cancelled = database.execute("SELECT state FROM deliveries WHERE text IS NULL").fetchall()
        assert cancelled == [("cancelled",)] * 2, cancelled
        ids = database.execute(
            "SELECT session_id FROM session_ids WHERE key = ? ORDER BY ended_at IS NULL, ended_at", (MAIN,)
        ).fetchall()
        assert len(ids) == 3, "a session was reset more or less often than asked"
        said = [[message.text for message in transcript(database, session_id)] for (session_id,) in ids]
        assert said[1:] == [[], []]
        assert len([text for text in said[0] if text.startswith("[2 sub-agents stopped]")]) == 1
        assert not {"/stop", "/new", STOPPED, STARTED_OVER} & set(said[0]), "a command is in the transcript"
        verdicts = [
            json.loads(outcome)["verdict"] for (outcome,) in database.execute("SELECT outcome FROM inbound_ids")
        ]
        assert sorted(verdicts) == ["answer", "command", "command"]


async def _at_work(gateway: Gateway) -> None:
    """Wait until both sub-agents are at work, or were stopped by a command that an earlier process has taken."""

    async def both() -> bool:
        runs = [run for run in await gateway.store.runs(limit=10) if run.kind is RunKind.CHILD]
        return len(runs) == 2 and all(run.state is not RunState.QUEUED for run in runs)

    await until(gateway, both)


def _config(far_end: FarEnd) -> dict[str, Any]:
    agents = {"list": [{"id": "main", "model": "scripted/test"}]}
    return {"agents": agents, "channels": {"desk": far_end.settings()}}


async def test_a_command_is_carried_out_once_wherever_the_process_dies(
    record_property: Callable[[str, object], None],
) -> None:
    async with FarEnd() as far_end:
        points = await kill_at_every_commit(lambda: StopAndNew(far_end), _config(far_end))
    record_property(CRASH_POINTS, ("StopAndNew", points))
    assert points >= 20


async def test_a_command_is_answered_once_wherever_the_process_dies_while_it_answers(
    record_property: Callable[[str, object], None],
) -> None:
    async with FarEnd() as far_end:
        points = await kill_at_every_send(lambda: StopAndNew(far_end), far_end, "desk", _config(far_end))
    record_property(CRASH_POINTS, ("StopAndNew sends", points))
    assert points >= 9
