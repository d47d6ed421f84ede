"""A gateway with all its doors open, and a client at each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from backchannel.agents.registry import FunctionContext
from backchannel.core.keys import SessionKey
from backchannel.errors import GatewayError
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import ListeningServer, listening
from backchannel.tools.base import Caller
from tests.gateway.client import OPERATOR, Client, connected
from tests.tools.shelf import Shelf

MESSAGE_DOORS = ("chat.send", "agent", "openai", "python")


class Doors:
    """The gateway, an operator's connection and an HTTP client."""

    def __init__(self, gateway: Gateway, at: ListeningServer, client: Client, http: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.at = at
        self.client = client
        self.http = http

    def caller(self, key: str | None) -> Caller:
        return Caller(None if key is None else SessionKey.parse(key))

    async def send(self, door: str, key: str, text: str, idempotency_key: str | None = None) -> Refusal | None:
        """Send a message through a door; tells how it was refused."""
        named = {} if idempotency_key is None else {"idempotencyKey": idempotency_key}
        if door == "python":
            return await _by_python(self.gateway, key, text, idempotency_key)
        if door == "openai":
            return await self._by_openai(key, text, idempotency_key)
        answers = await self.client.begin(door, {"sessionKey": key, "message": text, **named})
        frame = await answers.get()
        if not frame["ok"]:
            error = frame["error"]
            return Refusal(error["code"], error["details"]["code"], error["message"], error["details"].get("rule"))
        if door == "agent":
            assert (await self.client.take(answers))["status"] == "ok"
        else:
            ended = await self.client.ask("agent.wait", runId=frame["payload"]["runId"])
            assert ended["status"] == "ok"
        return None

    async def _by_openai(self, key: str, text: str, idempotency_key: str | None) -> Refusal | None:
        body = {"model": key.split(":")[1], "user": key, "messages": [{"role": "user", "content": text}]}
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        answer = await self.http.post("/v1/chat/completions", json=body, headers=headers)
        if answer.status_code == 200:
            return None
        assert answer.status_code == 403, answer.text
        error = answer.json()["error"]
        return Refusal("FORBIDDEN", error["code"], error["message"], None)

    async def invoke(self, token: str = OPERATOR, /, **body: Any) -> httpx.Response:
        """Call a tool through HTTP."""
        return await self.http.post("/tools/invoke", json=body, headers={"Authorization": f"Bearer {token}"})


class Refusal:
    """How a door refused a message."""

    def __init__(self, wire: str, code: str, message: str, rule: str | None) -> None:
        self.wire = wire
        self.code = code
        self.message = message
        self.rule = rule


async def _by_python(gateway: Gateway, key: str, text: str, run_id: str | None) -> Refusal | None:
    try:
        assert await gateway.ask(key, text, run_id=run_id, timeout_s=20) == f"echo {text}"
    except GatewayError as error:
        return Refusal(error.wire_code, error.code, error.message, error.details.get("rule"))
    return None


async def echo(context: FunctionContext) -> str:
    return f"echo {context.text}"


@asynccontextmanager
async def doors(
    shelf: Shelf, config: dict[str, Any], *models: Any, echoing: tuple[str, ...] = ()
) -> AsyncIterator[Doors]:
    """Open a gateway and all its doors; the agents named are ones that repeat what they hear."""
    given = {**config, "gateway": {"port": 0, "http": {"chatCompletions": True}}}
    async with shelf.opened(given, *models) as gateway:
        for agent in echoing:
            gateway.add_agent(agent, echo)
        async with (
            listening(gateway, OPERATOR) as at,
            connected(at.websocket_url) as client,
            httpx.AsyncClient(
                base_url=at.url, trust_env=False, headers={"Authorization": f"Bearer {OPERATOR}"}, timeout=10
            ) as http,
        ):
            yield Doors(gateway, at, client, http)
