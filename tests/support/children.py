"""A session and the sub-agents that it starts, played by one scripted model on a real database.

The model plays its part by what it is asked: as the requester a person's message, its own calls' results or a wake, as
a sub-agent its task, its own calls' results or the announce.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from backchannel.agents.scripted import Reply, call
from backchannel.core.commands.commands import Command, CommandName, Rank
from backchannel.core.contracts import Clock, ModelRequest, Price
from backchannel.core.flows.spawn import SPAWN_TOOL
from backchannel.core.flows.spawn_texts import SPAWN_ANNOUNCE_LINE, WAKE_LINE
from backchannel.core.flows.spawn_values import Spawn, read_spawn
from backchannel.core.messages import Message, Role, ToolCallBlock
from backchannel.core.runs import Run
from backchannel.gateway.app import Gateway
from backchannel.storage.driver import Faults, ProcessKilled
from tests.support.gateways import MAIN, Equip, Heard, Power, ended, running, transcript_of
from tests.support.resting import at_rest
from tests.support.talks import Actor, Line, Talk

PATIENCE_S = 20


def config(*others: str, **subagents: Any) -> dict[str, Any]:
    """Make a configuration of `main` and other agents under which it may spawn."""
    agents = [{"id": name, "model": "scripted/test"} for name in ("main", *others)]
    agents[0]["subagents"] = {"allowAgents": list(others)}  # type: ignore[assignment]
    return {"agents": {"list": agents, "defaults": {"subagents": subagents}}}


def spawn(task: str = "dig", **more: Any) -> ToolCallBlock:
    """Make the call by which a session starts a sub-agent."""
    return call("sessions_spawn", task=task, **more)


class Cast(Actor):
    """What a session and its sub-agents say in each step."""

    def __init__(self, price: Price | None = None, **says: Line) -> None:
        known: dict[str, Line] = {"person": "hello", "result": "on it", "wake": "NO_REPLY", "task": "dug"}
        super().__init__(step_of, known | {"announce": "the hole is dug"} | says, price=price)


def step_of(request: ModelRequest) -> str:
    """Tell what a model is asked for."""
    is_child = "You are a sub-agent" in request.system
    last = request.messages[-1]
    if last.role is Role.TOOL_RESULT:
        return "child result" if is_child else "result"
    if is_child:
        return "announce" if SPAWN_ANNOUNCE_LINE in last.text else "task"
    return "wake" if WAKE_LINE in last.text else "person"


class Gate:
    """Holds a reply back until the test lets it go."""

    def __init__(self) -> None:
        self._gate, self._reached = asyncio.Event(), asyncio.Event()

    def holds(self, text: str | tuple[str, ...] = "dug", **more: Any) -> Reply:
        """Make a reply that stands still before its end, with all its text streamed."""
        count = 1 if isinstance(text, str) else len(text)
        return Reply(text=text, gate=self._gate, reached=self._reached, held_at=count, **more)

    async def reached(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._reached.wait()

    def open(self) -> None:
        self._gate.set()


class Family(Talk):
    """A gateway, what its model says, and what is read in its database."""

    def __init__(self, gateway: Gateway, cast: Cast, database: Path) -> None:
        super().__init__(gateway, {}, database)
        self.cast = cast
        self.heard = Heard(gateway)

    async def over(self) -> None:
        """Wait until no run is left to do, and nothing is left to send."""
        async with asyncio.timeout(PATIENCE_S):
            await at_rest(self.gateway)

    async def ask(self, text: str = "go", key: str = MAIN) -> str:
        """Say something to the requester, and wait for its reply."""
        return await self.gateway.ask(key, text, timeout_s=PATIENCE_S)

    async def spawned(self, task: str = "dig", key: str | None = MAIN, **more: Any) -> dict[str, Any]:
        """Start a sub-agent from outside a run; it must be accepted."""
        result = await self.gateway.tools(key).sessions_spawn(task=task, **more)
        assert result["status"] == "accepted", result
        return result

    async def stop(self, key: str = MAIN) -> str:
        """Say `/stop` in a session; returns the answer."""
        command = Command(CommandName.STOP)
        return await self.gateway.commands.carry_out(command, self.gateway.key(key), Rank.OWNER)

    async def ended(self, run_id: str) -> Run:
        return await ended(self.gateway, run_id, PATIENCE_S)

    async def until(self, sql: str, *values: Any) -> None:
        """Wait until a query finds something."""
        await self.heard.until(lambda: bool(self.rows(sql, *values)))

    def spawns(self) -> list[Spawn]:
        return [read_spawn(body) for (body,) in self.rows("SELECT body FROM spawns ORDER BY created_at, rowid")]

    def spawn(self) -> Spawn:
        """Read the only spawn."""
        (spawn,) = self.spawns()
        return spawn

    def spawn_receipts(self) -> list[str]:
        """List the states of the spawns' receipts."""
        sql = "SELECT d.state FROM spawns s JOIN deliveries d ON d.id = s.delivery_id ORDER BY s.created_at, s.rowid"
        return [state for (state,) in self.rows(sql)]

    def kinds(self, *kinds: str) -> list[tuple[str, str]]:
        """List kind and state of the runs of flows, in the order in which they were accepted."""
        return [(kind, state) for _, kind, state in self.runs() if not kinds or kind in kinds]

    async def told(self, key: str = MAIN) -> list[Message]:
        """List what the flows of sub-agents have said in a transcript."""
        said = await self.said_to(key)
        return [message for message in said if message.provenance and message.provenance.source_tool == SPAWN_TOOL]

    async def posts(self, key: str = MAIN) -> list[dict[str, str]]:
        """Read the results that a transcript has, each by its lines."""
        return [read_post(message.text) for message in await self.told(key) if message.text.startswith("Status: ")]

    async def results(self, key: str = MAIN) -> list[dict[str, Any]]:
        """Read what the tools answered in a session, as far as they did."""
        messages = await transcript_of(self.gateway, key)
        results = [message for message in messages if message.role is Role.TOOL_RESULT]
        return [json.loads(message.text) for message in results if message.text.startswith("{")]


