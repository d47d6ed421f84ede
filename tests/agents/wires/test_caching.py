"""Requests for caching: the marks, the session's key, what refuses them, and what cached tokens cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from backchannel.agents.endpoints import Endpoint
from backchannel.agents.providers import Connection, ProviderModel
from backchannel.core.contracts import ModelReply, ModelRequest, Price, ToolSpec
from backchannel.core.messages import Block, Message, Role, TextBlock, ToolCallBlock, Usage
from tests.support.stub_provider import Answer, Asked, Fault, StubProvider, Told

from .reference import MODELS

pytestmark = pytest.mark.anyio

TOOL = ToolSpec("look", "Looks.", {"type": "object", "properties": {"cache_control": {"type": "string"}}})
ODD = {"cache_control": {"type": "ephemeral"}}
"""Arguments of a tool that look like a mark."""


def said(role: Role, *content: Block | str, **more: Any) -> Message:
    blocks = tuple(TextBlock(text=block) if isinstance(block, str) else block for block in content)
    return Message(id="m", role=role, content=blocks, timestamp=0, **more)


CALLED = (
    said(Role.USER, "go"),
    said(Role.ASSISTANT, "First.", ToolCallBlock(id="r/1/0", name="look", arguments=ODD)),
    said(Role.TOOL_RESULT, "one", tool_call_id="r/1/0", tool_name="look"),
    said(Role.ASSISTANT, "Second.", ToolCallBlock(id="r/2/0", name="look", arguments=ODD)),
    said(Role.TOOL_RESULT, "two", tool_call_id="r/2/0", tool_name="look"),
    said(Role.USER, "and now?"),
)


def asking(*messages: Message, **more: Any) -> ModelRequest:
    return ModelRequest(system="Be brief.", messages=messages or CALLED, tools=(TOOL,), **more)


async def ask(stub: StubProvider, kind: str, *requests: ModelRequest, cache: str = "5m") -> list[ModelReply]:
    connection = Connection(Endpoint("acme", kind, stub.base_url, "k", cache))
    model = ProviderModel(connection, MODELS[kind], context_window=1000)
    replies = [event for each in requests async for event in model.stream(each) if isinstance(event, ModelReply)]
    await connection.close()
    return replies


def marks_in(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Find the marks of a body, by their places; what is in arguments is none."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "cache_control":
                yield path, inner
            elif name not in ("input", "input_schema"):
                yield from marks_in(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from marks_in(inner, f"{path}[{at}]")


@pytest.mark.parametrize("kind", ["anthropic", "anthropic-compatible"])
async def test_four_places_are_marked(kind: str) -> None:
    async with StubProvider() as stub:
        await ask(stub, kind, asking())
    mark = {"type": "ephemeral"}
    assert stub.refused == []
    assert sorted(marks_in(stub.requests[0].body)) == [
        (".messages[3].content[1]", mark),
        (".messages[4].content[1]", mark),
        (".system[0]", mark),
        (".tools[0]", mark),
    ]


async def test_a_first_message_is_marked_at_its_end_alone() -> None:
    async with StubProvider() as stub:
        await ask(stub, "anthropic", asking(said(Role.USER, "hello")))
    places = [place for place, _ in marks_in(stub.requests[0].body)]
    assert sorted(places) == [".messages[0].content[0]", ".system[0]", ".tools[0]"]


async def test_marks_hold_for_as_long_as_is_configured() -> None:
    async with StubProvider() as stub:
        await ask(stub, "anthropic", asking(), cache="1h")
        await ask(stub, "anthropic", asking(), cache="off")
    assert {str(mark) for _, mark in marks_in(stub.requests[0].body)} == {str({"type": "ephemeral", "ttl": "1h"})}
    assert list(marks_in(stub.requests[1].body)) == []


@pytest.mark.parametrize(
    ("kind", "cache", "sent"),
    [
        ("openai", "5m", "s-1"),
        ("openai-compatible", "5m", "s-1"),
        ("ollama", "5m", None),
        ("openai", "off", None),
        ("anthropic", "5m", None),
    ],
)
async def test_a_session_has_its_key_where_the_provider_takes_one(kind: str, cache: str, sent: str | None) -> None:
    async with StubProvider() as stub:
        await ask(stub, kind, asking(cache_key="s-1"), asking(), cache=cache)
    assert [asked.body.get("prompt_cache_key") for asked in stub.requests] == [sent, None]


async def test_an_endpoint_that_refuses_the_key_is_asked_again_at_once_and_never_gets_it_again() -> None:
    def reply(asked: Asked) -> Told:
        has_key = "prompt_cache_key" in asked.body
        return Fault(400, "Unrecognized request argument: prompt_cache_key") if has_key else Answer(text="ok")

    async with StubProvider(reply=reply) as stub:
        replies = await ask(stub, "openai-compatible", asking(cache_key="s-1"), asking(cache_key="s-2"))
    assert [reply.content for reply in replies] == [(TextBlock(text="ok"),)] * 2
    assert [asked.body.get("prompt_cache_key") for asked in stub.requests] == ["s-1", None, None]


async def test_an_endpoint_that_refuses_marks_is_asked_again_at_once_and_never_gets_them_again() -> None:
    def reply(asked: Asked) -> Told:
        has_marks = any(marks_in(asked.body))
        return Fault(400, "cache_control: Extra inputs are not permitted") if has_marks else Answer(text="ok")

    async with StubProvider(reply=reply) as stub:
        connection = Connection(Endpoint("acme", "anthropic-compatible", stub.base_url, "k"))
        model = ProviderModel(connection, "some-claude", context_window=1000)
        marking = await model.encoder()
        assert marking is not None
        steps = (CALLED[:1], CALLED[1:3], CALLED[3:])
        encoded = tuple(marking.encode(step, is_last=step is steps[-1]) for step in steps)
        for request in (asking(encoded=encoded), asking(encoded=encoded), asking()):
            assert [event async for event in model.stream(request)]
        plain = await model.encoder()
        await connection.close()
    assert [bool(list(marks_in(asked.body))) for asked in stub.requests] == [True, False, False, False]
    assert stub.requests[1].body == stub.requests[3].body
    assert stub.requests[1].body["messages"][3]["content"][1]["input"] == ODD
    assert plain is not None and plain.name != marking.name


class Crowd(StubProvider):
    """A stand-in that answers none of the first three requests before all three have come."""

    def __init__(self, refused: str) -> None:
        super().__init__(reply=lambda asked: self.judge(asked, refused))
        self.together = asyncio.Barrier(3)
        self.come = 0

    def judge(self, asked: Asked, refused: str) -> Told:
        has_marks = refused == "cache_control" and any(marks_in(asked.body))
        is_refused = has_marks or "prompt_cache_key" in asked.body
        return Fault(400, f"{refused}: Extra inputs are not permitted") if is_refused else Answer(text="ok")

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        self.come += 1
        if self.come <= 3:
            await self.together.wait()
        await super()._answer(asked, writer)


@pytest.mark.parametrize(
    ("kind", "refused"), [("openai-compatible", "prompt_cache_key"), ("anthropic-compatible", "cache_control")]
)
async def test_each_of_several_refused_requests_is_asked_again(kind: str, refused: str) -> None:
    async with Crowd(refused) as stub:
        connection = Connection(Endpoint("acme", kind, stub.base_url, "k"))
        model = ProviderModel(connection, MODELS[kind], context_window=1000)

        async def reply(session: str) -> ModelReply:
            events = [event async for event in model.stream(asking(cache_key=session))]
            assert isinstance(events[-1], ModelReply)
            return events[-1]

        replies = await asyncio.gather(*map(reply, ("s-1", "s-2", "s-3")))
        await connection.close()
    assert [reply.content for reply in replies] == [(TextBlock(text="ok"),)] * 3
    assert len(stub.requests) == 6


async def test_another_refusal_is_not_tried_again() -> None:
    async with StubProvider() as stub:
        stub.then(Fault(400, "the messages are wrong"))
        with pytest.raises(Exception, match="the messages are wrong"):
            await ask(stub, "openai-compatible", asking(cache_key="s-1"))
    assert len(stub.requests) == 1


async def test_tools_that_may_not_be_called_are_still_sent() -> None:
    for kind, choice in {"openai": "none", "openai-compatible": "none", "anthropic": {"type": "none"}}.items():
        async with StubProvider() as stub:
            await ask(stub, kind, asking(), asking(uses_tools=False))
        first, second = (asked.body for asked in stub.requests)
        assert second["tool_choice"] == choice
        assert second["tools"] == first["tools"]


def test_cached_tokens_cost_what_is_configured_or_a_part_of_the_input() -> None:
    used = Usage(input=1_000_000, output=1_000_000, cache_read=1_000_000, cache_write=1_000_000)
    assert Price(2.0, 10.0).of(used) == pytest.approx(2 + 10 + 0.2 + 2.5)
    assert Price(2.0, 10.0, 0.5, 3.0).of(used) == pytest.approx(2 + 10 + 0.5 + 3)
    assert (used.sent, used.total) == (3_000_000, 4_000_000)


@pytest.mark.parametrize(("cache", "cost"), [("5m", 0.00375), ("1h", 0.006)])
async def test_tokens_that_are_written_to_a_cache_cost_what_is_published(cache: str, cost: float) -> None:
    body = (
        'event: message_start\ndata: {"type":"message_start","message":{"model":"claude-sonnet-4-6","usage":'
        '{"input_tokens":0,"cache_creation_input_tokens":1000,"output_tokens":0}}}\n\n'
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{}}\n\n'
    )
    async with StubProvider() as stub:
        stub.then(Fault(200, body=body, content_type="text/event-stream"))
        connection = Connection(Endpoint("anthropic", "anthropic", stub.base_url, "k", cache))
        model = ProviderModel(connection, "claude-sonnet-4-6", context_window=1000, priced_as="anthropic")
        [reply] = [event async for event in model.stream(asking()) if isinstance(event, ModelReply)]
        await connection.close()
    assert reply.usage.cache_write == 1000
    assert reply.usage.cost == pytest.approx(cost)
