"""A client that sends a request again by itself, as the `openai` client does, has its message run once."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import openai
import pytest

from backchannel.agents.scripted import Reply
from backchannel.core.contracts import ModelFailed
from backchannel.core.runs import RunState
from backchannel.gateway.openai import door as door_module
from tests.support.clocks import StageClock
from tests.support.gateways import waiters
from tests.support.relay import Relay
from tests.support.slow_door import TOKEN
from tests.support.stub_provider import Fault, StubProvider

from .openai_door import SAID, Door, open_door

pytestmark = pytest.mark.anyio

ADA = "agent:main:openai:ada"


async def complete(client: openai.AsyncOpenAI, **more: Any) -> str | None:
    asked: dict[str, Any] = {"model": "main", "user": "ada", "messages": SAID} | more
    return str((await client.chat.completions.create(**asked)).choices[0].message.content)


async def respond(client: openai.AsyncOpenAI, **more: Any) -> str:
    asked: dict[str, Any] = {"model": "main", "user": "ada", "input": "hello"} | more
    return str((await client.responses.create(**asked)).output_text)


BOTH = pytest.mark.parametrize("ask", [complete, respond])


async def assert_run_once(door: Door) -> None:
    assert len(await door.runs()) == 1
    assert await door.said_in(ADA) == ["hello"]


@BOTH
async def test_a_run_that_a_person_stops_is_not_run_again(tmp_path: Path, ask: Any) -> None:
    reached = asyncio.Event()
    held = Reply(text="half", gate=asyncio.Event(), reached=reached)
    async with open_door(tmp_path, replies=[held, "again"]) as door:
        asking = asyncio.create_task(ask(door.patient))
        await reached.wait()
        await door.gateway.runtime.abort(ADA, None)
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            await asking
        assert caught.value.code == "aborted"
        await assert_run_once(door)


@BOTH
async def test_what_the_provider_refuses_is_not_run_again(tmp_path: Path, ask: Any) -> None:
    refusal = ModelFailed("temperature is too hot (HTTP 400 from acme)", retryable=False)
    async with open_door(tmp_path, replies=[refusal, "again"]) as door:
        with pytest.raises(openai.APIStatusError, match="too hot") as caught:
            await ask(door.patient)
        assert (caught.value.status_code, caught.value.code) == (424, "model_failed")
        await assert_run_once(door)


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_an_error_of_a_real_provider_that_is_the_clients_is_not_run_again(tmp_path: Path, status: int) -> None:
    async with StubProvider() as stub:
        stub.then(Fault(status, "temperature is too hot"))
        acme = {"models": {"providers": {"acme": {"api": "openai", "baseUrl": stub.base_url, "apiKey": "sk-acme"}}}}
        agents = {"agents": {"list": [{"id": "main", "model": "acme/large"}]}}
        async with open_door(tmp_path, more=acme | agents) as door:
            with pytest.raises(openai.APIStatusError, match="too hot") as caught:
                await complete(door.patient)
            assert caught.value.status_code == 424
            await assert_run_once(door)
            assert len(stub.requests) == 1


async def test_what_the_provider_fails_at_and_an_error_of_our_own_are_not_run_again(tmp_path: Path) -> None:
    failed = ModelFailed("no credit", retryable=False)
    async with open_door(tmp_path, replies=[failed, RuntimeError("oops")], clock=StageClock()) as door:
        for status in (424, 500):
            with pytest.raises(openai.APIStatusError) as caught:
                await complete(door.patient)
            assert caught.value.status_code == status
            assert caught.value.response.headers["x-should-retry"] == "false"
        assert [run.state for run in await door.runs()] == [RunState.ERROR] * 2


@BOTH
async def test_a_client_that_loses_patience_and_asks_again_is_answered_by_the_same_run(
    tmp_path: Path, ask: Any
) -> None:
    gate = asyncio.Event()
    async with open_door(tmp_path, replies=[Reply(text="at last", gate=gate), "again"]) as door, Relay() as relay:
        relay.to(door.at.port)
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{relay.port}/v1", api_key=door.client.api_key)
        with pytest.raises(openai.APITimeoutError):
            await ask(client, timeout=0.3)
        assert relay.connections == 3
        await door.model.asked()
        gate.set()
        (run,) = await door.runs()
        assert (await door.gateway.runtime.wait(run.id, 20)).reply == "at last"
        await assert_run_once(door)
        await client.close()


async def test_a_request_without_a_session_that_comes_again_is_answered_by_the_same_run(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with open_door(tmp_path, replies=[Reply(text="at last", gate=gate), "again"]) as door:
        asking = [asyncio.create_task(complete(door.client, user=openai.omit)) for _ in range(3)]
        async with asyncio.timeout(20):
            while waiters(door.gateway) < 3:
                await door.gateway.store.run_counts()
        gate.set()
        assert await asyncio.gather(*asking) == ["at last"] * 3
        assert len(await door.runs()) == 1


async def test_a_stream_that_is_broken_off_and_asked_for_again_shows_the_same_run(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with open_door(tmp_path, replies=[Reply(text=("one ", "two"), gate=gate, held_at=1), "again"]) as door:
        for attempt in range(2):
            stream: Any = await door.client.chat.completions.create(
                model="main",
                user="ada",
                messages=SAID,
                stream=True,
            )
            if attempt == 0:
                await anext(stream)
                await stream.close()
        gate.set()
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "one two"
        await assert_run_once(door)


async def test_the_same_message_again_after_the_answer_is_a_new_one(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        for _ in range(2):
            assert await complete(door.patient) == "you said: hello"
        assert await door.said_in(ADA) == ["hello", "hello"]


async def test_a_repetition_whose_run_has_just_ended_is_answered_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, again = {"model": "main", "user": "ada", "messages": SAID}, {"x-stainless-retry-count": "1"}
    async with open_door(tmp_path) as door:
        first = await door.post("chat/completions", body)
        assert (await door.post("chat/completions", body, **again)).json() == first.json()
        await assert_run_once(door)
        monkeypatch.setattr(door_module, "REPEATED_WITHIN_MS", -60_000)  # as if it had ended long ago
        assert (await door.post("chat/completions", body, **again)).json()["id"] != first.json()["id"]


async def test_another_token_another_session_and_another_message_join_nothing(tmp_path: Path) -> None:
    gate = asyncio.Event()
    replies = [Reply(text="done", gate=gate) for _ in range(4)]
    async with open_door(tmp_path, replies=replies) as door:
        others: list[dict[str, Any]] = [{}, {"user": "bob"}, {"user": "eve", "seed": 1}, {"model": "research-bot"}]
        asking = [asyncio.create_task(complete(door.client, **other)) for other in others]
        await door.model.asked(4)
        gate.set()
        await asyncio.gather(*asking)
        assert len(await door.runs()) == 4


async def line_of(process: asyncio.subprocess.Process, word: bytes) -> bytes:
    """Read on until the process says this."""
    assert process.stdout is not None
    while not (line := await process.stdout.readline()).startswith(word):
        assert line, "it ended first"
    return line


@asynccontextmanager
async def life(state: Path, pace: str) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """Run a gateway in a process of its own, and end it as `kill -9` does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.slow_door", str(state), pace), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(30):
            yield int((await line_of(process, b"port")).split()[1]), process
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


@BOTH
@pytest.mark.parametrize("user", ["ada", openai.omit], ids=["named", "fresh"])
async def test_a_request_whose_gateway_is_killed_has_its_answer_when_it_is_back(
    tmp_path: Path, ask: Any, user: Any
) -> None:
    async with Relay() as relay:
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{relay.port}/v1", api_key=TOKEN)
        async with life(tmp_path, "never") as (port, process):
            relay.to(port)
            asking = asyncio.create_task(ask(client, user=user))
            await line_of(process, b"asked")
            relay.to(None)
        async with life(tmp_path, "at-once") as (port, _):
            relay.to(port)
            assert await asking == "you said: hello"
        await client.close()
    with closing(sqlite3.connect(tmp_path / "backchannel.db")) as database:
        assert database.execute("SELECT state FROM runs").fetchall() == [("ok",)]
        assert database.execute("SELECT count(*) FROM messages WHERE role = 'user'").fetchall() == [(1,)]
