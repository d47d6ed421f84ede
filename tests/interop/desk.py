"""A gateway in a process of its own, whose models answer as a test says, and which is killed and started again."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.cli.program import Program, Up
from tests.support.stub_provider import StubProvider


class ServedGateway:
    """The gateway and its provider of models."""

    def __init__(self, program: Program, stub: StubProvider, port: int) -> None:
        self.program = program
        self.stub = stub
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._up: Up | None = None

    @property
    def token(self) -> str:
        return self.program.token

    async def start(self) -> None:
        def start() -> Up:
            up = Up(self.program.command("up", "--port", str(self._port)), self.program.env, self.program.home)
            up.wait_ready()
            return up

        self._up = await asyncio.to_thread(start)

    async def kill(self) -> None:
        """End it as a power cut does."""
        if self._up is not None:
            await asyncio.to_thread(self._up.kill)
            self._up = None

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool as the operator."""
        headers = {"authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=20) as http:
            answer = await http.post(f"{self.url}/tools/invoke", json={"tool": tool, "args": arguments})
        return answer.json()["result"]

    async def said_to(self, key: str) -> list[str]:
        """What was said to an agent, as its transcript has it."""
        history = await self.call("sessions_history", sessionKey=key)
        return [message["content"][0]["text"] for message in history["messages"] if message["role"] == "user"]


@asynccontextmanager
async def desk(
    home: Path, agents: list[str], *, mcp: dict[str, Any] | None = None, **gateway: Any
) -> AsyncIterator[ServedGateway]:
    """Start a gateway with these agents; it is gone when the context ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with StubProvider() as stub:
        provider = {"api": "openai", "baseUrl": stub.base_url, "apiKey": "any"}
        config = {
            "agents": {"list": [{"id": agent, "model": "stub/test"} for agent in agents]},
            "models": {"providers": {"stub": provider}},
            "gateway": gateway,
            "mcp": {"servers": mcp or {}},
            "tools": {"allow": ["*", *(f"group:mcp:{name}" for name in mcp or {})]},
        }
        program = Program(home)
        program.write_config(json.dumps(config))
        made = ServedGateway(program, stub, port)
        try:
            await made.start()
            yield made
        finally:
            await made.kill()
