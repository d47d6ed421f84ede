"""A gateway with the OpenAI-style door open, and the `openai` client, which nobody here wrote."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai

from backchannel.agents.scripted import Reply, Script, ScriptedModel, call
from backchannel.config.load import config_from
from backchannel.core.contracts import Clock, ModelRequest
from backchannel.core.messages import Role, Usage
from backchannel.core.runs import Run
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import ListeningServer, listening

from .client import OPERATOR

SAID: Any = [{"role": "user", "content": "hello"}]
"""A history of one message."""


class Door:
    """A gateway with the door open, and the client."""

    def __init__(self, gateway: Gateway, at: ListeningServer, model: ScriptedModel) -> None:
        self.gateway = gateway
        self.at = at
        self.model = model
        self.client = self.with_token(OPERATOR)
        self.patient = self.with_token(OPERATOR, max_retries=2)
        """The client as it is: it sends a request again by itself."""

    def with_token(self, token: str, **more: Any) -> openai.AsyncOpenAI:
        # A client without proxies of the environment: the gateway is on this machine.
        return openai.AsyncOpenAI(base_url=f"{self.at.url}/v1", api_key=token, **{"max_retries": 0, **more})

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {OPERATOR}"}

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Post to the door as a client of any other make does."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.ask("POST", path, content=content, headers=headers)

    async def ask(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            url, known = f"{self.at.url}/v1/{path}", self.headers | (headers or {})
            return await client.request(method, url, headers=known, **more)

    async def runs(self) -> list[Run]:
        """List all runs there were, oldest first."""
        return list(reversed(await self.gateway.store.runs(limit=1000)))

    async def said_in(self, key: str) -> list[str]:
        """Read what people said in a session."""
        session = await self.gateway.store.session(key)
        assert session is not None, f"there is no session {key}"
        history = (await self.gateway.store.history(session.session_id, limit=1000)).messages
        return [message.text for message in history if message.role is Role.USER]


def reply(request: ModelRequest) -> Reply:
    last = request.messages[-1].text
    if last == "use a tool":
        return Reply(text="let me look. ", calls=(call("look"),))
    return Reply(text=("you said: ", last), usage=Usage(input=7, output=3))


@asynccontextmanager
async def open_door(
    state: Path,
    *,
    is_open: bool = True,
    replies: Script = reply,
    clock: Clock | None = None,
    more: dict[str, Any] | None = None,
    **http: Any,
) -> AsyncIterator[Door]:
    """Open the door; `more` is the rest of the configuration, and `http` that of the door."""
    config = {
        "agents": {
            "list": [{"id": "main", "model": "scripted/test"}, {"id": "Research Bot", "model": "scripted/test"}]
        },
        "gateway": {"port": 0, "auth": {"token": OPERATOR}, "http": {"chatCompletions": is_open, **http}},
        **(more or {}),
    }
    gateway = Gateway(config_from(config, {}, state=state), clock=clock)
    model = ScriptedModel(replies=replies)
    gateway.add_model(model)

    @gateway.tool(effects="none")
    async def look() -> str:
        return "seen"

    async with gateway, listening(gateway, OPERATOR) as at:
        door = Door(gateway, at, model)
        try:
            yield door
        finally:
            await door.client.close()
            await door.patient.close()
