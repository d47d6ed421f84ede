"""A gateway whose agent calls tools of MCP servers as a test says."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.messages import Message
from backchannel.gateway.app import Gateway

SERVER = Path(__file__).parent / "mcp_server.py"


def server(behaviour: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Configure the server of `mcp_server.py`."""
    return {
        "command": sys.executable,
        "args": ["-I", "-S", str(SERVER), json.dumps(behaviour or {})],
        **more,
    }


class Caller:
    """A gateway whose model calls what a test says, and then says done."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.wanted: list[tuple[str, dict[str, Any]]] = []
        self.requests: list[ModelRequest] = []
        gateway.add_model(ScriptedModel(replies=self._reply))

    def _reply(self, request: ModelRequest) -> Scripted:
        self.requests.append(request)
        if self.wanted:
            calls = [call(name, **arguments) for name, arguments in self.wanted]
            self.wanted = []
            return calls
        return "done"

    async def names(self, session: str = "main") -> set[str]:
        await self.gateway.ask(session, "hello")
        return {tool.name for tool in self.requests[-1].tools}

    async def call(self, name: str, session: str = "main", **arguments: Any) -> Message:
        self.wanted = [(name, arguments)]
        await self.gateway.ask(session, f"call {name}")
        return self.requests[-1].messages[-1]


@asynccontextmanager
async def calling(
    tmp_path: Path, servers: dict[str, Any], allow: list[str] | None = None, agents: list[dict[str, Any]] | None = None
) -> AsyncIterator[Caller]:
    plain = [{"id": "main", "model": "scripted/test"}, {"id": "other", "model": "scripted/test"}]
    every = [f"group:mcp:{name}" for name in servers]
    config = {
        "agents": {"list": agents or plain},
        "tools": {"allow": allow or every, "deny": ["group:sessions", "group:fs", "group:exec"]},
        "mcp": {"servers": servers},
    }
    gateway = Gateway.open(config, state=tmp_path / "state")
    caller = Caller(gateway)
    async with gateway:
        yield caller


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # what is waited for happens in another process
            await asyncio.sleep(0.01)
