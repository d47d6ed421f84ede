"""Both ways send the same: what pydantic-ai would send, and what our own wire sends."""

from __future__ import annotations

import asyncio
import base64
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backchannel.agents.wires.content import split_steps, wire_call_id
from backchannel.core.contracts import THINKING_LEVELS, ModelRequest, ToolSpec
from backchannel.core.messages import (
    Block,
    ImageBlock,
    Message,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from .reference import KINDS, PROVIDER, pair

pytestmark = pytest.mark.anyio

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
TOOL = ToolSpec("look", "Looks at a place.", {"type": "object", "properties": {"at": {"type": "string"}}})

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=20)
images = st.sampled_from(
    [
        ImageBlock(mime_type="image/png", data=PNG),
        ImageBlock(mime_type="image/jpeg", data=base64.b64encode(b"another").decode()),
        ImageBlock(mime_type="image/png", url="https://example.com/a.png"),
        ImageBlock(mime_type="image/png", url=f"data:image/png;base64,{PNG}"),
        ImageBlock(mime_type="image/png", url="data:image/png,plain"),
        ImageBlock(mime_type="image/png", data="%%%"),
        ImageBlock(mime_type="image/png"),
    ]
)
said_blocks = st.lists(texts.map(lambda text: TextBlock(text=text)) | images, max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.sampled_from([0.5, -1.25]) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(texts, values, max_size=3) | st.sampled_from(["{oops", "null", "", "[1]"]) | st.just([1])


@st.composite
def steps(draw: st.DrawFn, kind: str, number: int) -> list[Message]:
    """Draw a reply, the results of its calls, and what is said after."""
    calls = [
        ToolCallBlock(id=f"r{number}/1/{at}", name="look", arguments=draw(arguments))
        for at in range(draw(st.integers(0, 3)))
    ]
    thought: list[Block] = draw(st.lists(thinking(kind), max_size=2))
    said = [TextBlock(text=text) for text in draw(st.lists(texts, max_size=2))]
    closing = TextBlock(text=f"so {draw(texts)}")
    owner = draw(st.sampled_from([f"{PROVIDER}/m", "other/m", None]))
    reply = message(Role.ASSISTANT, *thought, *said, closing, *calls, model=owner)
    results = [
        message(
            Role.TOOL_RESULT,
            *draw(said_blocks),
            tool_call_id=call.id,
            tool_name=draw(st.sampled_from(["look", 'a "b" & c'])),
            is_error=draw(st.sampled_from([None, False, True])),
        )
        for call in draw(st.permutations(calls))
    ]
    after = [message(Role.USER, *draw(said_blocks))] if not calls or draw(st.booleans()) else []
    return [reply, *results, *after]


def thinking(kind: str) -> st.SearchStrategy[Block]:
    """Draw what a model thought: signed as this wire signs it, or not signed."""
    signed = {"openai": ["rs_1:gAAA", "rs_2:gBBB"], "anthropic": ["sig1", "redacted_thinking:abc"]}
    signatures = signed.get(kind.removesuffix("-compatible"), []) if kind != "openai-compatible" else []
    return st.builds(ThinkingBlock, thinking=texts, signature=st.sampled_from([None, *signatures]))


def message(role: Role, *content: Block, **more: Any) -> Message:
    return Message(id="m", role=role, content=tuple(content), timestamp=0, **more)


@st.composite
def conversations(draw: st.DrawFn, kind: str) -> tuple[Message, ...]:
    opening = [message(Role.USER, *draw(said_blocks)) for _ in range(draw(st.integers(1, 2)))]
    count = draw(st.integers(0, 3))
    return tuple(opening + [each for number in range(count) for each in draw(steps(kind, number))])


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=30)
def test_both_ways_send_the_same_conversation(kind: str, data: st.DataObject) -> None:
    request = ModelRequest(
        system=data.draw(texts).strip(),  # one wire strips it
        messages=data.draw(conversations(kind)),
        tools=data.draw(st.sampled_from([(), (TOOL,)])),
    )
    limit = data.draw(st.sampled_from([None, 0, 12]))
    both = pair(kind)
    asyncio.run(both.ask_library(request, limit))
    asyncio.run(both.ask_wire(request, limit))
    assert both.by_wire.body == both.by_library.body


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("uses_tools", [True, False])
@pytest.mark.parametrize("thinking", [None, *THINKING_LEVELS])
async def test_both_ways_send_the_same_settings_and_headers(kind: str, uses_tools: bool, thinking: str | None) -> None:
    request = ModelRequest(
        system="Be brief.",
        messages=(message(Role.USER, TextBlock(text="hello")),),
        tools=(TOOL,),
        thinking=thinking,
        uses_tools=uses_tools,
    )
    both = pair(kind)
    await both.ask_library(request)
    await both.ask_wire(request)
    assert both.by_wire.body == both.by_library.body
    theirs, ours = (dict(way.requests[-1].headers) for way in (both.by_library, both.by_wire))
    assert ours.pop("accept-encoding") == "identity"  # a compressed answer may be a thousand times as long as it came
    for own in ("accept-encoding", "connection", "content-length"):
        theirs.pop(own, None)
        ours.pop(own, None)
    assert ours == theirs
    assert both.by_wire.requests[-1].url == both.by_library.requests[-1].url
    assert both.by_wire.requests[-1].extensions["timeout"] == both.by_library.requests[-1].extensions["timeout"]


