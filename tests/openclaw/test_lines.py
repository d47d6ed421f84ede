"""Lines of transcripts, of every generation, become messages."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backchannel.core.messages import (
    FlowStep,
    ImageBlock,
    Message,
    Provenance,
    ProvenanceKind,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
    encode_message,
    text_content,
)
from backchannel.openclaw.lines import OtherLine, ReadMessage, UnreadableLine, read_line
from backchannel.openclaw.writing import line_of
from tests.openclaw.values import json_values, messages

BEFORE = 1_700_000_000_000
AT = 1_759_312_801_123


def read(line: Any) -> ReadMessage | OtherLine | UnreadableLine:
    return read_line(json.dumps(line).encode(), before=BEFORE)


def heard(line: Any) -> Message:
    found = read(line)
    assert isinstance(found, ReadMessage), found
    return found.message


def wrapped(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "message", "id": "0a1b2c3d", "parentId": None, "timestamp": "2025-10-01T10:00:00.000Z", **more} | {
        "message": message
    }


# Messages


def test_a_reply_of_today_is_a_message_with_all_it_had() -> None:
    found = read(
        wrapped(
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"},
                    {"type": "text", "text": "on it", "textSignature": "t"},
                    {"type": "toolCall", "id": "call_1", "name": "bash", "arguments": {"command": "ls"}},
                ],
                "api": "anthropic-messages",
                "provider": "openrouter",
                "model": "anthropic/claude",
                "usage": {
                    "input": 3,
                    "output": 4,
                    "cacheRead": 5,
                    "cacheWrite": 6,
                    "totalTokens": 18,
                    "cost": {"input": 0.1, "output": 0.2, "total": 0.3},
                },
                "stopReason": "toolUse",
                "timestamp": AT,
            }
        )
    )

    assert isinstance(found, ReadMessage)
    assert found.id == "0a1b2c3d"
    assert found.left_out == 0
    assert found.message == Message(
        id="",
        role=Role.ASSISTANT,
        content=(
            ThinkingBlock(thinking="hm", signature="sig"),
            TextBlock(text="on it"),
            ToolCallBlock(id="call_1", name="bash", arguments={"command": "ls"}),
        ),
        timestamp=AT,
        model="openrouter/anthropic/claude",
        usage=Usage(input=3, output=4, cache_read=5, cache_write=6, cost=0.3),
        stop_reason="toolUse",
    )


def test_the_result_of_a_tool_keeps_what_it_answers() -> None:
    found = heard(
        wrapped(
            {
                "role": "toolResult",
                "toolCallId": "call_1",
                "toolName": "bash",
                "content": [
                    {"type": "text", "text": "a b"},
                    {"type": "image", "data": "AA==", "mimeType": "image/png"},
                ],
                "details": {"exit": 0},
                "isError": False,
                "timestamp": AT,
            }
        )
    )

    assert (found.role, found.tool_call_id, found.tool_name) == (Role.TOOL_RESULT, "call_1", "bash")
    assert found.is_error is False
    assert found.content[1] == ImageBlock(mime_type="image/png", data="AA==")


def test_a_message_of_another_session_keeps_where_it_came_from() -> None:
    provenance = {"kind": "inter_session", "sourceSessionKey": "agent:main:main", "sourceTool": "sessions_send"}
    found = heard(wrapped({"role": "user", "content": "hi", "provenance": provenance}))

    assert found.provenance == Provenance(
        kind=ProvenanceKind.INTER_SESSION, source_session_key="agent:main:main", source_tool="sessions_send"
    )
    assert heard(wrapped({"role": "user", "content": "hi", "provenance": {"kind": "gods"}})).provenance is None


def test_a_message_of_a_flow_keeps_its_step() -> None:
    provenance = {"kind": "inter_session", "exchangeId": "x1", "step": "turn", "turn": 1, "maxTurns": 5}
    found = heard(wrapped({"role": "user", "content": "hi", "provenance": provenance})).provenance
    assert found is not None and (found.step, found.turn, found.max_turns) == (FlowStep.TURN, 1, 5)
    unknown = heard(wrapped({"role": "user", "content": "hi", "provenance": provenance | {"step": "dance"}})).provenance
    assert unknown is not None and unknown.step is None


@pytest.mark.parametrize(
    "line",
    [
        {"type": "message", "timestamp": "2025-10-01T10:00:01.123Z", "message": {"role": "user", "content": "hi"}},
        {"type": "message", "message": {"role": "user", "content": "hi", "timestamp": AT}},
        {"message": {"role": "user", "content": [{"type": "text", "text": "hi"}], "timestamp": AT}},
        {"role": "user", "content": "hi", "timestamp": AT},
        {"role": "user", "content": ["hi"], "timestamp": "2025-10-01T12:00:01.123+02:00"},
    ],
)
def test_lines_of_older_generations_say_the_same(line: Any) -> None:
    found = read(line)

    assert isinstance(found, ReadMessage)
    assert found.id is None
    assert found.message == Message(id="", role=Role.USER, content=text_content("hi"), timestamp=AT)


def test_a_message_without_a_time_was_said_after_the_one_before() -> None:
    assert heard({"role": "user", "content": "hi"}).timestamp == BEFORE
    odd_times: list[object] = ["yesterday", "2025-13-01T00:00:00Z", -5, 1e300, True, [], "1969-01-01T00:00:00Z"]
    for odd in odd_times:
        assert heard({"role": "user", "content": "hi", "timestamp": odd}).timestamp == BEFORE


@pytest.mark.parametrize(
    ("block", "known"),
    [
        (
            {"type": "toolUse", "id": "1", "name": "n", "input": {"a": 1}},
            ToolCallBlock(id="1", name="n", arguments={"a": 1}),
        ),
        ({"type": "functionCall", "id": "1", "name": "n"}, ToolCallBlock(id="1", name="n", arguments={})),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            ImageBlock(mime_type="image/png", data="AA=="),
        ),
        ({"type": "image", "mimeType": "image/png", "omitted": True, "bytes": 5}, ImageBlock(mime_type="image/png")),
        (
            {"type": "image", "mimeType": "image/png", "file": f"{'0' * 64}.png"},
            ImageBlock(mime_type="image/png", file=f"{'0' * 64}.png"),
        ),
        (
            {"type": "image", "mimeType": "image/png", "file": "../../etc/passwd"},
            ImageBlock(mime_type="image/png"),
        ),
        ({"type": "thinking", "thinkingSignature": "x"}, ThinkingBlock(thinking="", signature="x")),
        ({"type": "thinking", "redacted": True, "thinkingSignature": "x"}, ThinkingBlock(thinking="")),
        ({"type": "thinking", "thinking": "h", "thinkingSignature": '{"id":"rs_1"}'}, ThinkingBlock(thinking="h")),
    ],
)
def test_blocks_of_other_spellings_are_known(block: Any, known: Any) -> None:
    assert heard({"role": "assistant", "content": [block]}).content == (known,)


def test_a_block_of_an_unknown_sort_is_left_out_and_counted() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    blocks = [
        {"type": "hologram"},
        5,
        {"type": "text", "text": 5},
        {"type": "image"},
        {"type": "toolCall", "id": 1},
        {"type": "toolCall", "id": "1", "name": "n", "arguments": deep},
        {"type": "text", "text": "kept"},
    ]
    found = read({"role": "assistant", "content": blocks})

    assert isinstance(found, ReadMessage)
    assert found.message.text == "kept"
    assert found.left_out == 6


def test_half_a_character_does_not_lose_a_message() -> None:
    found = read_line(b'{"role":"user","content":"cut \\ud83d","id":"a"}', before=0)
    assert isinstance(found, ReadMessage)
    assert found.message.text == "cut \ufffd"

    broken = read_line(b'{"role":"user","content":"bytes \xff\xfe"}', before=0)
    assert isinstance(broken, ReadMessage)
    assert broken.message.text == "bytes \ufffd\ufffd"


@pytest.mark.parametrize("id", [5, "", None, "a\nb", "x" * 300, ["a"]])
def test_an_id_that_cannot_be_one_is_none(id: object) -> None:
    found = read({"id": id, "role": "user", "content": "hi"})
    assert isinstance(found, ReadMessage)
    assert found.id is None


# Notes


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ({"type": "compaction", "summary": "long ago", "firstKeptEntryId": "x"}, "compaction summary"),
        ({"type": "branch_summary", "summary": "long ago"}, "branch summary"),
        ({"type": "custom_message", "customType": "weather", "content": "long ago", "display": True}, "weather"),
        (wrapped({"role": "custom", "customType": "weather", "content": "long ago"}), "weather"),
        (wrapped({"role": "hookMessage", "content": [{"type": "text", "text": "long ago"}]}), "hook message"),
        (wrapped({"role": "compactionSummary", "summary": "long ago"}), "compaction summary"),
    ],
)
def test_what_a_program_put_before_the_model_is_a_note_without_the_gateways_voice(line: Any, label: str) -> None:
    found = heard(line)

    assert found.role is Role.SYSTEM
    assert found.text == "long ago"
    assert found.label == label
    assert found.provenance == Provenance(kind=ProvenanceKind.EXTERNAL_USER)


def test_a_system_message_of_another_program_does_not_get_the_gateways_voice_either() -> None:
    assert heard(wrapped({"role": "system", "content": "obey"})).provenance == Provenance(
        kind=ProvenanceKind.EXTERNAL_USER
    )
    assert heard({"role": "system", "content": "a note of ours", "id": "1"}).provenance is None


def test_a_command_that_a_person_ran_is_what_the_person_said() -> None:
    found = heard(wrapped({"role": "bashExecution", "command": "ls", "output": "a\nb", "exitCode": 0}))
    assert (found.role, found.text) == (Role.USER, "$ ls\na\nb")


# No messages


@pytest.mark.parametrize(
    ("line", "type", "is_known"),
    [
        ({"type": "session", "version": 3, "id": "x"}, "session", True),
        ({"type": "model_change", "provider": "a", "modelId": "b"}, "model_change", True),
        ({"type": "thinking_level_change", "thinkingLevel": "low"}, "thinking_level_change", True),
        ({"type": "custom", "customType": "state", "data": {}}, "custom", True),
        ({"type": "compaction"}, "compaction", True),
        ({"type": "x" * 100}, "x" * 40, False),
        ({"type": ["list"]}, "without a type", False),
        ({"hello": "world"}, "without a type", False),
        ({}, "without a type", False),
    ],
)
def test_a_line_that_is_no_message_tells_its_type(line: Any, type: str, is_known: bool) -> None:
    assert read(line) == OtherLine(type, is_known)


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"\x00\xff\xfe",
        b'{"type":"message","message":{"role":"us',
        b"5",
        b"[]",
        b'{"type":"message"}',
        b'{"type":"message","message":[]}',
        b'{"role":"emperor","content":"hi"}',
        b'{"role":["user"],"content":"hi"}',
        b'{"role":"user","content":5}',
        b'{"role":"user","content":NaN}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_a_line_that_cannot_be_read_says_why(data: bytes) -> None:
    found = read_line(data, before=0)
    assert isinstance(found, UnreadableLine)
    assert 0 < len(found.reason) < 200


# Round trips


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" + "0" * 400, "-1" + "0" * 400, "NaN", '"1"', "true"])
def test_a_cost_that_is_no_number_is_not_known(number: str) -> None:
    for usage in (f'{{"cost":{number}}}', f'{{"cost":{{"total":{number}}}}}'):
        found = read_line(f'{{"role":"assistant","content":"x","usage":{usage}}}'.encode(), before=BEFORE)
        assert isinstance(found, UnreadableLine) or (isinstance(found, ReadMessage) and found.message.usage == Usage())


def test_however_deep_a_line_is_nested_it_is_read_to_an_end() -> None:
    for depth in range(sys.getrecursionlimit() - 100, sys.getrecursionlimit() + 10):
        for field in ("role", "content", "type", "provenance"):
            read_line(f'{{"role":"user","{field}":{"[" * depth}{"]" * depth}}}'.encode(), before=BEFORE)


@settings(deadline=None)
@given(messages)
def test_a_message_that_was_exported_is_read_again_as_it_was(message: Message) -> None:
    line = line_of(message, "the one before", "2025-10-01T10:00:00.000Z")
    found = read_line(msgspec.json.encode(line), before=0)

    assert isinstance(found, ReadMessage)
    assert (found.id, found.left_out) == (message.id, 0)
    assert msgspec.structs.replace(found.message, id=message.id) == message


@settings(deadline=None)
@given(messages)
def test_a_line_of_our_own_transcripts_is_read_as_it_is(message: Message) -> None:
    found = read_line(encode_message(message), before=0)

    assert isinstance(found, ReadMessage)
    assert found.id == message.id
    assert found.message.content == message.content
    assert (found.message.role, found.message.timestamp) == (message.role, message.timestamp)
    assert (found.message.provenance, found.message.usage) == (message.provenance, message.usage)


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_are_read_to_an_end(data: bytes) -> None:
    read_line(data, before=0)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["type", "id", "message", "role", "content", "timestamp", "usage", "provenance", "details"]),
        st.sampled_from(["message", "custom_message", "compaction", "user", "assistant"]) | json_values,
    )
)
def test_any_object_is_read_to_an_end(line: dict[str, Any]) -> None:
    read(line)
