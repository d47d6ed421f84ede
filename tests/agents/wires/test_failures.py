"""Failures of providers: both ways tell them the same, and a request that is too long is known as one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest
from pydantic_ai import exceptions as pai

from backchannel.agents.endpoints import Endpoint
from backchannel.agents.providers import build_failure
from backchannel.agents.wires.failures import ProviderError, read_retry_after
from backchannel.core.contracts import ModelFailed, ModelRequest
from backchannel.core.messages import Message, Role, TextBlock

from .reference import KEY, KINDS, Answering, Chunks, pair

pytestmark = pytest.mark.anyio

ASKED = ModelRequest(
    system="", messages=(Message(id="m", role=Role.USER, content=(TextBlock(text="hello"),), timestamp=0),)
)
ENDPOINT = Endpoint("acme", "openai-compatible", api_key=KEY)


def refusing(status: int, body: bytes, headers: dict[str, str] | None = None) -> Answering:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers=headers, stream=Chunks([body]), request=request)

    return answer


def error(message: str, **more: Any) -> bytes:
    return json.dumps({"type": "error", "error": {"message": message, **more}}).encode()


BODIES = {
    "words": error("this model cannot do that"),
    "rate": error("slow down", type="rate_limit_error"),
    "exhausted": error("Your credit balance is too low", type="invalid_request_error"),
    "detail": b'{"detail": "no such model"}',
    "plain": b"Bad gateway",
    "page": b"<html><h1>Bad gateway</h1></html>",
    "empty": b"",
    "null": b"null",
    "key": error(f"you sent {KEY}"),
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 529])
@pytest.mark.parametrize("kind", ["openai-compatible", "openai", "anthropic"])
async def test_both_ways_tell_a_refusal_the_same(kind: str, status: int, body: str) -> None:
    both = pair(kind)
    both.answers(refusing(status, BODIES[body], {"retry-after": "7"}))
    ours, theirs = await both.ask_wire(ASKED), await both.ask_library(ASKED)
    assert isinstance(ours, ModelFailed) and isinstance(theirs, ModelFailed)
    if body == "exhausted" and kind.startswith("openai"):
        assert not ours.retryable  # Anthropic's words for it are known on every wire
    else:
        assert ours.retryable == theirs.retryable
    assert ours.retry_after_s == theirs.retry_after_s == 7
    assert KEY not in ours.message
    if body != "null":
        assert ours.message == theirs.message


@pytest.mark.parametrize("kind", KINDS)
async def test_both_ways_tell_a_broken_connection_the_same(kind: str) -> None:
    both = pair(kind)
    both.by_wire.answer = both.by_library.answer = None
    ours, theirs = await both.ask_wire(ASKED), await both.ask_library(ASKED)
    assert isinstance(ours, ModelFailed) and isinstance(theirs, ModelFailed)
    assert (ours.message, ours.retryable) == (theirs.message, theirs.retryable)


TOO_LONG = {
    "OpenAI": (
        error(
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130001 tokens.",
            code="context_length_exceeded",
        ),
        128_000,
    ),
    "OpenAI's responses": (
        error("Your input exceeds the context window of this model.", code="context_length_exceeded"),
        None,
    ),
    "Anthropic": (error("prompt is too long: 210000 tokens > 200000 maximum", type="invalid_request_error"), 200_000),
    "llama.cpp": (
        error(
            "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
            type="exceed_context_size_error",
        ),
        8_192,
    ),
    "vLLM": (
        error(
            "This model's maximum context length is 32768 tokens. However, you requested 40000 tokens. Please reduce "
            "the length of the messages.",
            type="BadRequestError",
        ),
        32_768,
    ),
    "Gemini": (
        error("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
        1_048_576,
    ),
    "Ollama": (error("input length exceeds the context length"), None),
    "LM Studio": (error("The number of tokens to keep is greater than the context length of 4096"), 4096),
}


@pytest.mark.parametrize("who", TOO_LONG)
async def test_a_request_that_is_too_long_is_known_as_one(who: str) -> None:
    body, limit = TOO_LONG[who]
    both = pair("anthropic" if who == "Anthropic" else "openai-compatible")
    both.answers(refusing(400, body))
    failed = await both.ask_wire(ASKED)
    assert isinstance(failed, ModelFailed)
    assert (failed.is_too_long, failed.limit_tokens, failed.retryable) == (True, limit, False)


@pytest.mark.parametrize("who", ["OpenAI", "Anthropic", "vLLM"])
async def test_the_library_tells_a_request_that_is_too_long_too(who: str) -> None:
    body, limit = TOO_LONG[who]
    both = pair("anthropic" if who == "Anthropic" else "openai-compatible")
    both.answers(refusing(400, body))
    failed = await both.ask_library(ASKED)
    assert isinstance(failed, ModelFailed)
    assert (failed.is_too_long, failed.limit_tokens, failed.retryable) == (True, limit, False)


@pytest.mark.parametrize(
    "words",
    [
        "Too many requests",
        "max_tokens is too large: 200000 > 64000",
        "this model cannot do that",
        "the image is too large",
    ],
)
def test_other_refusals_are_not_taken_for_it(words: str) -> None:
    assert not build_failure(ProviderError({"error": {"message": words}}, 400), ENDPOINT).is_too_long


def test_an_error_without_a_status_is_told_in_the_providers_words() -> None:
    failed = build_failure(
        pai.ModelContextWindowExceededError("m", "prompt is too long: 9 tokens > 800 maximum"), ENDPOINT
    )
    assert (failed.message, failed.limit_tokens) == ("acme failed: prompt is too long: 9 tokens > 800 maximum", 800)


def test_a_pause_may_be_told_in_several_ways() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert read_retry_after({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    assert read_retry_after({"retry-after": "9"}) == 9
    assert 60 < (read_retry_after({"retry-after": later}) or 0) <= 90
    assert read_retry_after({"retry-after": format_datetime(datetime(2020, 1, 1, tzinfo=UTC), usegmt=True)}) == 0
    assert [read_retry_after({"retry-after": odd}) for odd in ("soon", "", "-")] == [None] * 3
    assert read_retry_after({}) is None


def test_an_error_that_is_nested_without_end_is_told_shortly() -> None:
    body: Any = "deep"
    for _ in range(500):
        body = {"error": body}
    assert build_failure(ProviderError(body, 400), ENDPOINT).message
    nested: Any = []
    for _ in range(900):
        nested = [nested]
    assert build_failure(ProviderError({"error": {"message": nested}}, 400), ENDPOINT).message
