"""The OpenAI-style door, tried with the `openai` client, which nobody here wrote."""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from backchannel.agents.scripted import Reply
from backchannel.core.contracts import ModelFailed
from backchannel.core.messages import ImageBlock
from backchannel.gateway.openai import following
from tests.support.clocks import StageClock

from .openai_door import SAID, Door, open_door

pytestmark = pytest.mark.anyio


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with open_door(tmp_path) as door:
        yield door


async def test_a_completion_is_the_agents_reply_with_its_usage(door: Door) -> None:
    answer = await door.client.chat.completions.create(model="main", messages=[{"role": "user", "content": "hello"}])
    assert answer.choices[0].message.content == "you said: hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 3, 10)


async def test_a_streamed_completion_comes_in_pieces_that_make_up_the_reply(door: Door) -> None:
    stream = await door.client.chat.completions.create(
        model="main", messages=[{"role": "user", "content": "hello"}], stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "you said: hello"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_a_streamed_run_with_tools_streams_what_is_said_around_them(door: Door) -> None:
    stream = await door.client.chat.completions.create(
        model="main", messages=[{"role": "user", "content": "use a tool"}], stream=True
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text.endswith("you said: seen")


async def test_without_a_name_each_completion_has_a_session_of_its_own_that_is_told_the_history(door: Door) -> None:
    await door.client.chat.completions.create(
        model="main",
        messages=[
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "my name is Ada"},
            {"role": "assistant", "content": "hello Ada"},
            {"role": "user", "content": [{"type": "text", "text": "who am I?"}]},
        ],
    )
    (message,) = door.model.requests[-1].messages
    assert message.text == (
        "Earlier in this conversation:\n\nuser: my name is Ada\n\nassistant: hello Ada\n\nNow:\n\nwho am I?"
    )
    assert door.model.requests[-1].system.endswith("# For this request\n\nbe kind")


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_instructions_reach_the_model_also_in_a_named_session_for_that_request_only(
    door: Door, role: str
) -> None:
    for messages in ([{"role": role, "content": "Answer in French."}, *SAID], SAID):
        await door.client.chat.completions.create(model="main", user="ada", messages=messages)
    first, second = door.model.requests
    assert first.system.endswith("Answer in French.")
    assert "French" not in second.system
    assert await door.said_in("agent:main:openai:ada") == ["hello", "hello"]


@pytest.mark.parametrize("by", ["user", "header"])
async def test_a_named_session_remembers_and_takes_only_what_is_new(door: Door, by: str) -> None:
    for text in ("first", "second"):
        await door.client.chat.completions.create(
            model="main",
            messages=[
                {"role": "user", "content": "what the client keeps"},
                {"role": "assistant", "content": "an answer"},
                {"role": "user", "content": text},
            ],
            user="ada" if by == "user" else openai.omit,
            extra_headers={"x-backchannel-session": "ada"} if by == "header" else None,
        )
    texts = [message.text for message in door.model.requests[-1].messages]
    assert texts == ["first", "you said: first", "second"]
    assert await door.gateway.store.session("agent:main:openai:ada") is not None


async def test_a_full_key_names_any_session_of_the_agent(door: Door) -> None:
    await door.client.chat.completions.create(
        model="main", messages=[{"role": "user", "content": "hi"}], user="agent:main:main"
    )
    assert await door.gateway.store.session("agent:main:main") is not None


async def test_the_models_are_the_agents(door: Door) -> None:
    assert [model.id async for model in door.client.models.list()] == ["main", "research-bot"]


async def test_an_agent_is_found_by_any_spelling_of_its_id(door: Door) -> None:
    answer = await door.client.chat.completions.create(
        model="Research Bot", messages=[{"role": "user", "content": "hi"}]
    )
    assert answer.model == "research-bot"


async def test_an_unknown_agent_is_not_found_and_the_error_names_those_there_are(door: Door) -> None:
    with pytest.raises(openai.NotFoundError, match=r"research-bot") as caught:
        await door.client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "model_not_found"


async def test_a_wrong_token_is_refused(door: Door) -> None:
    async with door.with_token("wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def test_a_failed_run_is_an_error_with_the_reason(door: Door) -> None:
    door.model.add(ModelFailed("the provider says no", retryable=False))
    with pytest.raises(openai.APIStatusError, match="the provider says no") as caught:
        await door.client.chat.completions.create(model="main", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.status_code == 424


async def test_a_failed_streamed_run_ends_with_the_reason(door: Door) -> None:
    door.model.add(ModelFailed("the provider says no", retryable=False))
    stream = await door.client.chat.completions.create(
        model="main", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(openai.APIError, match="the provider says no"):
        async for _ in stream:
            pass


async def test_the_same_idempotency_key_starts_no_second_run(door: Door) -> None:
    for _ in range(2):
        await door.client.chat.completions.create(
            model="main",
            messages=[{"role": "user", "content": "once"}],
            extra_headers={"Idempotency-Key": "only-once"},
        )
    assert len(door.model.requests) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"model":"main"}', b'{"model":1,"messages":[]}', b'{"model":"main","messages":[]}'],
)
async def test_a_bad_body_is_refused_in_the_form_that_these_clients_read(door: Door, body: bytes) -> None:
    answer = await door.post("chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_the_door_is_closed_unless_it_is_configured(tmp_path: Path) -> None:
    async with open_door(tmp_path, is_open=False) as door:
        with pytest.raises(openai.NotFoundError):
            await door.client.models.list()


# --- Streams ---


async def streamed(door: Door, **more: Any) -> list[Any]:
    asked: dict[str, Any] = {"model": "main", "messages": SAID} | more
    return [chunk async for chunk in await door.client.chat.completions.create(stream=True, **asked)]


async def test_the_usage_comes_last_in_a_stream_where_it_is_asked_for(door: Door) -> None:
    *others, last = await streamed(door, stream_options={"include_usage": True})
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (7, 3, 10)
    assert all(chunk.usage is None for chunk in others)
    assert all(chunk.usage is None for chunk in await streamed(door, stream_options={"include_usage": False}))


async def test_a_stream_that_has_nothing_to_say_yet_is_kept_alive_and_not_held_back_by_proxies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "KEEP_ALIVE_S", 0.02)
    gate = asyncio.Event()
    async with open_door(tmp_path, replies=[Reply(text="at last", gate=gate)]) as door:
        body = {"model": "main", "messages": SAID, "stream": True}
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            request = client.stream("POST", f"{door.at.url}/v1/chat/completions", json=body, headers=door.headers)
            async with request as answer:
                assert answer.headers["cache-control"] == "no-cache"
                assert answer.headers["x-accel-buffering"] == "no"
                lines = []
                async for line in answer.aiter_lines():
                    lines.append(line)
                    if lines.count(": keep-alive") == 2:
                        gate.set()
        assert lines.count(": keep-alive") >= 2
        assert any("at last" in line for line in lines)


@pytest.mark.parametrize("word", ["NO_REPLY", "REPLY_SKIP", "ANNOUNCE_SKIP", " NO_REPLY\n"])
async def test_a_word_that_is_meant_for_the_gateway_is_shown_to_nobody(tmp_path: Path, word: str) -> None:
    pieces = (word[:4], word[4:])
    async with open_door(tmp_path, replies=[Reply(text=pieces), Reply(text=pieces), Reply(text=pieces)]) as door:
        chunks = await streamed(door)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
        assert chunks[-1].choices[0].finish_reason == "stop"
        answer = await door.client.chat.completions.create(model="main", messages=SAID)
        assert answer.choices[0].message.content == ""
        assert (await door.client.responses.create(model="main", input="hello")).output_text == ""


async def test_a_sentence_that_begins_like_such_a_word_is_shown_whole(tmp_path: Path) -> None:
    async with open_door(tmp_path, replies=[Reply(text=("NO_", "REPLY is a word."))]) as door:
        chunks = await streamed(door)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "NO_REPLY is a word."


async def test_a_client_that_goes_away_leaves_its_run_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = asyncio.all_tasks()
    gate, reached = asyncio.Event(), asyncio.Event()
    held = Reply(text=("one ", "two"), gate=gate, held_at=1, reached=reached)
    async with open_door(tmp_path, replies=[held]) as door:
        for _ in range(3):  # the second and the third join the run of the first
            stream = await door.client.chat.completions.create(model="main", messages=SAID, stream=True)
            await anext(stream)
            await stream.close()
        await reached.wait()
        gate.set()
        (run,) = await door.runs()
        assert (await door.gateway.runtime.wait(run.id, 20)).reply == "one two"
    assert asyncio.all_tasks() == before
    gc.collect()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# --- Errors ---


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "nothing", b"", 404, "invalid_request_error"),
        ("GET", "models/nobody", b"", 404, "invalid_request_error"),
        ("GET", "responses/resp_nothing", b"", 404, "invalid_request_error"),
        ("DELETE", "models", b"", 405, "invalid_request_error"),
        ("POST", "chat/completions", b"x" * 1_100_000, 413, "invalid_request_error"),
        ("POST", "chat/completions", b"{}", 400, "invalid_request_error"),
        ("POST", "responses", b"\xff", 400, "invalid_request_error"),
    ],
)
async def test_every_refusal_has_the_form_that_these_clients_read(
    door: Door, method: str, path: str, body: bytes, status: int, kind: str
) -> None:
    answer = await door.ask(method, path, content=body)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.json()["error"]["type"] == kind
    assert answer.headers["x-should-retry"] == "false"