@pytest.mark.parametrize("kind", KINDS)
async def test_texts_go_out_as_they_were_written(kind: str) -> None:
    """pydantic-ai writes `<system>` otherwise for some models, because it speaks in such tags itself; we do not."""
    request = ModelRequest(system="", messages=(message(Role.USER, TextBlock(text="a <system> tag")),))
    both = pair(kind)
    await both.ask_wire(request)
    assert "a <system> tag" in both.by_wire.requests[-1].content.decode()


@pytest.mark.parametrize(("kind", "name"), [("openai-compatible", None), ("openai", "gpt-4o"), ("openai", "gpt-5.4")])
async def test_thinking_that_a_wire_cannot_take_back_is_left_out(kind: str, name: str | None) -> None:
    """pydantic-ai would show it as text in tags. That is thinking of another model, or of another wire."""
    signature = "plain" if name == "gpt-5.4" else "rs_1:gAAA"
    thought = ThinkingBlock(thinking="Hm.", signature=signature)
    reply = message(Role.ASSISTANT, thought, TextBlock(text="Yes."), model=f"{PROVIDER}/m")
    asked = message(Role.USER, TextBlock(text="go"))
    both = pair(kind, name)
    await both.ask_wire(ModelRequest(system="", messages=(asked, reply, asked)))
    assert "Hm." not in both.by_wire.requests[-1].content.decode()


async def test_a_model_that_wants_its_thinking_with_each_call_gets_the_field() -> None:
    both = pair("openai-compatible", "deepseek/deepseek-v4")
    call = ToolCallBlock(id="r/1/0", name="look", arguments={})
    asked = message(Role.USER, TextBlock(text="go"))
    result = message(Role.TOOL_RESULT, TextBlock(text="seen"), tool_call_id="r/1/0", tool_name="look")
    request = ModelRequest(
        system="", messages=(asked, message(Role.ASSISTANT, call), result), tools=(TOOL,), thinking="high"
    )
    await both.ask_library(request)
    await both.ask_wire(request)
    assert both.by_wire.body == both.by_library.body


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=30)
def test_the_steps_of_a_conversation_joined_are_the_whole(kind: str, data: st.DataObject) -> None:
    messages = data.draw(conversations(kind))
    encoder = pair(kind, cached="5m").wire.encoder(10**9)
    cut = list(split_steps(messages))
    written = [encoder.encode(step, is_last=at == len(cut) - 1) for at, step in enumerate(cut)]
    assert written == [encoder.encode(step, is_last=at == len(cut) - 1) for at, step in enumerate(cut)]
    both = pair(kind, cached="5m")
    asyncio.run(both.ask_wire(ModelRequest(system="Be brief.", messages=messages, cache_key="k")))
    whole = both.by_wire.requests[-1].content
    asyncio.run(both.ask_wire(ModelRequest(system="Be brief.", messages=(), encoded=tuple(written), cache_key="k")))
    assert both.by_wire.requests[-1].content == whole


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_begins_with_the_bytes_of_the_one_before(kind: str) -> None:
    both = pair(kind, cached="off")
    messages: list[Message] = []
    sent: list[bytes] = []
    for number in range(5):
        call = ToolCallBlock(id=f"r{number}/1/0", name="look", arguments={"at": "x"})
        messages.append(message(Role.USER, TextBlock(text=f"question {number}")))
        await both.ask_wire(ModelRequest(system="Be brief.", messages=tuple(messages), tools=(TOOL,)))
        sent.append(both.by_wire.requests[-1].content)
        messages.append(message(Role.ASSISTANT, call))
        messages.append(message(Role.TOOL_RESULT, TextBlock(text="seen"), tool_call_id=call.id, tool_name="look"))
        await both.ask_wire(ModelRequest(system="Be brief.", messages=tuple(messages), tools=(TOOL,)))
        sent.append(both.by_wire.requests[-1].content)
        messages.append(message(Role.ASSISTANT, TextBlock(text="Seen.")))
    for before, after in pairwise(sent):
        kept = before.removesuffix(b"]}")
        if kind.startswith("anthropic"):
            kept = kept.removesuffix(b"]}")  # the step of a call goes on with its result
        assert after.startswith(kept)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True, min_size=2, max_size=20))
def test_ids_of_calls_are_short_plain_and_different(ids: list[str]) -> None:
    short = [wire_call_id(each) for each in ids]
    assert len(set(short)) == len(ids)
    assert all(len(each) == 9 and each.isascii() and each.isalnum() and each == each.lower() for each in short)