def read_post(text: str) -> dict[str, str]:
    """Read a post by the words that open its parts; a part may have several lines."""
    parts: dict[str, str] = {}
    name = ""
    for line in text.split("\n"):
        word, colon, rest = line.partition(": ")
        if colon and word in ("Status", "Result", "Notes", "Stats") and word not in parts:
            name, line = word, rest
        parts[name] = f"{parts[name]}\n{line}" if name in parts else line
    return parts


@asynccontextmanager
async def family(
    state: Path,
    settings: dict[str, Any] | None = None,
    *,
    clock: Clock | None = None,
    faults: Faults | None = None,
    equip: Equip = lambda gateway: None,
    price: Price | None = None,
    **says: Any,
) -> AsyncIterator[Family]:
    """Open a gateway; `task="…"` says what a sub-agent says to its task, and so on."""
    cast = Cast(price, **says)
    opened = running(state, cast.model, config=settings or config(), clock=clock, faults=faults, equip=equip)
    async with opened as gateway:
        yield Family(gateway, cast, state / "backchannel.db")
    assert not cast.model.refused, cast.model.refused


class CutWhen(Power):
    """A power that is cut right after the first commit that lets a query find something: nobody hears of it."""

    def __init__(self, state: Path, sql: str) -> None:
        super().__init__()
        self._database, self._sql = state / "backchannel.db", sql

    def after_commit(self, number: int) -> None:
        with closing(sqlite3.connect(self._database)) as connection:
            self.is_cut = self.is_cut or connection.execute(self._sql).fetchone() is not None
        if self.is_cut:
            raise ProcessKilled


async def die_when(
    state: Path, sql: str, settings: dict[str, Any] | None = None, equip: Equip = lambda gateway: None, **says: Any
) -> None:
    """Say `go` to the requester, as run `r`, and let the process die once a query finds something."""
    cast = Cast(**says)
    faults = CutWhen(state, sql)
    async with running(state, cast.model, config=settings or config(), equip=equip, faults=faults) as gateway:
        await gateway.submit(MAIN, "go", run_id="r")
        assert gateway.failed is not None
        async with asyncio.timeout(PATIENCE_S):
            await gateway.failed
