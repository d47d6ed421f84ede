"""The stand-in refuses what real providers refuse; otherwise `stub.refused == []` would prove nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stub_anthropic import Messages, sign
from tests.support.stub_openai import ChatCompletions, Responses

USER = {"role": "user", "content": "go"}


def chat_call(*ids: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function} for call_id in ids],
    }


def chat_result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "seen"}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "empty array"),
        ([USER, chat_call("a")], "must be followed by tool messages"),
        ([USER, chat_call("a", "b"), chat_result("a")], "did not have response messages: b"),
        ([USER, chat_call("a"), USER, chat_result("a")], "must be followed by tool messages"),
        ([USER, chat_result("a")], "must be a response to a preceeding message"),
        ([USER, chat_call("a"), chat_result("a"), chat_result("a")], "must be a response to"),
        ([USER, chat_call("a" * 41), chat_result("a" * 41)], "string too long"),
        ([USER, {"role": "assistant", "content": None}, USER], "got null"),
        ([{"role": "user", "content": []}], "empty"),
    ],
)
def test_chat_completions_refuse_bad_sequences(messages: list[Any], problem: str) -> None:
    assert problem in str(ChatCompletions().check({"model": "m", "messages": messages}))


def test_chat_completions_take_good_sequences() -> None:
    good = [USER, chat_call("a", "b"), chat_result("b"), chat_result("a"), USER]
    assert ChatCompletions().check({"model": "m", "messages": good}) is None


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([], "empty array"),
        ([USER, {"type": "function_call", "call_id": "a"}], "No tool output found"),
        ([USER, {"type": "function_call_output", "call_id": "a"}], "No tool call found"),
        ([USER, {"type": "reasoning", "id": "rs_1", "summary": []}], "was not found"),
    ],
)
def test_responses_refuse_bad_sequences(items: list[Any], problem: str) -> None:
    assert problem in str(Responses().check({"model": "m", "stream": True, "input": items}))


def use(*ids: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": call_id, "name": "look", "input": {}} for call_id in ids],
    }


def used(*ids: str, first: tuple[Any, ...] = ()) -> dict[str, Any]:
    results = [{"type": "tool_result", "tool_use_id": call_id, "content": "seen"} for call_id in ids]
    return {"role": "user", "content": [*first, *results]}


TEXT = {"type": "text", "text": "and"}


def thought(signature: str) -> dict[str, Any]:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": signature}
    return {"role": "assistant", "content": [thinking, TEXT]}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "at least one message"),
        ([use("a"), used("a")], "first message must use"),
        ([USER, {"role": "assistant", "content": "done"}], "must end with a user message"),
        ([USER, use("a"), USER], "without `tool_result` blocks immediately after"),
        ([USER, use("a", "b"), used("a")], "without `tool_result` blocks immediately after: b"),
        ([USER, used("a")], "unexpected `tool_use_id`"),
        ([USER, use("a"), used("a", "a")], "single result"),
        ([USER, use("a"), used("a", first=(TEXT,))], "must come first"),
        ([USER, use("a/b"), used("a/b")], "should match"),
        ([USER, use("a", "a"), used("a")], "must be unique"),
        ([{"role": "user", "content": ""}], "must be non-empty"),
        ([{"role": "user", "content": []}], "non-empty content"),
        ([USER, thought("forged"), USER], "Invalid `signature`"),
    ],
)
def test_messages_refuse_bad_sequences(messages: list[Any], problem: str) -> None:
    assert problem in str(Messages().check({"max_tokens": 1, "stream": True, "messages": messages}))


def test_messages_take_good_sequences() -> None:
    good = [USER, USER, use("a", "b"), used("b", "a"), USER, thought(sign("Hm.")), USER]
    assert Messages().check({"max_tokens": 1, "stream": True, "messages": good}) is None
