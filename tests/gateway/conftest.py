"""A gateway on a free port, with agents whose pace the tests decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.core.contracts import ModelEvent, ModelReply, ModelRequest, Price, TextDelta
from backchannel.core.messages import TextBlock, Usage
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import ListeningServer, listening
from backchannel.gateway.ws.connections import Limits

from .client import OPERATOR, Client, connected

AGENTS = [
    {"id": "main"},
    {"id": "echo"},
    {"id": "held"},
    {"id": "broken"},
    {"id": "speaker", "model": "test/speaker"},
]


class Speaker:
    """A model that says three words, one at a time."""

    ref = "test/speaker"
    context_window = 1000
    price: Price | None = None
    cost: float | None = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for word in ("one ", "two ", "three"):
            yield TextDelta(word)
        usage = Usage(input=10, output=3, cost=self.cost)
        yield ModelReply(content=(TextBlock(text="one two three"),), usage=usage, model=self.ref)


class World:
    """The gateway, where it listens, and what holds its agents back."""

    def __init__(self, gateway: Gateway, at: ListeningServer, release: asyncio.Event) -> None:
        self.gateway = gateway
        self.at = at
        self.release = release

    @property
    def url(self) -> str:
        return self.at.websocket_url

    def client(self, token: str | None = OPERATOR, **params: Any) -> AbstractAsyncContextManager[Client]:
        return connected(self.url, token, **params)


class MakeWorld(Protocol):
    def __call__(
        self, config: dict[str, Any] | None = None, limits: Limits | None = None
    ) -> AbstractAsyncContextManager[World]: ...


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    """Make a gateway with settings of one's own."""

    @asynccontextmanager
    async def make(config: dict[str, Any] | None = None, limits: Limits | None = None) -> AsyncIterator[World]:
        given = {"agents": {"list": AGENTS}, **(config or {})}
        given["gateway"] = {"port": 0, **given.get("gateway", {})}
        gateway = Gateway.open(given, state=tmp_path / "state")
        release = asyncio.Event()
        _add_agents(gateway, release)
        async with gateway, listening(gateway, OPERATOR, limits=limits) as at:
            yield World(gateway, at, release)

    return make


def _add_agents(gateway: Gateway, release: asyncio.Event) -> None:
    @gateway.agent("echo")
    async def echo(context: FunctionContext) -> str:
        return f"echo {context.text}"

    @gateway.agent("held")
    async def held(context: FunctionContext) -> str:
        await release.wait()
        return f"released {context.text}"

    @gateway.agent("broken")
    async def broken(context: FunctionContext) -> str:
        raise ValueError("this agent is broken")

    gateway.add_model(Speaker())


@pytest.fixture
async def world(make_world: MakeWorld, anyio_backend: str) -> AsyncIterator[World]:
    async with make_world() as made:
        yield made


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    """An operator who has connected."""
    async with world.client() as made:
        yield made
