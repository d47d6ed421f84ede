"""The OpenAI-style door, tried with the `openai` client, which nobody here wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import openai
import pytest

from backchannel.agents.scripted import Reply, ScriptedModel, call
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.messages import Usage
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import Listening, listening

from .client import OPERATOR

pytestmark = pytest.mark.anyio


class Door:
    """A gateway with the door open, and the client."""

    def __init__(self, gateway: Gateway, at: Listening, model: ScriptedModel) -> None:
        self.gateway = gateway
        self.at = at
        self.model = model
        self.client = self.with_token(OPERATOR)

    def with_token(self, token: str) -> openai.AsyncOpenAI:
        # A client without proxies of the environment: the gateway is on this machine.
        return openai.AsyncOpenAI(base_url=f"{self.at.url}/v1", api_key=token, max_retries=0)


def reply(request: ModelRequest) -> Reply:
    last = request.messages[-1].text
    if last == "use a tool":
        return Reply(text="let me look. ", calls=(call("look"),))
    return Reply(text=("you said: ", last), usage=Usage(input=7, output=3))


@asynccontextmanager
async def open_door(tmp_path: Path, *, is_open: bool = True) -> AsyncIterator[Door]:
    config = {
        "agents": {
            "list": [{"id": "main", "model": "scripted/test"}, {"id": "Research Bot", "model": "scripted/test"}]
        },
        "gateway": {"port": 0, "auth": {"token": OPERATOR}, "http": {"chatCompletions": is_open}},
    }
    gateway = Gateway.open(config, state=tmp_path)
    model = ScriptedModel(replies=reply)
    gateway.add_model(model)

    @gateway.tool(effects="none")
    async def look() -> str:
        return "seen"

    async with gateway, listening(gateway, OPERATOR) as at:
        door = Door(gateway, at, model)
        yield door
        await door.client.close()


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
    assert message.text.endswith("Now:\n\nwho am I?")
    assert all(part in message.text for part in ("system: be kind", "user: my name is Ada", "assistant: hello Ada"))


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
    with pytest.raises(openai.BadRequestError, match=r"research-bot") as caught:
        await door.client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "model_not_found"


async def test_a_wrong_token_is_refused(door: Door) -> None:
    async with door.with_token("wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def test_a_failed_run_is_an_error_with_the_reason(door: Door) -> None:
    door.model.add(ModelFailed("the provider says no", retryable=False))
    with pytest.raises(openai.InternalServerError, match="the provider says no"):
        await door.client.chat.completions.create(model="main", messages=[{"role": "user", "content": "hi"}])


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
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(
            f"{door.at.url}/v1/chat/completions", content=body, headers={"Authorization": f"Bearer {OPERATOR}"}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_the_door_is_closed_unless_it_is_configured(tmp_path: Path) -> None:
    async with open_door(tmp_path, is_open=False) as door:
        with pytest.raises(openai.NotFoundError):
            await door.client.models.list()
