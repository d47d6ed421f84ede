"""Any gateway serves any request: what runs on one is waited for, watched, stopped and allowed on another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel
from backchannel.core.facts import MessageAppended
from backchannel.core.keys import SessionKey
from backchannel.core.runs import RunState
from backchannel.runtime.events import Event, ListenerWants
from tests.cluster.gateways import PATIENCE_S, execute, gateways, until
from tests.support.gateways import CONFIG, echo, ended, held, session_of, texts_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("wakeups", ["notify", "poll"])
async def test_a_run_of_one_gateway_is_waited_for_on_another(tmp_path: Path, url: str, wakeups: str) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="done", gate=gate, reached=reached)])
    async with gateways(tmp_path, url, model, wakeups=wakeups) as (one, other):
        run = await one.submit("main", "go")
        await reached.wait()
        waiting = asyncio.create_task(ended(other, run.id, PATIENCE_S))
        await asyncio.sleep(0)
        gate.set()
        assert (await waiting).reply == "done"


async def test_a_message_for_a_session_that_another_gateway_works_on_is_answered_next(tmp_path: Path, url: str) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(replies=[Reply(text="first", gate=gate, reached=reached), "second"])
    async with gateways(tmp_path, url, model) as (one, other):
        first = await one.submit("main", "a")
        await reached.wait()
        second = await other.submit("main", "b")
        assert second.state is RunState.QUEUED
        gate.set()
        await ended(other, first.id)
        await ended(one, second.id)
        assert await texts_of(other) == ["a", "first", "b", "second"]


async def test_a_run_is_stopped_by_another_gateway(tmp_path: Path, url: str) -> None:
    reached = asyncio.Event()
    model = ScriptedModel(replies=[held("half", reached=reached)])
    async with gateways(tmp_path, url, model) as (one, other):
        run = await one.submit("main", "go")
        await reached.wait()
        assert await other.runtime.abort(run.session_key, None) == [run.id]
        stopped = await ended(other, run.id)
        assert (stopped.state, stopped.reply) == (RunState.ABORTED, "half")


async def test_whoever_watches_on_one_gateway_sees_what_is_said_on_another(tmp_path: Path, url: str) -> None:
    async with gateways(tmp_path, url, ScriptedModel(replies=echo)) as (one, other):
        said: list[str] = []
        complete = asyncio.Event()

        def on_event(event: Event) -> None:
            if isinstance(event, MessageAppended):
                said.append(event.message.text)
                if len(said) == 2:
                    complete.set()

        other.runtime.hub.listen(on_event, elsewhere=True, wants=lambda: ListenerWants(everything=True))
        await one.ask("main", "hello")
        async with asyncio.timeout(PATIENCE_S):
            await complete.wait()
        assert said == ["hello", "re: hello"]


async def test_a_gateway_that_is_taken_for_dead_stops_and_begins_anew_while_another_goes_on(
    tmp_path: Path, url: str
) -> None:
    reached = asyncio.Event()
    model = ScriptedModel(replies=[held("half", reached=reached), "whole", "fine"])
    async with gateways(tmp_path, url, model) as (one, other):
        before = one.store.number
        run = await one.submit("main", "go")
        await reached.wait()
        execute(url, "UPDATE processes SET ended_at = 1 WHERE number = %s", before)
        found = await ended(other, run.id, PATIENCE_S)
        assert found.reply == "whole"
        await until(lambda: one.store.number != before)
        assert await one.ask("main", "and you?") == "fine"
        assert await texts_of(other) == ["go", "whole", "and you?", "fine"]


async def test_the_file_of_a_transcript_is_archived_on_every_gateway_that_has_one(tmp_path: Path, url: str) -> None:
    files = {**CONFIG, "transcripts": {"files": True}}
    async with gateways(tmp_path, url, ScriptedModel(replies=echo), config=files) as (one, other):
        for gateway in (one, other):
            await gateway.ask("agent:main:task", "hello")
        session = await session_of(one, "agent:main:task")
        paths = [gateway.store.transcript_file(session) for gateway in (one, other)]
        await until(lambda: all(path.exists() for path in paths))
        archived = await other.runtime.delete(SessionKey.of("main", "task"))
        await until(lambda: not any(path.exists() for path in paths))
        assert all(gateway.store.transcript_file(archived).exists() for gateway in (one, other))
