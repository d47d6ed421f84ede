"""The model that says what it is told, and the rule of what a request may look like."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from backchannel.agents.scripted import Reply, ScriptedModel, call, check_sequence
from backchannel.core.contracts import (
    ModelEvent,
    ModelFailed,
    ModelReply,
    ModelRequest,
    Price,
    TextDelta,
    ThinkingDelta,
)
from backchannel.core.messages import (
    Block,
    Message,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
    text_content,
)


def said(role: Role, text: str = "hi", *calls: str, **more: Any) -> Message:
    content: tuple[Block, ...] = tuple(ToolCallBlock(id=id, name="look", arguments={}) for id in calls)
    return Message(id="m", role=role, content=(*text_content(text), *content), timestamp=0, **more)


def result(call_id: str) -> Message:
    return said(Role.TOOL_RESULT, "seen", tool_call_id=call_id)


USER, REPLY = said(Role.USER), said(Role.ASSISTANT)
CALLS = said(Role.ASSISTANT, "", "a", "b")
ASKED = ModelRequest(system="", messages=(USER,))


async def events_of(model: ScriptedModel, request: ModelRequest = ASKED) -> list[ModelEvent]:
    return [event async for event in model.stream(request)]


async def reply_of(model: ScriptedModel) -> ModelReply:
    reply = (await events_of(model))[-1]
    assert isinstance(reply, ModelReply)
    return reply


@pytest.mark.anyio
async def test_replies_are_given_in_order() -> None:
    model = ScriptedModel(replies=["one", [call("look", at="x")], "three"])
    assert (await reply_of(model)).content == (TextBlock(text="one"),)
    second = await reply_of(model)
    assert second.content == (ToolCallBlock(id="", name="look", arguments={"at": "x"}),)
    assert second.stop_reason == "toolUse"
    assert (await reply_of(model)).stop_reason == "stop"
    assert model.requests == [ASKED] * 3


@pytest.mark.anyio
async def test_a_function_decides_by_the_request() -> None:
    model = ScriptedModel(replies=lambda request: f"{len(request.messages)} messages")
    assert (await reply_of(model)).content == (TextBlock(text="1 messages"),)


@pytest.mark.anyio
async def test_an_async_function_may_decide_too() -> None:
    async def decide(request: ModelRequest) -> str:
        return request.messages[-1].text

    assert (await reply_of(ScriptedModel(replies=decide))).content == (TextBlock(text="hi"),)


@pytest.mark.anyio
async def test_a_reply_is_told_in_full() -> None:
    told = Reply(thinking="Hm.", text=("a", "b"), calls=(call("look"),), usage=Usage(input=3, output=1), model="x/y")
    events = await events_of(ScriptedModel(replies=[told], price=Price(1_000_000, 0)))
    assert events == [
        ThinkingDelta("Hm."),
        TextDelta("a"),
        TextDelta("b"),
        ModelReply(
            content=(ThinkingBlock(thinking="Hm."), TextBlock(text="ab"), call("look")),
            usage=Usage(input=3, output=1, cost=3.0),
            model="x/y",
            stop_reason="toolUse",
        ),
    ]


@pytest.mark.anyio
async def test_an_error_is_raised_after_what_was_said_before_it() -> None:
    broken = ModelFailed("broke off", retryable=True)
    model = ScriptedModel(replies=[Reply(text="half", error=broken), RuntimeError("odd")])
    heard: list[ModelEvent] = []
    with pytest.raises(ModelFailed, match="broke off"):
        async for event in model.stream(ASKED):
            heard.append(event)  # what came before the error counts
    assert heard == [TextDelta("half")]
    with pytest.raises(RuntimeError, match="odd"):
        await events_of(model)


@pytest.mark.anyio
async def test_a_script_that_has_ended_says_so() -> None:
    model = ScriptedModel(replies=["one"])
    await events_of(model)
    with pytest.raises(ModelFailed, match="no reply left"):
        await events_of(model)
    model.add("two")
    assert (await reply_of(model)).content == (TextBlock(text="two"),)


@pytest.mark.anyio
@pytest.mark.parametrize(("held_at", "heard"), [(0, []), (1, ["a"]), (2, ["a", "b"]), (9, ["a", "b"])])
async def test_a_gate_holds_the_reply_where_it_is_put(held_at: int, heard: list[str]) -> None:
    gate, reached, texts = asyncio.Event(), asyncio.Event(), list[str]()
    model = ScriptedModel(replies=[Reply(text=("a", "b"), gate=gate, held_at=held_at, reached=reached)])

    async def listen() -> None:
        async for event in model.stream(ASKED):
            if isinstance(event, TextDelta):
                texts.append(event.text)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            await model.asked()
            await reached.wait()
            assert texts == heard
            gate.set()
    assert texts == ["a", "b"]


@pytest.mark.anyio
async def test_a_bad_request_is_refused_and_remembered() -> None:
    model = ScriptedModel(replies=["never"])
    with pytest.raises(ModelFailed, match="bad sequence") as caught:
        await events_of(model, ModelRequest(system="", messages=(REPLY, USER)))
    assert not caught.value.retryable
    assert model.refused == ["message 0 (assistant): the first message must be the user's"]


@pytest.mark.parametrize(
    "messages",
    [
        (USER,),
        (USER, REPLY, USER),
        (USER, CALLS, result("a"), result("b")),
        (USER, CALLS, result("b"), result("a")),
        (USER, CALLS, result("a"), result("b"), REPLY, USER),
        (USER, CALLS, result("a"), result("b"), USER),
        (USER, CALLS, result("a"), result("b"), said(Role.ASSISTANT, "", "c"), result("c")),
    ],
)
def test_a_good_sequence_passes(messages: tuple[Message, ...]) -> None:
    assert check_sequence(messages) is None


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ((), "there are no messages"),
        ((REPLY,), "first message"),
        ((USER, REPLY), "last message is the assistant's"),
        ((USER, USER), "follows another user"),
        ((USER, REPLY, REPLY, USER), "follows another assistant"),
        ((said(Role.SYSTEM),), "system message"),
        ((said(Role.USER, ""),), "it is empty"),
        ((said(Role.USER, " \n"),), "empty text"),
        ((USER, said(Role.ASSISTANT, ""), USER), "it is empty"),
        ((USER, CALLS), "no result for the calls a, b"),
        ((USER, CALLS, result("a")), "no result for the calls b"),
        ((USER, CALLS, result("a"), USER, result("b")), "before the results of b"),
        ((USER, CALLS, result("a"), result("a"), result("b")), "which no call"),
        ((USER, CALLS, result("a"), result("b"), result("c")), "which no call"),
        ((USER, result("a")), "which no call"),
        ((USER, said(Role.ASSISTANT, "", "a", "a"), result("a"), result("a")), "used before"),
        ((USER, said(Role.ASSISTANT, "", ""), result("")), "missing"),
        ((said(Role.USER, "hi", "a"),), "only the assistant"),
        (
            (USER, said(Role.ASSISTANT, "", "a"), result("a"), said(Role.ASSISTANT, "", "a"), result("a")),
            "used before",
        ),
    ],
)
def test_a_bad_sequence_is_named(messages: tuple[Message, ...], problem: str) -> None:
    found = check_sequence(messages)
    assert found is not None
    assert problem in found
