"""Replies that no honest model gives: they end as an error that says what came, and hold nobody up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import ScriptedModel, call
from backchannel.core.contracts import MOST_CALLS
from backchannel.core.messages import DEEPEST, Role
from backchannel.core.runs import RunState
from backchannel.gateway.app import Gateway
from tests.support.gateways import ended, running, texts_of, transcript_of

pytestmark = pytest.mark.anyio


def nested(levels: int) -> dict[str, Any]:
    """Make arguments of so many levels."""
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def with_look(gateway: Gateway) -> None:
    @gateway.tool(effects="none")
    async def look(a: dict[str, Any] | None = None) -> str:
        return "seen"


@pytest.mark.parametrize("levels", [DEEPEST + 1, 900])
async def test_arguments_nested_too_deep_are_an_error_result_of_that_call(tmp_path: Path, levels: int) -> None:
    model = ScriptedModel(replies=[[call("look", **nested(levels)), call("look")], "so be it"])
    async with running(tmp_path, model, equip=with_look) as gateway:
        await gateway.submit("main", "go", run_id="r")
        assert (await ended(gateway, "r")).reply == "so be it"
        deep, plain = [message for message in await transcript_of(gateway) if message.role is Role.TOOL_RESULT]
        if deep.tool_call_id != "r/0/0":
            deep, plain = plain, deep
        assert deep.is_error and f"nested deeper than {DEEPEST} levels" in deep.text
        assert plain.text == "seen"


async def test_arguments_as_deep_as_they_may_be_reach_the_tool(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[[call("look", **nested(DEEPEST))], "done"])
    async with running(tmp_path, model, equip=with_look) as gateway:
        assert await gateway.ask("main", "go") == "done"
        assert "seen" in await texts_of(gateway)


async def test_a_reply_with_too_many_calls_is_refused_and_none_is_carried_out(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[[call("look")] * 5000, "next"])
    async with running(tmp_path, model, equip=with_look) as gateway:
        await gateway.submit("main", "go", run_id="r")
        run = await ended(gateway, "r")
        assert (run.state, run.error_code) == (RunState.ERROR, "model_failed")
        assert f"more than {MOST_CALLS} tool calls" in (run.error or "")
        assert await gateway.ask("main", "go on") == "next"
        assert "seen" not in await texts_of(gateway)


async def test_as_many_calls_as_there_may_be_are_carried_out(tmp_path: Path) -> None:
    model = ScriptedModel(replies=[[call("look")] * MOST_CALLS, "done"])
    async with running(tmp_path, model, equip=with_look) as gateway:
        assert await gateway.ask("main", "go") == "done"
        assert (await texts_of(gateway)).count("seen") == MOST_CALLS
