"""Function agents leave a trace: what they called, and what came of it, stands in the transcript like a model's."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from backchannel.agents.registry import FunctionContext
from backchannel.core.messages import Message, Role
from backchannel.gateway.app import Gateway, RunFailed
from tests.support.gateways import MAIN, running, settled, transcript_of

pytestmark = pytest.mark.anyio


def equip(gateway: Gateway) -> None:
    @gateway.tool(effects="none")
    async def look(name: str) -> str:
        return f"found {name}"

    @gateway.agent("main")
    async def finder(context: FunctionContext) -> str | None:
        match context.text.split():
            case ["one"]:
                await context.call("look", name="a cup")
                return "done"
            case ["many"]:
                await asyncio.gather(*(context.call("look", name=str(n)) for n in range(5)))
                return "done"
            case ["spawn"]:
                await context.call("sessions_spawn", task="one and nothing to say")
                return "spawned"
            case ["fail"]:
                await context.call("look", name="a cup")
                raise ValueError("no luck")
        if context.text == "one and nothing to say":
            await context.call("look", name="the last thing")
        return None


def traced(messages: list[Message]) -> list[tuple[str, str]]:
    """List the calls of a transcript with what came of them; nothing may stand between the two."""
    found = []
    for asked, answered in itertools.pairwise(messages):
        if asked.tool_calls:
            (call,) = asked.tool_calls
            assert (answered.role, answered.tool_call_id) == (Role.TOOL_RESULT, call.id)
            found.append((call.name, answered.text))
    return found


async def test_calls_stand_between_the_message_and_the_reply(tmp_path: Path) -> None:
    async with running(tmp_path, equip=equip) as gateway:
        assert await gateway.ask(MAIN, "one") == "done"
        messages = await transcript_of(gateway)
    assert [message.role.value for message in messages] == ["user", "assistant", "toolResult", "assistant"]
    (call,) = messages[1].tool_calls
    assert (call.name, call.arguments, call.id) == ("look", {"name": "a cup"}, f"{messages[0].run_id}/f/1")
    assert (messages[2].text, messages[2].is_error, messages[2].tool_name) == ("found a cup", False, "look")


async def test_calls_that_are_made_at_once_do_not_come_between_each_other(tmp_path: Path) -> None:
    async with running(tmp_path, equip=equip) as gateway:
        await gateway.ask(MAIN, "many")
        calls = traced(await transcript_of(gateway))
    assert sorted(calls) == [("look", f"found {n}") for n in range(5)]


async def test_calls_of_a_run_that_failed_stay(tmp_path: Path) -> None:
    async with running(tmp_path, equip=equip) as gateway:
        with pytest.raises(RunFailed):
            await gateway.ask(MAIN, "fail")
        assert traced(await transcript_of(gateway)) == [("look", "found a cup")]


async def test_the_newest_tool_result_of_a_silent_child_is_its_result(tmp_path: Path) -> None:
    async with running(tmp_path, equip=equip) as gateway:
        await gateway.ask(MAIN, "spawn")
        await settled(gateway)
        *before, post = await transcript_of(gateway)
    assert [name for name, _ in traced(before)] == ["sessions_spawn"]
    assert post.text.startswith("Status: success\nResult: found the last thing\nStats: ")
