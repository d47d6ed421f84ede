"""Agents that may all talk to each other, each with a scripted model of its own, on a real database.

Each plays its part in an exchange by what it is asked: a person's message, a request, a turn, an announce.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeAlias

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import Clock, ModelRequest
from backchannel.core.messages import Message, Role, ToolCallBlock
from backchannel.core.runs import Run
from backchannel.gateway.app import Gateway
from backchannel.storage.driver import Faults
from backchannel.storage.tables import MCP_CALLS, TABLES
from tests.support.gateways import running, transcript_of

A, B, C = "agent:a:main", "agent:b:main", "agent:c:main"
Line: TypeAlias = Scripted | Callable[[ModelRequest], Any] | list[Any] | Mapping[str, Any]
_STEPS = {
    "request": "[Agent-to-agent context]",
    "turn": "[Agent-to-agent exchange, reply-back turn",
    "announce": "[Agent-to-agent exchange, announce step]",
}


class Actor:
    """What a model says in each step.

    A list is said one by one, its last again and again; a mapping is looked up by a word of the first message.
    """

    def __init__(self, step_of: Callable[[ModelRequest], str], says: dict[str, Line], **model: Any) -> None:
        self._step_of = step_of
        self._says = says
        self.asked: list[tuple[str, ModelRequest]] = []
        self.model = ScriptedModel(replies=self._answer, **model)

    def _answer(self, request: ModelRequest) -> Any:
        step = self._step_of(request)
        self.asked.append((step, request))
        line = self._says[step]
        if isinstance(line, Mapping):
            line = next(line[word] for word in line if word in request.messages[0].text)
        if isinstance(line, list) and line and not isinstance(line[0], ToolCallBlock):
            line = line.pop(0) if len(line) > 1 else line[0]
        return line(request) if callable(line) else line

    def requests(self, step: str) -> list[ModelRequest]:
        return [request for name, request in self.asked if name == step]

    def prompts(self, step: str) -> list[str]:
        """What it was told in a step."""
        return [request.messages[-1].text for request in self.requests(step)]


class Player(Actor):
    """One of several agents that talk to each other."""

    def __init__(self, name: str, **says: Line) -> None:
        silent: dict[str, Line] = {"turn": "REPLY_SKIP", "announce": "ANNOUNCE_SKIP", "result": "I see."}
        unsaid: dict[str, Line] = {"person": "person?", "request": "request?"}
        super().__init__(step_of, silent | unsaid | says, ref=f"scripted/{name}")


def step_of(request: ModelRequest) -> str:
    """Tell what a model is asked for: what was said last counts."""
    if request.messages[-1].role is Role.TOOL_RESULT:
        return "result"
    return step_in(request.messages[-1].text)


def step_in(text: str) -> str:
    """Tell what a text asks for."""
    found = {step: text.rfind(sign) for step, sign in _STEPS.items()}
    step = max(found, key=lambda name: found[name])
    return step if found[step] >= 0 else "person"


def send(to: str = B, message: str = "how are you?", **more: Any) -> list[ToolCallBlock]:
    """Make the call by which one agent asks another."""
    return [call("sessions_send", sessionKey=to, message=message, **more)]


def config(*names: str, defaults: dict[str, Any] | None = None, **session: Any) -> dict[str, Any]:
    """Make a configuration of agents that see each other."""
    return {
        "agents": {
            "list": [{"id": name, "model": f"scripted/{name}"} for name in names],
            "defaults": defaults or {},
        },
        "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
        "session": session,
    }


class Talk:
    """A gateway, its players, and what is read in its database."""

    def __init__(self, gateway: Gateway, players: dict[str, Player], database: Path) -> None:
        self.gateway = gateway
        self.players = players
        self._database = database

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._database)) as connection:
            return connection.execute(sql, values).fetchall()

    def execute(self, sql: str, *values: Any) -> None:
        """Write what is there for an instant only."""
        with closing(sqlite3.connect(self._database)) as connection, connection:
            connection.execute(sql, values)

    def counts(self) -> dict[str, int]:
        """Count the rows of every table, but for the calls over MCP: refused ones are kept too."""
        names = [table.name for table in TABLES if table.only is None and table is not MCP_CALLS]
        return {name: self.rows(f"SELECT count(*) FROM {name}")[0][0] for name in names}

    def exchange(self) -> dict[str, Any]:
        """Read the body of the only exchange."""
        ((body,),) = self.rows("SELECT body FROM exchanges")
        decoded: dict[str, Any] = json.loads(body)
        return decoded

    def receipts(self) -> list[tuple[str, str | None]]:
        return [(state, error) for state, error in self.rows("SELECT state, error FROM deliveries ORDER BY number")]

    def runs(self) -> list[tuple[str, str, str]]:
        """List session, kind and state of all runs, in the order in which they were accepted."""
        return self.rows("SELECT session_key, kind, state FROM runs ORDER BY position")

    async def results(self, key: str = A) -> list[dict[str, Any]]:
        """Read what the tools answered in a session."""
        messages = await transcript_of(self.gateway, key)
        return [json.loads(message.text) for message in messages if message.role is Role.TOOL_RESULT]

    async def said_to(self, key: str) -> list[Message]:
        return [message for message in await transcript_of(self.gateway, key) if message.role is Role.USER]

    async def run_of(self, kind: str) -> Run:
        """Find the newest run of a kind."""
        return next(run for run in await self.gateway.store.runs(limit=100) if run.kind.value == kind)


@asynccontextmanager
async def talking(
    state: Path, settings: dict[str, Any], *, clock: Clock | None = None, faults: Faults | None = None, **says: Any
) -> AsyncIterator[Talk]:
    """Open a gateway; `a={"person": …}` says what agent `a` says to a person, and so on."""
    players = {name: given if isinstance(given, Player) else Player(name, **given) for name, given in says.items()}
    models = [player.model for player in players.values()]
    async with running(state, *models, config=settings, clock=clock, faults=faults) as gateway:
        yield Talk(gateway, players, state / "backchannel.db")


def turn_of(text: str) -> tuple[int, int] | None:
    """Read turn i of n in a prompt."""
    found = re.search(r"reply-back turn (\d) of (\d)]", text)
    return (int(found[1]), int(found[2])) if found else None
