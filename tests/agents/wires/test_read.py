"""Both ways read the same: recorded streams, cut at any byte, and what an endpoint may send instead of them."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backchannel.agents.wires.draft import MOST_KEPT
from backchannel.agents.wires.events import LONGEST_EVENT
from backchannel.core.contracts import ModelFailed, ModelReply, ModelRequest, TextDelta
from backchannel.core.messages import Message, Role, TextBlock, ThinkingBlock, ToolCallBlock, Usage, storable_content
from tests.support.loop_time import loop_time
from tests.support.stub_anthropic import Messages
from tests.support.stub_openai import ChatCompletions, Responses
from tests.support.stub_wires import Answer, Call, Wire, sse

from .reference import KINDS, Outcome, pair, streaming

pytestmark = pytest.mark.anyio

WIRES: dict[str, Wire] = {
    "openai-compatible": ChatCompletions(),
    "ollama": ChatCompletions(),
    "openai": Responses(),
    "anthropic": Messages(),
    "anthropic-compatible": Messages(),
}
ASKED = ModelRequest(
    system="", messages=(Message(id="m", role=Role.USER, content=(TextBlock(text="hello"),), timestamp=0),)
)
MOST_S = 0.2
"""As in the tests of the other readers: 50 ms at most, and more here, since a shared processor works more slowly."""

pieces = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
answers = st.builds(
    Answer,
    text=st.lists(pieces, max_size=4).map(tuple),
    thinking=st.sampled_from(["", "Hm.", "Só…"]),
    calls=st.lists(
        st.builds(Call, st.just("look"), st.sampled_from([{"at": "日本"}, {}, "", "{oops", "[1]", '{"a": "\\ud83d"}'])),
        max_size=3,
    ).map(tuple),
    input_tokens=st.integers(100, 200),
    cached_tokens=st.integers(0, 100),
    output_tokens=st.integers(1, 50),
    model=st.sampled_from([None, "another-model"]),
    stop=st.sampled_from([None, "length"]),
)


def stream_of(kind: str, answer: Answer) -> bytes:
    return "".join(frame.data for frame in WIRES[kind].frames({"model": "m"}, answer)).encode()


def read(kind: str, body: bytes, **how: Any) -> Outcome:
    both = pair(kind)
    both.answers(streaming(body, **how))
    return asyncio.run(both.ask_wire(ASKED))


def reply_of(outcome: Outcome) -> ModelReply:
    assert not isinstance(outcome, ModelFailed), outcome.message
    return outcome[1]


def failure_of(outcome: Outcome) -> ModelFailed:
    assert isinstance(outcome, ModelFailed), outcome
    return outcome


def told(outcome: Outcome) -> Any:
    """Give all that can be seen of an outcome."""
    if isinstance(outcome, ModelFailed):
        return outcome.message, outcome.retryable, outcome.retry_after_s
    events, reply = outcome
    return events, reply


@pytest.mark.parametrize("kind", KINDS)
@given(answer=answers, cuts=st.lists(st.integers(0, 10_000), max_size=12))
@settings(max_examples=40)
def test_both_ways_read_the_same_reply(kind: str, answer: Answer, cuts: list[int]) -> None:
    both = pair(kind)
    both.answers(streaming(stream_of(kind, answer), cuts=cuts))
    assert told(asyncio.run(both.ask_wire(ASKED))) == told(asyncio.run(both.ask_library(ASKED)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_a_stream_cut_at_every_byte_reads_the_same(kind: str, ends: bytes) -> None:
    answer = Answer(thinking="Hm.", text=("Só", " it is 😀"), calls=(Call("look", {"at": "日本"}),))
    body = b": keep-alive\n\n" + stream_of(kind, answer).replace(b"\n\n", b"\n: again\n\n")
    whole = read(kind, body)
    assert told(read(kind, body.replace(b"\n", ends), cuts=list(range(len(body) * 2)))) == told(whole)
    assert [type(block) for block in reply_of(whole).content] == [ThinkingBlock, TextBlock, ToolCallBlock]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "", "text/event-stream; charset=utf-8"])
def test_the_content_type_of_a_stream_may_be_wrong(kind: str, content_type: str) -> None:
    assert reply_of(read(kind, stream_of(kind, Answer(text="hi")), content_type=content_type)).content[0] == TextBlock(
        text="hi"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_data_over_several_lines_is_one_event(kind: str) -> None:
    frames = [frame.data for frame in WIRES[kind].frames({"model": "m"}, Answer(text="hi"))]
    body = "".join(frame.replace('", "', '",\ndata: "') for frame in frames).encode()
    assert reply_of(read(kind, body)).content == (TextBlock(text="hi"),)


WHOLE = {
    "openai-compatible": {
        "model": "m-1",
        "choices": [
            {
                "finish_reason": "tool_calls",
                "message": {
                    "content": "hi",
                    "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": '{"at":"x"}'}}],
                },
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    },
    "openai": {
        "model": "m-1",
        "status": "completed",
        "output": [
            {"type": "message", "id": "msg", "content": [{"type": "output_text", "text": "hi"}]},
            {"type": "function_call", "id": "fc", "name": "look", "arguments": '{"at":"x"}'},
        ],
        "usage": {"input_tokens": 7, "output_tokens": 2},
    },
    "anthropic": {
        "model": "m-1",
        "type": "message",
        "content": [
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "c", "name": "look", "input": {"at": "x"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 7, "output_tokens": 2},
    },
}


@pytest.mark.parametrize("kind", list(WHOLE))
def test_an_endpoint_may_answer_without_streaming(kind: str) -> None:
    outcome = read(kind, json.dumps(WHOLE[kind], indent=1).encode(), cuts=[1, 50], content_type="application/json")
    reply = reply_of(outcome)
    assert reply.content == (TextBlock(text="hi"), ToolCallBlock(id="", name="look", arguments={"at": "x"}))
    assert (reply.usage, reply.model, reply.stop_reason) == (Usage(input=7, output=2), "acme/m-1", "toolUse")


def chunk(**delta: Any) -> str:
    return sse({"choices": [{"delta": delta}]})


END = sse({"choices": [{"delta": {}, "finish_reason": "stop"}]}) + sse("[DONE]")


@pytest.mark.parametrize(
    "body",
    [
        chunk(reasoning="Hm.") + chunk(reasoning=" So.") + chunk(content="Yes.") + END,
        chunk(content="<think>") + chunk(content="Hm.") + chunk(content="</think>") + chunk(content="Yes.") + END,
        chunk(content="A") + chunk(reasoning="Hm.") + chunk(content="B") + END,
        chunk(content=[{"type": "text", "text": "list"}]) + END,
        chunk(content=" \n") + chunk(content="Yes.") + END,
        chunk(refusal="I will") + chunk(refusal=" not.") + END,
        sse({"choices": []}) + sse({"choices": None}) + chunk(content="x") + END,
        chunk(content="x") + sse({"choices": [{"delta": {}, "finish_reason": "content_filter"}]}) + sse("[DONE]"),
        chunk(content="x") + sse({"choices": [{"delta": {}, "finish_reason": "odd"}]}) + sse("[DONE]"),
        chunk(content="x") + sse("[DONE]"),
        chunk(tool_calls=[{"index": 1, "id": "b", "function": {"name": "two", "arguments": "{"}}])
        + chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "one", "arguments": ""}}])
        + chunk(tool_calls=[{"index": 1, "function": {"arguments": "}"}}])
        + END,
    ],
    ids=["fields", "tags", "between", "list", "blank", "refusal", "empty", "filter", "odd", "no end", "calls"],
)
@pytest.mark.parametrize("kind", ["openai-compatible", "ollama"])
def test_both_ways_read_the_habits_of_compatible_endpoints(kind: str, body: str) -> None:
    both = pair(kind)
    both.answers(streaming(body.encode()))
    assert told(asyncio.run(both.ask_wire(ASKED))) == told(asyncio.run(both.ask_library(ASKED)))


def test_calls_that_all_have_the_same_index_are_told_apart_by_their_ids() -> None:
    calls = [{"index": 0, "id": name, "function": {"name": name, "arguments": "{}"}} for name in ("a", "b", "c")]
    reply = reply_of(read("openai-compatible", (chunk(tool_calls=calls) + END).encode()))
    assert [block.name for block in reply.content if isinstance(block, ToolCallBlock)] == ["a", "b", "c"]


def test_halves_of_a_letter_in_two_events_are_one_letter() -> None:
    body = rb'data: {"choices":[{"delta":{"content":"\ud83d"}}]}' + b"\n\n"
    body += rb'data: {"choices":[{"delta":{"content":"\ude00"}}]}' + b"\n\n" + END.encode()
    assert storable_content(reply_of(read("openai-compatible", body)).content) == (TextBlock(text="😀"),)


# --- What goes wrong in a stream ---


def error_event(kind: str, error: dict[str, Any]) -> bytes:
    if kind.startswith("anthropic"):
        return sse({"type": "error", "error": error}, "error").encode()
    if kind == "openai":
        failed = {"id": "r", "status": "failed", "error": error, "output": [], "created_at": 1, "model": "m"}
        started = {**failed, "status": "in_progress", "error": None}
        events = [("response.created", started), ("response.failed", failed)]
        return "".join(sse({"type": name, "sequence_number": 1, "response": it}, name) for name, it in events).encode()
    return sse({"error": error}).encode()


@pytest.mark.parametrize(
    "error",
    [
        {"type": "overloaded_error", "message": "Overloaded"},
        {"type": "server_error", "code": "server_error", "message": "out of memory"},
        {"type": "requests", "code": "rate_limit_exceeded", "message": "slow down"},
        {"type": "insufficient_quota", "code": "insufficient_quota", "message": "no money left"},
    ],
    ids=lambda error: str(error["type"]),
)
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_tell_an_error_in_a_stream_the_same(kind: str, error: dict[str, Any]) -> None:
    if kind.startswith("anthropic"):
        error = {**error, "type": error["type"].replace("insufficient_quota", "billing_error")}  # its word for it
    both = pair(kind)
    both.answers(streaming(error_event(kind, error)))
    ours, theirs = (asyncio.run(ask(ASKED)) for ask in (both.ask_wire, both.ask_library))
    assert failure_of(ours).retryable == failure_of(theirs).retryable
    assert str(error["message"]) in failure_of(ours).message


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_breaks_off_may_be_tried_again(kind: str) -> None:
    body = stream_of(kind, Answer(text=("Hel", "lo"), calls=(Call("look", {"at": "x"}),)))
    for length in range(0, len(body) - 400, 97):
        assert failure_of(read(kind, body[:length])).retryable


@pytest.mark.parametrize("kind", KINDS)
async def test_a_compressed_answer_is_refused(kind: str) -> None:
    def compressed(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-encoding": "gzip"}, content=b"", request=request)

    both = pair(kind)
    both.by_wire.answer = compressed
    assert failure_of(await both.ask_wire(ASKED)).retryable


# --- Endpoints that mean harm ---


class Endless(httpx2.AsyncByteStream):
    """The same piece again and again, up to a number of bytes."""

    def __init__(self, start: bytes, piece: bytes, most: int, end: bytes = b"") -> None:
        self._start, self._piece, self._count, self._end = start, piece, most // len(piece), end
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._start
        block = self._piece * max(1, 65536 // len(self._piece))
        for _ in range(self._count * len(self._piece) // len(block)):
            self.sent += len(block)
            yield block
        yield self._end


GIGABYTE = 1 << 30
HARM = {
    "a line without end": Endless(b"data: ", b"x", GIGABYTE),
    "blank lines": Endless(b"", b"\n", 16 << 20),
    "comments": Endless(b"", b":\n", 16 << 20),
    "events of nothing": Endless(b"", b"data:1\n\n", 16 << 20),
    "empty objects": Endless(b"", b"data:{}\n\n", 16 << 20),
    "lines of one event": Endless(b"", b"data:1\n", 64 << 20),
    "lists": Endless(b'data: {"choices":[', b"[],", 64 << 20, b"1]}\n\n"),
    "lists of a whole": Endless(b'{"choices":[', b"[],", 64 << 20, b"1]}"),
    "text": Endless(b"", chunk(content="x" * 50).encode(), 256 << 20),
    "returns": Endless(b"", b"\r", 16 << 20),
    "deep": Endless(b"data: ", b"[", 1 << 20, b"\n\n"),
    "digits": Endless(b'data: {"usage":{"prompt_tokens":', b"9", 4 << 20, b"}}\n\n"),
}


@pytest.mark.parametrize("kind", ["openai-compatible", "openai", "anthropic"])
@pytest.mark.parametrize("harm", HARM)
async def test_nothing_that_an_endpoint_sends_holds_the_loop_or_fills_the_memory(kind: str, harm: str) -> None:
    stream = HARM[harm]
    stream.sent = 0
    both = pair(kind)
    both.by_wire.answer = None
    await both.ask_wire(ASKED)  # the frame is written
    both.by_wire.answer = lambda request: httpx2.Response(200, stream=stream, request=request)
    gc.collect()  # what other tests left behind would be counted here
    with loop_time() as held:
        outcome = await both.ask_wire(ASKED)
    assert isinstance(outcome, ModelFailed)
    assert stream.sent <= 300 << 20
    assert held.longest_s < MOST_S


@pytest.mark.parametrize("kind", ["openai-compatible", "openai", "anthropic"])
def test_arguments_that_are_too_long_are_left_out_and_the_reply_is_kept(kind: str) -> None:
    calls = (Call("look", json.dumps({"at": "x" * (2 << 20)})), Call("look", {"at": "y"}))
    reply = reply_of(read(kind, stream_of(kind, Answer(text="hi", calls=calls))))
    first, second = (block for block in reply.content if isinstance(block, ToolCallBlock))
    assert str(first.arguments).startswith("(left out: longer than") and second.arguments == {"at": "y"}


@pytest.mark.parametrize("kind", ["openai-compatible", "openai", "anthropic"])
def test_a_long_event_within_its_bounds_is_read(kind: str) -> None:
    long = "x" * (MOST_KEPT // 4)
    assert len(long) < LONGEST_EVENT
    outcome = read(kind, stream_of(kind, Answer(text=long)), cuts=list(range(0, len(long), 65536)))
    assert not isinstance(outcome, ModelFailed) and outcome[0] == [TextDelta(long)]
