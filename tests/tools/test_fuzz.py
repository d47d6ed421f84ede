"""Arguments that nobody meant: no tool, method or door fails in a way that it did not foresee, or stops answering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from backchannel.core.messages import Role, ToolCallBlock
from backchannel.errors import GatewayError
from backchannel.gateway.auth import InvokeParams
from backchannel.gateway.calls import Method
from backchannel.gateway.table import METHODS
from backchannel.tools.base import SessionTool
from backchannel.tools.registry import SESSION_TOOLS, invoke
from backchannel.wire.shapes import Params
from tests.tools.door import Doors, doors
from tests.tools.shelf import Shelf, agents, message, result

pytestmark = pytest.mark.anyio

T = TypeVar("T")

PATIENCE_S = 10
MESSAGE_ID = "0123456789abcdef0123456789abcdef"
fuzzing = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

WORDS = [
    *("main", "current", "global", "unknown", "agent:main:main", "agent:ops:main", "agent:main:cron:x", "cron:x"),
    *("agent:nobody:x", "agent::", ":::", "node:phone", "node-", "%", "%00", "%ff", "%ed%a0%80", "\0", "\u2028", " "),
    *("x" * 600, "é" * 300, "🦊" * 200, "'; DROP TABLE sessions; --", "{}", "[]", "null", "-1", "1e999", "NaN"),
    *("00000000-0000-4000-8000-000000000000", MESSAGE_ID, "allow", "deny", "direct", "read", "operator.admin"),
    *("builtin/demo", "sessions_list", "sessions_history", "off", "high", "W10", "bnVsbA", "group", "discord"),
    "%" * 60_000,
]
NUMBERS = [0, 1, -1, 200, 1000, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 0.5, 1.0, -0.0, 1e300]

words = st.sampled_from(WORDS) | st.text(max_size=40)
numbers = st.sampled_from(NUMBERS) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | words
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=8
)


def fitting(kind: inspect.Type, name: str = "") -> st.SearchStrategy[Any]:
    """Make what a parameter of this type takes, more or less: a text may still name nothing that exists."""
    match kind:
        case inspect.Metadata():
            return fitting(kind.type, name)
        case inspect.UnionType():
            return st.one_of(*(fitting(each, name) for each in kind.types if not isinstance(each, inspect.NoneType)))
        case inspect.LiteralType():
            return st.sampled_from(sorted(kind.values, key=str))
        case inspect.EnumType():
            return st.sampled_from([member.value for member in kind.cls])
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType() | inspect.FloatType():
            return st.sampled_from([1, 2, 20, 50, 1000]) | st.sampled_from([10**9, 2**62, 10**18])
        case inspect.ListType() | inspect.VarTupleType():
            return st.lists(fitting(kind.item_type, name), max_size=3)
        case inspect.DictType():
            return st.fixed_dictionaries({}, optional={"sessionKey": words, "limit": numbers, "cursor": words})
        case inspect.StrType():
            return LIKELY.get(name, words)
    return values


LIKELY = {
    **dict.fromkeys(
        ("key", "keys", "sessionKey", "target", "caller", "spawnedBy"), st.sampled_from(WORDS[:10]) | words
    ),
    "agentId": st.sampled_from(["main", "ops", "quiet"]),
    "tool": st.sampled_from([tool.name for tool in SESSION_TOOLS]),
    "scopes": st.sampled_from(["read", "write", "admin"]),
    "model": st.just("builtin/demo"),
    "thinking": st.sampled_from(["off", "low", "high"]),
    "channel": st.sampled_from(["webchat", "discord"]),
}
NEVER_LONG = {"timeoutMs": 10, "timeout": 1, "timeoutSeconds": 0}
"""A wait that is waited for to its end would be a long test."""


def arguments(params: type[Params]) -> st.SearchStrategy[Any]:
    """Make arguments that fit, some that do not quite, and a few that are no arguments at all."""
    described = inspect.type_info(params)
    assert isinstance(described, inspect.StructType)
    needed = {field.encode_name: fitting(field.type, field.encode_name) for field in described.fields if field.required}
    others = {field.encode_name: fitting(field.type, field.encode_name) for field in described.fields}
    others |= {name: st.just(short) for name, short in NEVER_LONG.items() if name in others}
    chosen = st.lists(st.sampled_from(sorted(others)), max_size=3) if others else st.just([])
    good = chosen.flatmap(lambda names: st.fixed_dictionaries(needed | {name: others[name] for name in names}))
    spoilt = st.dictionaries(st.sampled_from([*others, "", "odd"]), values, min_size=1, max_size=2)
    return good | good | st.tuples(good, spoilt).map(lambda pair: {**pair[0], **pair[1]}) | values


def calls(named: Iterable[T]) -> st.SearchStrategy[tuple[T, Any]]:
    """Choose one of several things that have parameters, and arguments for it."""
    chosen: st.SearchStrategy[Any] = st.sampled_from(list(named))
    return chosen.flatmap(lambda one: st.tuples(st.just(one), arguments(one.params)))


CONFIG = agents("main", "ops", "quiet", tools={"sessions": {"visibility": "agent"}}) | {
    "session": {"sendPolicy": {"rules": [{"match": {"channel": "slack"}, "action": "deny"}]}}
}
CONFIG["agents"]["list"][2]["sandbox"] = {"mode": "all"}


@pytest.fixture
async def open_doors(shelf: Shelf, anyio_backend: str) -> AsyncIterator[Doors]:
    call = ToolCallBlock(id="r/0/0", name="look", arguments={"deep": [[{"a": None}]], "n": 1.5})
    said = msgspec.structs.replace(message("x" * 9000, Role.ASSISTANT, call), id=MESSAGE_ID)
    shelf.session("agent:main:main", "hello", said, result("password=hunter2"), label="allow")
    shelf.session("agent:main:cron:x", "hello", spawned_by="agent:main:main")
    async with doors(shelf, CONFIG, echoing=("main", "ops", "quiet")) as opened:
        yield opened


def check_frame(frame: dict[str, Any], asked: object) -> None:
    if not frame["ok"]:
        assert frame["error"]["details"]["code"] != "internal", (asked, frame["error"])
        assert frame["error"]["message"]


@settings(fuzzing, max_examples=300)
@given(asked=calls(SESSION_TOOLS), caller=st.sampled_from([None, "agent:main:main", "agent:quiet:main"]))
async def test_no_arguments_make_a_tool_fail_unexpectedly(
    open_doors: Doors, asked: tuple[type[SessionTool], Any], caller: str | None
) -> None:
    tool, given_arguments = asked
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await invoke(open_doors.gateway.parts, open_doors.caller(caller), tool.name, given_arguments)
            assert isinstance(msgspec.json.decode(msgspec.json.encode(answer)), dict)
    except GatewayError as error:
        assert error.http_status < 500, (asked, error)


@settings(fuzzing, max_examples=700)
@given(asked=calls(METHODS.values()))
async def test_no_parameters_make_a_method_fail_unexpectedly(
    open_doors: Doors, asked: tuple[Method[Any, Any], Any]
) -> None:
    method, params = asked
    answers = await open_doors.client.begin(method.name, params)
    async with asyncio.timeout(PATIENCE_S):
        frame = await answers.get()
        check_frame(frame, asked)
        if method.name == "agent" and frame["ok"]:
            check_frame(await answers.get(), asked)


@settings(fuzzing, max_examples=150)
@given(body=arguments(InvokeParams))
async def test_no_body_makes_the_tools_door_fail_unexpectedly(open_doors: Doors, body: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        answer = await open_doors.http.post("/tools/invoke", json=body)
    assert answer.status_code in (200, 400, 403, 404), (body, answer.text)
    assert answer.json()["ok"] is (answer.status_code == 200)


BYTES = [b"\xff", b"\x00", b"{", b"}", b"[", b'"', b",", b":", b"\\u", b"\\ud800", b"1e999", b"-", b"tool", b"args"]


@pytest.mark.parametrize("path", ["/tools/invoke", "/v1/chat/completions"])
@settings(fuzzing, max_examples=100)
@given(body=st.binary(max_size=60) | st.lists(st.sampled_from(BYTES), max_size=12).map(b"".join))
async def test_no_bytes_make_a_door_fail_unexpectedly(open_doors: Doors, path: str, body: bytes) -> None:
    async with asyncio.timeout(PATIENCE_S):
        answer = await open_doors.http.post(path, content=body)
    assert answer.status_code == 400, answer.text


messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]) | words},
        optional={
            "content": words | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": words})) | values
        },
    ),
    max_size=3,
)


@settings(fuzzing, max_examples=150)
@given(
    body=st.fixed_dictionaries(
        {"model": st.sampled_from(["main", "ops", "quiet", "backchannel", "agent:main"]) | words},
        optional={"messages": messages | values, "user": words, "stream": st.booleans() | values, "other": values},
    ),
    headers=st.fixed_dictionaries(
        {},
        optional={
            "idempotency-key": st.text("abc\xe9 \t", max_size=300),
            "x-backchannel-session": st.text("a:b%\xe9", max_size=20),
        },
    ),
)
async def test_no_completion_makes_the_door_fail_unexpectedly(
    open_doors: Doors, body: dict[str, Any], headers: dict[str, str]
) -> None:
    raw = [(name.encode(), value.strip().encode("latin-1")) for name, value in headers.items()]
    async with asyncio.timeout(PATIENCE_S):
        answer = await open_doors.http.post("/v1/chat/completions", json=body, headers=raw)
    assert answer.status_code in (200, 400, 403, 404, 409), (body, headers, answer.text)


async def test_all_of_it_leaves_a_gateway_that_serves(open_doors: Doors) -> None:
    for word in WORDS:
        for tool in SESSION_TOOLS:
            await open_doors.invoke(tool=tool.name, args={"sessionKey": word, "search": word})
        await open_doors.http.post("/tools/invoke", content=word.encode())
    async with asyncio.timeout(PATIENCE_S):
        assert (await open_doors.client.ask("health"))["ok"] is True
        assert await open_doors.gateway.ask("main", "still there?") == "echo still there?"
