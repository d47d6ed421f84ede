"""Models of providers, against a stand-in that speaks their wires over a real socket."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import pytest
from pydantic_ai import exceptions as pai
from pydantic_ai import messages as pai_messages

from backchannel.agents.endpoints import Endpoint, image_limit
from backchannel.agents.providers import Connection, ProviderModel, build_failure
from backchannel.agents.translation import build_history, build_reply
from backchannel.agents.wires.content import wire_call_id
from backchannel.core.contracts import (
    MOST_CALLS,
    THINKING_LEVELS,
    ModelEvent,
    ModelFailed,
    ModelReply,
    ModelRequest,
    Price,
    TextDelta,
    ThinkingDelta,
    ToolSpec,
)
from backchannel.core.messages import (
    Block,
    ImageBlock,
    Message,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
)
from tests.support.stub_anthropic import sign
from tests.support.stub_provider import Answer, Asked, Call, Drop, Fault, Hang, StubProvider
from tests.support.timing import is_at_most

pytestmark = pytest.mark.anyio

KINDS = ["openai-compatible", "openai", "anthropic"]  # the wires; the others differ in where and how they log in
MODELS = {"openai-compatible": "some-model", "openai": "gpt-5.4", "anthropic": "claude-sonnet-4-6"}
KEY = "sk-test-0123456789abcdefghij"
TOOL = ToolSpec("look", "Looks at a place.", {"type": "object", "properties": {"at": {"type": "string"}}})
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def stub() -> AsyncIterator[StubProvider]:
    async with StubProvider(key=KEY) as stub:
        yield stub


@pytest.fixture
async def model(kind: str, stub: StubProvider) -> AsyncIterator[ProviderModel]:
    connection = Connection(Endpoint("acme", kind, stub.base_url, KEY))
    yield ProviderModel(connection, MODELS[kind], context_window=1000)
    await connection.close()


def said(role: Role, *content: Block | str, **more: Any) -> Message:
    blocks = tuple(TextBlock(text=block) if isinstance(block, str) else block for block in content)
    return Message(id="m", role=role, content=blocks, timestamp=0, **more)


def user(*content: Block | str) -> Message:
    return said(Role.USER, *content)


def assistant(*content: Block | str, model: str | None = None) -> Message:
    return said(Role.ASSISTANT, *content, model=model)


def result(call_id: str, *content: Block | str, is_error: bool = False) -> Message:
    return said(Role.TOOL_RESULT, *content, tool_call_id=call_id, tool_name="look", is_error=is_error)


def called(call_id: str, arguments: Any = None) -> ToolCallBlock:
    return ToolCallBlock(id=call_id, name="look", arguments={"at": "x"} if arguments is None else arguments)


def asking(*messages: Message, **more: Any) -> ModelRequest:
    return ModelRequest(system="Be brief.", messages=messages or (user("hello"),), **more)


async def ask(model: ProviderModel, request: ModelRequest | None = None) -> tuple[list[ModelEvent], ModelReply]:
    with anyio.fail_after(60):
        events = [event async for event in model.stream(request or asking())]
    reply = events.pop()
    assert isinstance(reply, ModelReply)
    return events, reply


async def fail(model: ProviderModel, request: ModelRequest | None = None) -> ModelFailed:
    with pytest.raises(ModelFailed) as caught:
        await ask(model, request)
    return caught.value


def results_on(asked: Asked) -> list[tuple[str, str]]:
    """The tool results of a request, as (id, what it says), on whichever wire it came."""
    found: list[tuple[str, str]] = []
    for message in asked.messages:
        if message.get("role") == "tool":
            found.append((message["tool_call_id"], message["content"]))
        elif message.get("type") == "function_call_output":
            found.append((message["call_id"], message["output"]))
        elif isinstance(message.get("content"), list):
            results = [block for block in message["content"] if block["type"] == "tool_result"]
            found += [(block["tool_use_id"], block["content"][0]["text"]) for block in results]
    return found


# --- What comes back ---


async def test_text_streams_in_order_and_ends_with_the_whole_reply(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Answer(text=("Hel", "lo", " there"), input_tokens=12, output_tokens=3))
    events, reply = await ask(model)
    assert events == [TextDelta("Hel"), TextDelta("lo"), TextDelta(" there")]
    assert reply.content == (TextBlock(text="Hello there"),)
    assert reply.usage == Usage(input=12, output=3)
    assert reply.stop_reason == "stop"
    assert stub.refused == []


async def test_the_system_prompt_and_the_tools_are_sent(model: ProviderModel, stub: StubProvider, kind: str) -> None:
    await ask(model, asking(tools=(TOOL,)))
    body = stub.requests[0].body
    tool = body["tools"][0]
    if kind == "openai-compatible":
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert tool["function"]["parameters"] == TOOL.parameters
    elif kind == "openai":
        assert (body["instructions"], body["store"]) == ("Be brief.", False)
        assert tool["parameters"]["properties"] == TOOL.parameters["properties"]
    else:
        mark = {"cache_control": {"type": "ephemeral"}}
        assert body["system"] == [{"type": "text", "text": "Be brief."} | mark]
        assert tool["input_schema"] == TOOL.parameters


async def test_a_reply_names_the_model_that_really_answered(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Answer(text="hi", model="some-model-2026-10-01"))
    _, reply = await ask(model)
    assert reply.model == "acme/some-model-2026-10-01"
    assert model.ref.startswith("acme/")


async def test_tool_calls_come_after_the_text_without_ids(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Answer(text="Looking.", calls=(Call("look", {"at": "a"}), Call("look", {"at": "b"}))))
    _, reply = await ask(model, asking(tools=(TOOL,)))
    assert reply.content == (
        TextBlock(text="Looking."),
        ToolCallBlock(id="", name="look", arguments={"at": "a"}),
        ToolCallBlock(id="", name="look", arguments={"at": "b"}),
    )
    assert reply.stop_reason == "toolUse"


@pytest.mark.parametrize("raw", ['{"at": "a', "not json", '["a"]', "null"])
async def test_arguments_that_are_no_json_object_stay_the_text_that_came(
    model: ProviderModel, stub: StubProvider, raw: str
) -> None:
    stub.then(Answer(calls=(Call("look", raw),)))
    _, reply = await ask(model, asking(tools=(TOOL,)))
    assert reply.content == (ToolCallBlock(id="", name="look", arguments=raw),)


async def test_a_call_without_arguments_has_none(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Answer(calls=(Call("look", ""),)))
    _, reply = await ask(model, asking(tools=(TOOL,)))
    assert reply.content == (ToolCallBlock(id="", name="look", arguments={}),)


async def test_an_answer_with_nothing_in_it_is_an_empty_reply(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Answer())
    events, reply = await ask(model)
    assert (events, reply.content, reply.stop_reason) == ([], (), "stop")


async def test_a_reply_that_ran_out_of_tokens_says_so(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Answer(text="and so", stop="length"))
    _, reply = await ask(model)
    assert reply.stop_reason == "length"


async def test_tokens_read_from_a_cache_are_counted_apart(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Answer(text="hi", input_tokens=100, cached_tokens=80, output_tokens=2))
    _, reply = await ask(model)
    assert reply.usage == Usage(input=20, output=2, cache_read=80)


async def test_a_configured_price_gives_the_cost(stub: StubProvider) -> None:
    connection = Connection(Endpoint("acme", "openai-compatible", stub.base_url, KEY))
    model = ProviderModel(connection, "m", context_window=1000, price=Price(2.0, 10.0))
    stub.then(Answer(text="hi", input_tokens=1_000_000, output_tokens=100_000))
    _, reply = await ask(model)
    assert reply.usage.cost == pytest.approx(3.0)
    await connection.close()


async def test_a_published_price_counts_cached_tokens_at_their_own_rate(stub: StubProvider) -> None:
    connection = Connection(Endpoint("anthropic", "anthropic", stub.base_url, KEY))
    model = ProviderModel(connection, "claude-sonnet-4-6", context_window=1000, priced_as="anthropic")
    stub.then(Answer(text="hi", input_tokens=100_000, cached_tokens=100_000, output_tokens=0))
    _, reply = await ask(model)
    assert reply.usage.cost == pytest.approx(0.03)
    await connection.close()


async def test_what_the_model_thought_comes_before_what_it_said(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Answer(thinking="Hm.", text="Yes."))
    events, reply = await ask(model)
    assert events == [ThinkingDelta("Hm."), TextDelta("Yes.")]
    thought, text = reply.content
    assert isinstance(thought, ThinkingBlock)
    assert (thought.thinking, text) == ("Hm.", TextBlock(text="Yes."))


# --- What is sent ---


async def test_long_ids_of_ours_become_short_ones_that_agree(model: ProviderModel, stub: StubProvider) -> None:
    ids = [f"cron:nightly-report:2026-11-23T09:00:00Z/{step}/0" for step in (1, 2)]
    await ask(
        model,
        asking(
            user("go"),
            assistant("First.", called(ids[0])),
            result(ids[0], "one"),
            assistant(called(ids[1])),
            result(ids[1], "two"),
            tools=(TOOL,),
        ),
    )
    assert stub.refused == []
    assert results_on(stub.requests[0]) == [(wire_call_id(ids[0]), "one"), (wire_call_id(ids[1]), "two")]


async def test_results_go_out_in_the_order_of_their_calls(model: ProviderModel, stub: StubProvider) -> None:
    await ask(
        model,
        asking(
            user("go"),
            assistant(called("r/1/0"), called("r/1/1"), called("r/1/2")),
            result("r/1/2", "third"),
            result("r/1/0", "first"),
            result("r/1/1", "second"),
            tools=(TOOL,),
        ),
    )
    assert stub.refused == []
    assert [text for _, text in results_on(stub.requests[0])] == ["first", "second", "third"]


async def test_a_failed_result_is_marked_as_an_error(model: ProviderModel, stub: StubProvider, kind: str) -> None:
    await ask(model, asking(user("go"), assistant(called("r/1/0")), result("r/1/0", "no such place", is_error=True)))
    assert stub.refused == []
    if kind == "anthropic":
        block = stub.requests[0].messages[-1]["content"][0]
        assert (block["is_error"], block["content"]) == (True, [{"type": "text", "text": "no such place"}])
    else:
        assert results_on(stub.requests[0]) == [(wire_call_id("r/1/0"), '{"error":"no such place"}')]


async def test_a_result_without_a_call_is_refused_before_anything_is_sent(
    model: ProviderModel, stub: StubProvider
) -> None:
    failure = await fail(model, asking(user("go"), result("r/1/0", "what?")))
    assert not failure.retryable
    assert stub.requests == []


async def test_a_person_may_speak_after_results(model: ProviderModel, stub: StubProvider) -> None:
    await ask(model, asking(user("go"), assistant(called("r/1/0")), result("r/1/0", "one"), user("and now?")))
    assert stub.refused == []


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param((user(),), id="nothing"),
        pytest.param((user(""),), id="empty text"),
        pytest.param((user(" \n"),), id="blank text"),
        pytest.param((user(ImageBlock(mime_type="image/png", data=PNG)),), id="only an image"),
        pytest.param((user("see", ImageBlock(mime_type="image/png", data=PNG), ""),), id="text and image"),
        pytest.param((user(ImageBlock(mime_type="image/png", url=f"data:image/png;base64,{PNG}")),), id="data url"),
        pytest.param((user(ImageBlock(mime_type="image/png", url="https://example.com/a.png")),), id="url"),
        pytest.param((user(ImageBlock(mime_type="image/png", data="%%%")),), id="image that is none"),
        pytest.param((user(ImageBlock(mime_type="image/png")),), id="image without data"),
        pytest.param((user("a"), assistant(), user("b")), id="empty reply"),
        pytest.param((user("a"), assistant(" "), user("b")), id="blank reply"),
        pytest.param((user("a"), assistant(ThinkingBlock(thinking="hm")), user("b")), id="only thought"),
        pytest.param((user("a"), user("b")), id="two in a row"),
        pytest.param((user("a"), assistant(called("r/1/0")), result("r/1/0")), id="empty result"),
        pytest.param((user("a"), assistant(called("r/1/0")), result("r/1/0", "")), id="blank result"),
        pytest.param((user("a"), assistant(called("r/1/0", "{oops")), result("r/1/0", "bad", is_error=True)), id="raw"),
        pytest.param((user("a"), assistant(called("r/1/0", [1])), result("r/1/0", "bad", is_error=True)), id="list"),
        pytest.param(
            (
                user("a"),
                assistant(called("r/1/0")),
                result("r/1/0", "seen", ImageBlock(mime_type="image/png", data=PNG)),
            ),
            id="image in a result",
        ),
    ],
)
async def test_what_providers_refuse_is_never_sent(
    model: ProviderModel, stub: StubProvider, messages: tuple[Message, ...]
) -> None:
    _, reply = await ask(model, asking(*messages))
    assert reply.content == (TextBlock(text="ok"),)
    assert stub.refused == []


@pytest.mark.parametrize("sees", [True, False])
def test_a_model_that_cannot_see_is_told_of_images_in_words(sees: bool) -> None:
    image = ImageBlock(mime_type="image/png", data=PNG)
    request = asking(user("see", image), assistant(called("r/1/0")), result("r/1/0", image))
    sent = repr(build_history(request, provider="acme", system="acme", image_limit=sys.maxsize if sees else 0))
    assert sent.count("BinaryContent") == (2 if sees else 0)
    assert sent.count("which this model cannot see") == (0 if sees else 2)


def test_an_image_that_anthropic_would_refuse_is_told_in_words() -> None:
    large = ImageBlock(mime_type="image/png", data="A" * (image_limit("anthropic") + 4))
    sent = [
        repr(build_history(asking(user("see", large)), provider="acme", system="acme", image_limit=image_limit(kind)))
        for kind in KINDS
    ]
    assert ["BinaryContent" in each for each in sent] == [True, True, False]
    assert "larger than this model takes" in sent[-1]


async def test_an_empty_system_prompt_is_left_out(model: ProviderModel, stub: StubProvider) -> None:
    await ask(model, ModelRequest(system=" ", messages=(user("hello"),)))
    assert stub.refused == []
    body = stub.requests[0].body
    assert "system" not in body
    assert "instructions" not in body
    assert body.get("messages", [{"role": "user"}])[0]["role"] == "user"


async def test_signed_thinking_goes_back_to_its_provider(stub: StubProvider) -> None:
    for kind in ("anthropic", "openai"):
        connection = Connection(Endpoint("acme", kind, stub.base_url, KEY))
        model = ProviderModel(connection, MODELS[kind], context_window=1000)
        stub.then(Answer(thinking="Hm.", text="Wait.", calls=(Call("look", {"at": "a"}),)))
        _, reply = await ask(model)
        thought, text, call = reply.content
        assert isinstance(call, ToolCallBlock)
        content = (thought, text, ToolCallBlock(id="r/1/0", name=call.name, arguments=call.arguments))
        await ask(model, asking(user("go"), assistant(*content, model=reply.model), result("r/1/0", "seen")))
        await connection.close()
    assert stub.refused == []
    block = stub.requests[1].messages[1]["content"][0]
    assert block == {"type": "thinking", "thinking": "Hm.", "signature": sign("Hm.")}
    item = next(item for item in stub.requests[3].messages if item.get("type") == "reasoning")
    assert (item["id"], item["encrypted_content"]) == ("rs_1", "gAAAA-enc")


@pytest.mark.parametrize(
    "reply",
    [
        assistant(ThinkingBlock(thinking="Hm.", signature="sigx"), "Yes.", model="other/claude"),
        assistant(ThinkingBlock(thinking="Hm.", signature="sigx"), "Yes."),
        assistant(ThinkingBlock(thinking="Hm."), "Yes.", model="acme/claude"),
    ],
    ids=["of another provider", "of nobody", "unsigned"],
)
async def test_other_thinking_is_left_out(model: ProviderModel, stub: StubProvider, reply: Message) -> None:
    await ask(model, asking(user("go"), reply, user("more")))
    assert stub.refused == []
    assert "Hm." not in str(stub.requests[0].body)


async def test_redacted_thinking_goes_back_as_it_came(stub: StubProvider) -> None:
    connection = Connection(Endpoint("acme", "anthropic", stub.base_url, KEY))
    model = ProviderModel(connection, MODELS["anthropic"], context_window=1000)
    hidden = ThinkingBlock(thinking="", signature="redacted_thinking:abc")
    await ask(model, asking(user("go"), assistant(hidden, "Yes.", model="acme/claude"), user("more")))
    await connection.close()
    assert stub.refused == []
    assert stub.requests[0].messages[1]["content"][0] == {"type": "redacted_thinking", "data": "abc"}


async def test_a_thinking_level_is_sent_to_models_that_think(model: ProviderModel, stub: StubProvider) -> None:
    for level in THINKING_LEVELS:
        await ask(model, asking(thinking=level))
    assert stub.refused == []
    high = stub.requests[THINKING_LEVELS.index("high")].body
    match model.ref:
        case "acme/some-model":
            assert "reasoning_effort" not in high
        case "acme/gpt-5.4":
            assert high["reasoning"]["effort"] == "high"
        case _:
            assert high["thinking"]["type"] == "adaptive"
            assert "thinking" not in stub.requests[THINKING_LEVELS.index("off")].body


async def test_an_unknown_thinking_level_is_refused_with_the_known_ones(model: ProviderModel) -> None:
    failure = await fail(model, asking(thinking="very"))
    assert not failure.retryable
    assert "off, minimal, low, medium, high" in failure.message


async def test_a_compatible_endpoint_gets_the_key_where_the_older_sdks_put_it(stub: StubProvider) -> None:
    connection = Connection(Endpoint("acme", "anthropic-compatible", stub.base_url, KEY))
    await ask(ProviderModel(connection, "some-model", context_window=1000))
    await connection.close()
    assert stub.requests[0].headers["x-api-key"] == KEY


async def test_without_a_key_none_is_sent(kind: str) -> None:
    async with StubProvider() as stub:
        connection = Connection(Endpoint("acme", kind, stub.base_url))
        await ask(ProviderModel(connection, MODELS[kind], context_window=1000))
        await connection.close()
    assert not {"authorization", "x-api-key"} & stub.requests[0].headers.keys()


# --- What goes wrong ---


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (403, False), (404, False), (422, False)])
async def test_a_refusal_is_final_and_in_the_providers_words(
    model: ProviderModel, stub: StubProvider, status: int, retryable: bool
) -> None:
    stub.then(Fault(status, "this model cannot do that"))
    failure = await fail(model)
    assert failure.retryable is retryable
    assert failure.message == f"this model cannot do that (HTTP {status} from acme)"
    assert len(stub.requests) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
async def test_a_passing_failure_may_be_tried_again_by_the_caller_only(
    model: ProviderModel, stub: StubProvider, status: int
) -> None:
    stub.then(Fault(status, "try later"))
    failure = await fail(model)
    assert failure.retryable
    assert failure.retry_after_s is None
    assert len(stub.requests) == 1


async def test_retry_after_in_seconds_is_honoured(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Fault(429, "slow down", {"Retry-After": "7"}))
    assert (await fail(model)).retry_after_s == 7


async def test_retry_after_as_a_date_is_honoured(model: ProviderModel, stub: StubProvider) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    stub.then(Fault(503, "back soon", {"Retry-After": later}))
    seconds = (await fail(model)).retry_after_s
    assert seconds is not None
    assert 60 < seconds <= 90


async def test_a_wrong_key_is_final_and_never_shown(kind: str, stub: StubProvider) -> None:
    wrong = "sk-wrong-9876543210zyxwvutsrq"
    connection = Connection(Endpoint("acme", kind, stub.base_url, wrong))
    failure = await fail(ProviderModel(connection, MODELS[kind], context_window=1000))
    await connection.close()
    assert not failure.retryable
    assert "HTTP 401" in failure.message
    assert failure.__cause__ is None
    for shown in (wrong, wrong[:8], wrong[-4:]):
        assert shown not in failure.message


async def test_a_key_that_a_provider_echoes_is_taken_out(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Fault(400, f"you sent {KEY}, or was it {KEY[:15]} or sk-t**********ghij?"))
    assert "or was it [redacted] or [redacted]" in (await fail(model)).message


async def test_a_key_is_taken_out_of_a_long_error_wherever_it_stands(model: ProviderModel, stub: StubProvider) -> None:
    for before in (0, 900, 990, 1000, 3990, 100_000):
        stub.then(Fault(400, f"{'x ' * (before // 2)}{KEY} {'*' * 5}{KEY[-4:]}" + " and so on" * 10_000))
        shown = (await fail(model)).message
        assert len(shown) <= 1000
        assert KEY[:8] not in shown and KEY[-8:] not in shown


def test_an_error_a_hundred_times_as_long_is_read_no_longer() -> None:
    small, large = (
        pai.ModelHTTPError(400, "m", {"error": {"message": "E" * length}}) for length in (10_000, 1_000_000)
    )
    endpoint = Endpoint("acme", "openai", api_key=KEY)
    assert is_at_most(5, lambda: build_failure(large, endpoint), lambda: build_failure(small, endpoint))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "fault",
    [
        Fault(400, body=f'{{"error": {{"message": {DEEP}}}}}'),
        Fault(500, body=DEEP),
        Fault(200, body=f"data: {DEEP}\n\n", content_type="text/event-stream"),
        Fault(200, body=f"event: message_start\ndata: {DEEP}\n\n", content_type="text/event-stream"),
    ],
    ids=["refusal", "failure", "stream", "event"],
)
async def test_an_answer_that_is_nested_too_deeply_is_a_failure_like_any_other(
    model: ProviderModel, stub: StubProvider, fault: Fault
) -> None:
    stub.then(fault, Answer(text="fine"))
    assert (await fail(model)).message
    _, reply = await ask(model)
    assert reply.content == (TextBlock(text="fine"),)


@pytest.mark.parametrize("ends", ["cut", "broken"])
async def test_half_a_stream_is_a_failure_that_may_pass(model: ProviderModel, stub: StubProvider, ends: Any) -> None:
    stub.then(Answer(text=("Hel", "lo"), ends=ends))
    failure = await fail(model)
    assert failure.retryable


@pytest.mark.parametrize(
    "fault",
    [
        Fault(200, body="<html>Welcome to the hotel</html>", content_type="text/html"),
        Fault(200, body="data: {oops\n\n", content_type="text/event-stream"),
        Fault(200, body="data: [1]\n\n", content_type="text/event-stream"),
        Fault(200, body='event: message_start\ndata: {"type": "odd"}\n\n', content_type="text/event-stream"),
        Fault(200, body="", content_type="text/event-stream"),
        Fault(200, body="{}"),
        Fault(502, body="<html><h1>Bad gateway</h1></html>", content_type="text/html"),
    ],
    ids=["page", "no json", "no object", "no event", "nothing", "no stream", "gateway"],
)
async def test_nonsense_in_place_of_an_answer_is_a_failure_that_may_pass(
    model: ProviderModel, stub: StubProvider, fault: Fault
) -> None:
    stub.then(fault)
    failure = await fail(model)
    assert failure.retryable
    assert failure.message


async def test_an_error_in_the_middle_of_a_stream_is_told(stub: StubProvider) -> None:
    body = 'data: {"error": {"message": "out of memory", "type": "server_error", "code": null}}\n\n'
    connection = Connection(Endpoint("acme", "openai-compatible", stub.base_url, KEY))
    stub.then(Fault(200, body=body, content_type="text/event-stream"))
    failure = await fail(ProviderModel(connection, "m", context_window=1000))
    await connection.close()
    assert failure.retryable
    assert "out of memory" in failure.message


async def test_a_connection_that_is_dropped_may_be_tried_again(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Drop())
    failure = await fail(model)
    assert failure.retryable
    assert "connection to acme failed" in failure.message


async def test_nobody_at_the_address_may_be_tried_again(kind: str) -> None:
    async with StubProvider() as gone:
        address = gone.base_url
    connection = Connection(Endpoint("acme", kind, address, KEY))
    failure = await fail(ProviderModel(connection, MODELS[kind], context_window=1000))
    await connection.close()
    assert failure.retryable
    assert "connection to acme failed" in failure.message


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (pai.ModelTimeoutError("m", "Request timed out."), True),
        (pai.ModelHTTPError.for_category(pai.ModelQuotaExceededError, status_code=429, model_name="m"), False),
        (pai.ModelRequestRejectedError("m", "too long"), False),
        (pai.ModelOverloadedError("m", "busy"), True),
        (pai.ContentFilterError("not that"), False),
        (pai.UserError("not an image"), False),
        (ImportError("no such package"), False),
        (AssertionError(), True),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_will_not_pass_by_itself_is_not_tried_again(error: Exception, retryable: bool) -> None:
    assert build_failure(error, Endpoint("acme", "openai")).retryable is retryable


async def test_a_failure_leaves_the_model_usable(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Answer(text=("a", "b"), ends="broken"), Fault(500), Answer(text="fine"))
    await fail(model)
    await fail(model)
    _, reply = await ask(model)
    assert reply.content == (TextBlock(text="fine"),)


# --- Leaving early ---


async def _listen(model: ProviderModel) -> None:
    async for _ in model.stream(asking()):
        pass


async def test_cancelling_before_the_answer_closes_the_connection(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Hang())
    asking_task = asyncio.create_task(_listen(model))
    with anyio.fail_after(20):
        asked = await stub.asked()
        asking_task.cancel()
        await asked.gone.wait()
    with pytest.raises(asyncio.CancelledError):
        await asking_task


async def test_cancelling_in_the_middle_closes_the_connection(model: ProviderModel, stub: StubProvider) -> None:
    reached = asyncio.Event()
    stub.then(Answer(text=("a", "b"), gate=asyncio.Event(), held_at=1, reached=reached))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(_listen, model)
            await reached.wait()
            group.cancel_scope.cancel()
        await stub.requests[0].gone.wait()


async def test_closing_the_iterator_closes_the_connection(model: ProviderModel, stub: StubProvider) -> None:
    stub.then(Answer(text=("a", "b"), gate=asyncio.Event(), held_at=1))
    with anyio.fail_after(20):
        stream = model.stream(asking())
        async with aclosing(stream):  # type: ignore[type-var]  # an async generator, whatever the contract says
            assert await anext(stream) == TextDelta("a")
        await stub.requests[0].gone.wait()


async def test_many_ask_at_once_over_one_client(model: ProviderModel, stub: StubProvider) -> None:
    gate = asyncio.Event()
    stub.reply = lambda _: Answer(text="ok", gate=gate)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(_listen, model)
            await stub.asked(50)
            gate.set()
    assert stub.refused == []


def test_importing_the_registry_imports_no_provider_layer() -> None:
    heavy = "{'pydantic_ai', 'genai_prices', 'httpx2', 'openai', 'anthropic'}"
    code = f"import sys, backchannel.agents.models; print({heavy} & sys.modules.keys() or 'light')"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "light"


def test_a_client_is_opened_with_all_that_its_first_request_needs() -> None:
    """What is not loaded then is imported on the event loop, and holds everybody."""
    code = (
        "import asyncio, sys\n"
        "from backchannel.agents.endpoints import Endpoint\n"
        "from backchannel.agents.sdks import open_http\n"
        "async def ask(http):\n"
        "    known = set(sys.modules)\n"
        "    try:\n"
        "        await http.get('http://127.0.0.1:9')\n"
        "    except Exception:\n"
        "        pass\n"
        "    loaded = {name.partition('.')[0] for name in set(sys.modules) - known}\n"
        "    print(loaded & {'anyio', 'httpcore2', 'h11', 'ssl'})\n"
        "asyncio.run(ask(open_http(Endpoint('acme', 'openai-compatible', 'http://127.0.0.1:9'))))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


async def test_a_reply_with_too_many_calls_is_refused_before_it_has_ended(
    stub: StubProvider, model: ProviderModel
) -> None:
    stub.then(Answer(calls=tuple(Call("look", {"at": "home"}) for _ in range(MOST_CALLS + 1))))
    failed = await fail(model)
    assert f"more than {MOST_CALLS} tool calls" in failed.message and not failed.retryable


async def test_arguments_that_are_nested_too_deep_to_read_stay_the_text_that_came() -> None:
    text = '{"a":' * 2_000 + "1" + "}" * 2_000
    response = pai_messages.ModelResponse(
        parts=[pai_messages.ToolCallPart("look", text)], model_name="m", provider_details={"finish_reason": "stop"}
    )
    [call] = build_reply(response, "acme").content
    assert isinstance(call, ToolCallBlock) and call.arguments == text