async def test_a_wrong_token_and_a_foreign_page_are_told_in_the_same_form(door: Door) -> None:
    wrong = await door.ask("GET", "models", headers={"Authorization": "Bearer wrong"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
    assert wrong.headers["www-authenticate"] == "Bearer"
    foreign = await door.ask("GET", "models", headers={"Origin": "https://elsewhere.example"})
    assert (foreign.status_code, foreign.json()["error"]["type"]) == (403, "permission_error")


async def test_whoever_is_slowed_down_is_told_when_to_come_back(door: Door) -> None:
    for n in range(60):
        answer = await door.ask("GET", "models", headers={"Authorization": f"Bearer wrong{n}"})
        if answer.status_code == 429:
            break
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert int(answer.headers["retry-after"]) >= 1
    assert "x-should-retry" not in answer.headers


async def test_nulls_are_as_if_they_were_left_out(door: Door) -> None:
    nulls = ("stream", "stream_options", "user", "n", "stop", "tools", "tool_choice", "response_format", "temperature")
    body = {"model": "main", "messages": SAID, **dict.fromkeys(nulls)}
    answer = await door.post("chat/completions", body)
    assert answer.status_code == 200
    assert "x-backchannel-ignored" not in answer.headers


# --- Parameters ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("stop", ["END"]),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x", "format": "wav"}),
        ("web_search_options", {}),
    ],
)
async def test_what_cannot_be_given_is_refused_by_name(door: Door, name: str, value: object) -> None:
    answer = await door.post("chat/completions", {"model": "main", "messages": SAID, name: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert await door.runs() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 1), ("stop", []), ("response_format", {"type": "text"}), ("tools", []), ("tool_choice", "auto")],
)
async def test_values_that_change_nothing_are_taken(door: Door, name: str, value: object) -> None:
    answer = await door.post("chat/completions", {"model": "main", "messages": SAID, name: value})
    assert answer.status_code == 200
    assert "x-backchannel-ignored" not in answer.headers


