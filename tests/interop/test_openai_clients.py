"""The OpenAI SDK for Node, with the retries that it makes by itself: whatever goes wrong, a message is run once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.client import connected
from tests.support.servers import LocalServer
from tests.support.stub_provider import Answer, Fault, Hang

from .conftest import Node, Script
from .desk import ServedGateway, desk

pytestmark = [pytest.mark.anyio, pytest.mark.interop, pytest.mark.timeout(400)]

KEY = "agent:main:openai:ann"
REQUEST: dict[str, Any] = {"model": "main", "user": "ann", "messages": [{"role": "user", "content": "a question"}]}
TRIES = 3
"""How often the SDK asks when it is not told otherwise: once, and two times more."""


@pytest.fixture
async def at(tmp_path: Path, anyio_backend: str) -> AsyncIterator[ServedGateway]:
    async with desk(tmp_path, ["main"], http={"chatCompletions": True}) as made:
        yield made


def asking(
    at: ServedGateway, node: Node, what: str = "plain", url: str | None = None, **options: Any
) -> AbstractAsyncContextManager[Script]:
    given = json.dumps({**REQUEST, **options})
    return node.started("openai_client.mjs", url or at.url, at.token, what, given)


async def runs(at: ServedGateway) -> list[dict[str, Any]]:
    async with connected(at.url.replace("http", "ws") + "/ws", at.token) as operator:
        listed: list[dict[str, Any]] = (await operator.ask("runs.list"))["runs"]
        return listed


class Balancer(LocalServer):
    """Stands before a gateway and keeps those waiting who come while it is away, as one before a real one does."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.url = ""
        self._port = port

    def opened(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near, far = await self._reach()
        ways = [asyncio.create_task(_pass_on(reader, far)), asyncio.create_task(_pass_on(near, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            far.close()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", self._port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)  # there is nothing to wait on in a process that is not there


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@pytest.mark.parametrize("what", ["plain", "stream"])
async def test_a_question_is_answered(at: ServedGateway, node: Node, what: str) -> None:
    at.stub.then(Answer(text="a reply"))
    async with asking(at, node, what) as script:
        told = await script.line()

    assert told == {"text": "a reply", "tries": 1}
    assert [run["status"] for run in await runs(at)] == ["ok"]


@pytest.mark.parametrize("what", ["plain", "stream"])
async def test_a_run_that_is_stopped_is_not_asked_for_again(at: ServedGateway, node: Node, what: str) -> None:
    at.stub.then(Hang())
    async with asking(at, node, what) as script:
        await at.stub.asked()
        async with connected(at.url.replace("http", "ws") + "/ws", at.token) as operator:
            await operator.ask("chat.abort", sessionKey=KEY)
        told = await script.line()

    assert (told["tries"], "error" in told) == (1, True)
    assert [run["status"] for run in await runs(at)] == ["aborted"]


@pytest.mark.parametrize("what", ["plain", "stream"])
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_what_the_provider_refuses_is_not_asked_for_again(
    at: ServedGateway, node: Node, what: str, status: int
) -> None:
    at.stub.then(Fault(status, "not like this"))
    async with asking(at, node, what) as script:
        told = await script.line()

    assert told["tries"] == 1
    assert "not like this" in told["message"]
    assert [run["status"] for run in await runs(at)] == ["error"]
    assert len(at.stub.requests) == 1


async def test_a_client_whose_time_is_over_asks_again_for_the_same_run(at: ServedGateway, node: Node) -> None:
    at.stub.then(Hang())
    async with asking(at, node, timeout=700) as script:
        told = await script.line(timeout_s=60)

    assert (told["error"], told["tries"]) == ("APIConnectionTimeoutError", TRIES)
    assert [run["status"] for run in await runs(at)] == ["running"]
    assert await at.said_to(KEY) == ["a question"]


async def test_a_gateway_that_is_killed_answers_the_same_run_when_it_is_back(at: ServedGateway, node: Node) -> None:
    at.stub.then(Hang(), Answer(text="a reply"))
    async with Balancer(int(at.url.rpartition(":")[2])) as balancer, asking(at, node, url=balancer.url) as script:
        await at.stub.asked()
        await at.kill()
        await at.start()
        told = await script.line(timeout_s=60)

    assert told["text"] == "a reply"
    assert told["tries"] > 1
    assert [run["status"] for run in await runs(at)] == ["ok"]
    assert await at.said_to(KEY) == ["a question"]
