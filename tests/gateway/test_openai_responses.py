"""The Responses API, tried with the `openai` client: `create`, `stream`, `retrieve`, and sessions that go on."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from backchannel.core.contracts import ModelFailed
from backchannel.core.messages import ImageBlock
from tests.support.clocks import StageClock

from .openai_door import Door, open_door

pytestmark = pytest.mark.anyio

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\npixels").decode()


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with open_door(tmp_path) as door:
        yield door


async def test_a_response_is_the_agents_reply_with_its_usage(door: Door) -> None:
    response = await door.client.responses.create(model="main", input="hello", instructions="be kind")
    assert (response.output_text, response.status, response.model) == ("you said: hello", "completed", "main")
    assert response.instructions == "be kind"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (7, 3, 10)
    assert door.model.requests[-1].system.endswith("be kind")


async def test_the_client_takes_every_field_for_what_it_says(door: Door) -> None:
    strict = door.with_token(door.client.api_key, _strict_response_validation=True)
    response = await strict.responses.create(model="main", input="hello")
    events = [event async for event in await strict.responses.create(model="main", input="hello", stream=True)]
    assert response.output_text == "you said: hello"
    assert events[-1].type == "response.completed"
    await strict.close()


async def test_a_response_is_streamed_as_the_events_that_the_client_knows(door: Door) -> None:
    async with door.client.responses.stream(model="main", input="hello") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert "response.output_text.delta" in kinds
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert (final.output_text, final.status) == ("you said: hello", "completed")
    assert final.usage is not None
    assert final.usage.total_tokens == 10


async def test_the_events_are_numbered_and_their_deltas_make_up_the_text(door: Door) -> None:
    events: list[Any] = [
        event async for event in await door.client.responses.create(model="main", input="use a tool", stream=True)
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    assert text.endswith("you said: seen")


async def test_a_failed_streamed_run_ends_with_the_reason(tmp_path: Path) -> None:
    async with open_door(tmp_path, replies=[ModelFailed("the provider says no", retryable=False)]) as door:
        events: list[Any] = [
            event async for event in await door.client.responses.create(model="main", input="hello", stream=True)
        ]
    assert (events[-1].type, events[-1].response.status) == ("response.failed", "failed")
    assert events[-1].response.error.message == "the provider says no"


async def test_the_previous_response_names_the_session_that_goes_on(door: Door) -> None:
    first = await door.client.responses.create(model="main", input="first", instructions="be kind")
    second = await door.client.responses.create(model="main", input="second", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert [message.text for message in door.model.requests[-1].messages] == ["first", "you said: first", "second"]
    assert "be kind" not in door.model.requests[-1].system
    first_run, second_run = await door.runs()
    assert first_run.session_key == second_run.session_key


async def test_a_user_names_the_session_as_in_a_completion(door: Door) -> None:
    await door.client.responses.create(model="main", input="hello", user="ada")
    assert await door.said_in("agent:main:openai:ada") == ["hello"]


async def test_a_response_that_is_not_there_cannot_be_continued(door: Door) -> None:
    for unknown in ("resp_nothing", "nothing", ""):
        with pytest.raises(openai.NotFoundError) as caught:
            await door.client.responses.create(model="main", input="hello", previous_response_id=unknown)
        assert caught.value.param == "previous_response_id"
    first = await door.client.responses.create(model="main", input="hello")
    with pytest.raises(openai.BadRequestError, match="a response of 'main'"):
        await door.client.responses.create(model="research-bot", input="hello", previous_response_id=first.id)


async def test_one_whose_session_was_reset_cannot_be_continued(door: Door) -> None:
    first = await door.client.responses.create(model="main", input="hello", user="agent:main:main")
    await door.gateway.store.reset_session(door.gateway.scheme.main("main"))
    with pytest.raises(openai.NotFoundError, match="send the whole conversation"):
        await door.client.responses.create(model="main", input="hello", previous_response_id=first.id)


async def test_a_response_that_is_not_to_be_stored_is_soon_archived(tmp_path: Path) -> None:
    clock = StageClock()
    async with open_door(tmp_path, clock=clock) as door:
        first = await door.client.responses.create(model="main", input="hello", store=False)
        clock.move_on(120)
        for timer in (await door.gateway.store.due(10)).timers:
            await door.gateway.store.carry_out_timer(timer)
        with pytest.raises(openai.NotFoundError, match="is gone"):
            await door.client.responses.create(model="main", input="hello", previous_response_id=first.id)


async def test_a_response_is_found_again_by_its_id(door: Door) -> None:
    first = await door.client.responses.create(model="main", input="hello")
    again = await door.client.responses.retrieve(first.id)
    assert (again.output_text, again.usage, again.created_at) == (first.output_text, first.usage, first.created_at)
    with pytest.raises(openai.NotFoundError):
        await door.client.responses.retrieve("resp_nothing")


async def test_the_input_of_a_response_is_listed_page_by_page(door: Door) -> None:
    image = f"data:image/png;base64,{PNG}"
    parts: Any = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": image, "detail": "auto"}]
    response = await door.client.responses.create(
        model="main", input=[{"role": "user", "content": parts}], instructions="be kind"
    )
    strict = door.with_token(door.client.api_key, _strict_response_validation=True)
    page = await strict.responses.input_items.list(response.id, order="asc", limit=1)
    (item,) = [item async for item in page]
    assert item.type == "message" and item.role == "user"
    assert [part.to_dict() for part in item.content] == parts
    assert not page.has_more
    assert [each async for each in strict.responses.input_items.list(response.id, after=item.id or "")] == []
    await strict.close()


@pytest.mark.parametrize("wrong", [{"after": "msg_no"}, {"limit": 0}, {"limit": 101}, {"order": "up"}])
async def test_a_page_of_input_that_is_not_there_is_refused(door: Door, wrong: dict[str, Any]) -> None:
    response = await door.client.responses.create(model="main", input="hello")
    with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
        await door.client.responses.input_items.list(response.id, **wrong)
    with pytest.raises(openai.NotFoundError) as caught:
        await door.client.responses.input_items.list("resp_no")
    assert (caught.value.code, caught.value.param) == ("run_not_found", None)


async def test_a_response_is_not_deleted_and_the_client_is_told_why(door: Door) -> None:
    response = await door.client.responses.create(model="main", input="hello")
    with pytest.raises(openai.APIStatusError, match="whose transcript is kept") as caught:
        await door.client.responses.delete(response.id)
    assert caught.value.status_code == 405
    assert (await door.client.responses.retrieve(response.id)).output_text == "you said: hello"
    with pytest.raises(openai.NotFoundError):
        await door.client.responses.delete("resp_no")


async def test_items_of_every_kind_are_told_to_a_fresh_session(door: Door) -> None:
    await door.client.responses.create(
        model="main",
        input=[
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": "weather?"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"in": "Rome"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        ],
    )
    (message,) = door.model.requests[-1].messages
    assert message.text == (
        'Earlier in this conversation:\n\nuser: weather?\n\nassistant: [called weather({"in": "Rome"})]\n\nNow:\n\n'
        '[result of [called weather({"in": "Rome"})]]\nsunny'
    )
    assert door.model.requests[-1].system.endswith("be kind")


async def test_an_image_reaches_the_model(door: Door) -> None:
    content: Any = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
    ]
    await door.client.responses.create(model="main", input=[{"role": "user", "content": content}])
    assert door.model.requests[-1].messages[-1].content[-1] == ImageBlock(mime_type="image/png", data=PNG)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "web_search"}]),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {}}}),
        ("background", True),
        ("conversation", "conv_1"),
        ("prompt", {"id": "p"}),
        ("top_logprobs", 2),
    ],
)
async def test_what_cannot_be_given_is_refused_by_name(door: Door, name: str, value: object) -> None:
    answer = await door.post("responses", {"model": "main", "input": "hello", name: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert await door.runs() == []


async def test_what_has_no_effect_is_named_in_the_answer(door: Door) -> None:
    body = {"model": "main", "input": "hello", "temperature": 1, "metadata": {"a": "b"}, "truncation": "auto"}
    answer = await door.post("responses", body)
    assert answer.headers["x-backchannel-ignored"] == "metadata, temperature, truncation"