async def test_settings_of_a_model_are_taken_and_the_answer_says_that_they_have_no_effect(door: Door) -> None:
    body = {"model": "main", "messages": SAID, "temperature": 0.1, "max_tokens": 5, "some\nthing": 1}
    answer = await door.post("chat/completions", body)
    assert answer.headers["x-backchannel-ignored"] == "max_tokens, some%0Athing, temperature"


@pytest.mark.parametrize(("effort", "thinking"), [("none", "off"), ("high", "high")])
async def test_the_effort_of_reasoning_is_how_much_the_agent_thinks(door: Door, effort: Any, thinking: str) -> None:
    await door.client.chat.completions.create(model="main", messages=SAID, reasoning_effort=effort)
    assert door.model.requests[-1].thinking == thinking


# --- Histories with tools of the client ---

CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"in": "Rome"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}


async def test_a_history_that_ends_with_a_tools_result_is_answered(door: Door) -> None:
    for user in ({}, {"user": "ada"}):
        answer = await door.post("chat/completions", {"model": "main", "messages": [*SAID, CALLED, RESULT], **user})
        assert answer.status_code == 200
    fresh, named = (request.messages[-1].text for request in door.model.requests)
    assert named == '[result of [called weather({"in": "Rome"})]]\nsunny'
    assert fresh.endswith(f"Now:\n\n{named}")
    assert 'assistant: [called weather({"in": "Rome"})]' in fresh


