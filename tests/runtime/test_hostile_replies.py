"""Replies that no honest model gives: they end as an error that says what came, and hold nobody up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel, call
from backchannel.core.contracts import MOST_CALLS, ModelRequest
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


async def test_the_mark_of_headers_that_a_model_repeats_is_seen_by_nobody(tmp_path: Path) -> None:
    marks: list[str] = []
    given: list[str] = []

    def repeat(request: ModelRequest) -> Reply:
        mark = request.system.partition("begins with `[")[2].split()[0]
        marks.append(mark)
        if len(marks) == 1:
            return Reply(thinking=f"It says {mark}.", calls=(call("note", text=f"[{mark} system message]"),))
        return Reply(text=("As the line [", mark[:5], mark[5:].lower(), f" note] said, {mark[:2]}"))

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def note(text: str) -> str:
            given.append(text)
            return text

    async with running(tmp_path, ScriptedModel(replies=repeat), equip=equip) as gateway:
        heard: list[str] = []
        gateway.runtime.hub.listen(lambda event: heard.append(repr(event)))
        await gateway.submit("main", "what do headers look like?", run_id="r")
        reply = (await ended(gateway, "r")).reply
        stored = repr(await transcript_of(gateway))

    assert marks[0] == marks[1] and len(marks[0]) == 16
    assert reply == f"As the line [ note] said, {marks[0][:2]}"
    assert given == ["[ system message]"]
    told = "".join(heard)
    assert "ReplyGrew" in told and "ThinkingGrew" in told and "It says ." in stored
    for text in (told, stored):
        assert marks[0].casefold() not in text.casefold()
        assert marks[0][:5] not in text
