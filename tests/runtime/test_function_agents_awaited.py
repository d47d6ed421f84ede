"""Runs of an agent that was a function of a program wait for a process that brings it; nothing answers in its place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.agents.scripted import ScriptedModel
from backchannel.core.runs import RunState
from backchannel.errors import InvalidRequest, UnknownAgent
from backchannel.gateway.app import Gateway
from tests.support.gateways import dying, ended, live_runs, running, settled, stored, texts_of

pytestmark = pytest.mark.anyio


def bring(gateway: Gateway) -> None:
    gateway.add_agent("main", answer)


def bring_slow(gateway: Gateway) -> None:
    gateway.add_agent("main", hang)


async def answer(context: FunctionContext) -> str:
    return f"the function says: {context.text}"


async def hang(context: FunctionContext) -> str:
    await asyncio.Event().wait()
    return "never"


async def leave_runs(state: Path) -> None:
    async with dying(state, equip=bring_slow) as gateway:
        await gateway.submit("main", "one", run_id="active")
        await gateway.submit("main", "two", run_id="queued")


async def test_no_model_answers_what_was_written_to_a_function(tmp_path: Path) -> None:
    await leave_runs(tmp_path)
    model = ScriptedModel(replies=[])
    async with running(tmp_path, model) as gateway:
        await gateway.submit("main", "three", run_id="later")
        await gateway.submit("agent:main:other", "four", run_id="elsewhere")
        await gateway.store.check_writable()
        states = {run.id: run.state for run in await live_runs(gateway)}
        assert states == {"active": "running", "queued": "queued", "later": "queued", "elsewhere": "queued"}
        assert await gateway.store.runs_waiting_for_functions(gateway.agents.functions()) == {"main": 4}
    assert model.requests == []
    async with running(tmp_path, equip=bring) as gateway:
        await settled(gateway)
        for run_id, text in (("active", "one"), ("queued", "two"), ("later", "three"), ("elsewhere", "four")):
            assert (await stored(gateway, run_id)).reply == f"the function says: {text}"
        assert await gateway.store.runs_waiting_for_functions(gateway.agents.functions()) == {}


async def test_a_function_that_is_registered_late_takes_up_what_waits_for_it(tmp_path: Path) -> None:
    await leave_runs(tmp_path)
    async with running(tmp_path) as gateway:
        gateway.add_agent("main", answer)
        assert (await ended(gateway, "queued")).reply == "the function says: two"
        assert await gateway.ask("main", "three") == "the function says: three"


async def test_one_that_was_registered_late_is_awaited_at_the_next_start(tmp_path: Path) -> None:
    async with dying(tmp_path) as gateway:
        gateway.add_agent("main", hang)
        await gateway.submit("main", "one", run_id="r")
    model = ScriptedModel(replies=[])
    async with running(tmp_path, model) as gateway:
        await gateway.store.check_writable()
        assert (await stored(gateway, "r")).state is RunState.RUNNING
    assert model.requests == []


async def test_a_run_that_waits_for_its_function_can_be_aborted(tmp_path: Path) -> None:
    await leave_runs(tmp_path)
    model = ScriptedModel(replies=[])
    async with running(tmp_path, model) as gateway:
        await gateway.runtime.abort("agent:main:main", "active")
        assert (await ended(gateway, "active")).state is RunState.ABORTED
        await gateway.store.check_writable()
        assert (await stored(gateway, "queued")).state is RunState.QUEUED
    assert model.requests == []


async def test_other_agents_are_answered_meanwhile(tmp_path: Path) -> None:
    await leave_runs(tmp_path)
    config = {"agents": {"list": [{"id": id, "model": "scripted/test"} for id in ("main", "desk")]}}
    async with running(tmp_path, ScriptedModel(replies=["from the desk"]), config=config) as gateway:
        assert await gateway.ask("agent:desk:main", "hello") == "from the desk"


async def test_a_function_that_is_forgotten_leaves_its_runs_to_the_configured_model(tmp_path: Path) -> None:
    await leave_runs(tmp_path)
    async with running(tmp_path, ScriptedModel(replies=["a", "b"])) as gateway:
        await gateway.runtime.forget_agent("main")
        await settled(gateway)
        assert await texts_of(gateway) == ["one", "a", "two", "b"]
    async with running(tmp_path, ScriptedModel(replies=["c"])) as gateway:
        assert await gateway.ask("main", "three") == "c"


async def test_only_a_function_that_is_awaited_and_has_a_model_can_be_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path, equip=lambda gateway: gateway.add_agent("brought", answer)) as gateway:
        with pytest.raises(InvalidRequest, match="it never was one"):
            await gateway.runtime.forget_agent("main")
        with pytest.raises(InvalidRequest, match="a function of this program"):
            await gateway.runtime.forget_agent("brought")
    async with running(tmp_path) as gateway:
        with pytest.raises(UnknownAgent):
            await gateway.runtime.forget_agent("brought")


async def test_a_message_for_a_function_that_only_its_program_names_is_accepted_and_waits(tmp_path: Path) -> None:
    async with running(tmp_path, equip=lambda gateway: gateway.add_agent("clerk", answer)) as gateway:
        await gateway.ask("agent:clerk:main", "one")
    async with running(tmp_path) as gateway:
        await gateway.submit("agent:clerk:main", "two", run_id="waits")
        assert (await stored(gateway, "waits")).state is RunState.QUEUED
        with pytest.raises(UnknownAgent):
            await gateway.runtime.forget_agent("clerk")
    async with running(tmp_path, equip=lambda gateway: gateway.add_agent("clerk", answer)) as gateway:
        assert (await ended(gateway, "waits")).reply == "the function says: two"