async def test_a_tools_result_before_a_message_of_the_user_is_told_too(door: Door) -> None:
    messages = [*SAID, CALLED, RESULT, {"role": "user", "content": "and in Oslo?"}]
    await door.post("chat/completions", {"model": "main", "messages": messages, "user": "ada"})
    assert door.model.requests[-1].messages[-1].text.endswith("sunny\n\nand in Oslo?")


# --- Images ---

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
JPEG = b"\xff\xd8\xff\xe0" + b"pixels"


def picture(content: bytes, claimed: str = "image/png") -> str:
    return f"data:{claimed};base64,{base64.b64encode(content).decode()}"


async def test_an_image_reaches_the_model_as_what_its_content_says(door: Door) -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": picture(JPEG), "detail": "low"}},
    ]
    await door.post("chat/completions", {"model": "main", "messages": [{"role": "user", "content": parts}]})
    _, image = door.model.requests[-1].messages[-1].content
    assert image == ImageBlock(mime_type="image/jpeg", data=base64.b64encode(JPEG).decode())


async def test_images_of_the_history_come_with_their_place_in_it(door: Door) -> None:
    seen = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture(PNG)}}]}
    messages = [seen, {"role": "assistant", "content": "a cat"}, {"role": "user", "content": "which colour?"}]
    await door.post("chat/completions", {"model": "main", "messages": messages})
    message = door.model.requests[-1].messages[-1]
    assert "user: [image 1]\n\nassistant: a cat" in message.text
    assert [block.mime_type for block in message.content if isinstance(block, ImageBlock)] == ["image/png"]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://example.com/cat.png", "not downloaded"),
        ("file:///etc/passwd", "not downloaded"),
        (picture(b"<svg/>", "image/svg+xml"), "no image that models can see"),
        ("data:image/png;base64,!!!", "not in base64"),
        ("data:image/png,abc", "not in base64"),
    ],
)
async def test_what_is_no_image_here_is_refused(door: Door, url: str, told: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    answer = await door.post("chat/completions", {"model": "main", "messages": [{"role": "user", "content": content}]})
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


async def test_a_request_has_a_bounded_number_of_images(door: Door) -> None:
    content = [{"type": "image_url", "image_url": {"url": picture(PNG)}}] * 21
    answer = await door.post("chat/completions", {"model": "main", "messages": [{"role": "user", "content": content}]})
    assert (answer.status_code, "at most 20 images" in answer.text) == (400, True)


# --- Sessions and models ---


async def test_one_model_is_shown_by_any_spelling_of_its_name(door: Door) -> None:
    for name in ("main", "backchannel/main", "backchannel"):
        assert (await door.client.models.retrieve(name)).id == "main"


async def test_a_session_that_was_made_for_a_request_is_archived_after_its_time(tmp_path: Path) -> None:
    clock = StageClock()
    async with open_door(tmp_path, clock=clock, sessionTtl="2h") as door:
        for user in ({}, {"user": "ada"}):
            await door.post("chat/completions", {"model": "main", "messages": SAID, **user})
        fresh, named = [run.session_key for run in await door.runs()]
        clock.move_on(3 * 3600)
        for timer in (await door.gateway.store.due(10)).timers:
            await door.gateway.store.carry_out_timer(timer)
        archived = [await door.gateway.store.session(key) for key in (fresh, named)]
        assert [session is not None and session.archived_at is not None for session in archived] == [True, False]
