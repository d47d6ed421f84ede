"""Frames of clients that have connected: good ones, bad ones, many at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backchannel.core.runs import scoped_run_id
from backchannel.errors import InvalidRequest
from backchannel.gateway.table import METHODS
from backchannel.gateway.ws.connections import Limits
from backchannel.wire.frames import BadFrame, Cancel, Request, read_frame

from .client import Client
from .conftest import MakeWorld, World

BAD_FRAMES: list[str | bytes] = [
    "",
    "{",
    "null",
    "7",
    '"text"',
    "[]",
    "{}",
    '{"type":"req"}',
    '{"type":"req","id":7,"method":"health"}',
    '{"type":"req","id":"","method":"health"}',
    '{"type":"req","id":null,"method":"health"}',
    '{"type":"event","event":"chat"}',
    '{"type":"req","id":"' + "x" * 300 + '","method":"health"}',
    "[" * 100_000,
    '{"type":"req","id":"deep","method":"health","params":' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"type":"req","id":"half","method":"health","params":{"a":"\\ud800"}}',
    b"\x00\x01\x02",
    b'{"type":"req","id":"b","method":"health"}',
]


@pytest.mark.anyio
@pytest.mark.parametrize("frame", BAD_FRAMES, ids=lambda frame: repr(frame[:40]))
async def test_a_malformed_frame_is_answered_and_the_connection_goes_on(client: Client, frame: str | bytes) -> None:
    await client.socket.send(frame)
    assert (await client.ask("health"))["ok"] is True
    answer = client.unasked.get_nowait()
    assert answer["ok"] is False
    assert answer["error"]["code"] == "INVALID_REQUEST"
    assert answer["error"]["details"]["code"] == "bad_params"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "frame",
    [
        {"type": "req", "id": "known"},
        {"type": "req", "id": "known", "method": 7},
        {"type": "req", "id": "known", "method": "health", "extra": 1},
        {"id": "known", "method": "health"},
        {"type": "ask", "id": "known", "method": "health"},
    ],
)
async def test_a_bad_frame_is_answered_under_its_id_when_that_can_be_told(client: Client, frame: Any) -> None:
    await client.socket.send(json.dumps(frame))
    async with asyncio.timeout(20):
        answer = await client.unasked.get()
    assert answer["id"] == "known"
    assert answer["ok"] is False


@pytest.mark.anyio
async def test_a_cancel_frame_of_newer_clients_is_taken_in_silence(client: Client) -> None:
    await client.socket.send(json.dumps({"type": "cancel", "id": "r1"}))
    assert (await client.ask("health"))["ok"] is True
    assert client.unasked.empty()


@pytest.mark.anyio
async def test_an_unknown_method_names_the_nearest(client: Client) -> None:
    error = await client.refused("sesions.list")
    assert error["code"] == "INVALID_REQUEST"
    assert error["details"]["code"] == "unknown_method"
    assert "sessions.list" in error["message"]


@pytest.mark.anyio
async def test_an_unknown_parameter_names_itself_and_the_nearest(client: Client) -> None:
    error = await client.refused("chat.search", {"sessionkey": "main", "query": "hi"})
    assert error["details"] == {"code": "bad_params", "param": "sessionkey"}
    assert "sessionKey" in error["message"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "params", "param"),
    [
        ("chat.send", {"sessionKey": "main"}, "message"),
        ("chat.send", {"sessionKey": 5, "message": "hi"}, "sessionKey"),
        ("chat.send", {"sessionKey": "main", "message": "hi", "timeoutMs": 1.5}, "timeoutMs"),
        ("chat.send", {"sessionKey": "main", "message": "hi", "timeoutMs": 0}, "timeoutMs"),
        ("chat.send", {"sessionKey": "main", "message": "hi", "idempotencyKey": ""}, "idempotencyKey"),
        ("chat.send", {"sessionKey": "main", "message": "hi", "idempotencyKey": "a\nb"}, "idempotencyKey"),
        ("chat.send", {"sessionKey": "main", "message": " "}, "message"),
        ("chat.send", {"sessionKey": "main", "message": "hi", "attachments": [{"data": "x"}]}, "attachments"),
        ("chat.history", {"sessionKey": "main", "limit": 0}, "limit"),
        ("chat.history", {"sessionKey": "main", "limit": 10**30}, "limit"),
        ("chat.history", {"sessionKey": "main", "before": "a", "after": "b"}, "before"),
        ("agent.wait", {"runId": "x", "timeoutMs": -1}, "timeoutMs"),
        ("agent", {"message": "hi", "deliver": "yes"}, "deliver"),
        ("agent", {"message": "hi", "thinking": "hard"}, "thinking"),
        ("sessions.list", {"kinds": ["main", "people"]}, "kinds"),
        ("sessions.list", {"limit": -5}, "limit"),
        ("sessions.list", {"cursor": "?"}, "cursor"),
        ("sessions.patch", {"key": "main", "sendPolicy": "maybe"}, "sendPolicy"),
        ("sessions.patch", {"key": "main", "label": "x" * 65}, "label"),
        ("sessions.preview", {"keys": []}, "keys"),
        ("runs.list", {"states": ["done"]}, "states"),
    ],
)
async def test_a_bad_parameter_is_named(client: Client, method: str, params: Any, param: str) -> None:
    error = await client.refused(method, params)
    assert error["details"]["code"] == "bad_params"
    assert param in error["message"]
    assert error["details"]["param"].startswith(param)


@pytest.mark.anyio
@pytest.mark.parametrize("params", [[], "text", 7, True])
async def test_parameters_that_are_no_object_are_refused(client: Client, params: Any) -> None:
    error = await client.refused("sessions.list", params)
    assert error["details"]["code"] == "bad_params"


@pytest.mark.anyio
async def test_parameters_may_be_left_out_or_null(client: Client) -> None:
    assert (await client.take(await client.begin("sessions.list", None)))["count"] == 0


@pytest.mark.anyio
async def test_an_oversized_frame_is_closed_with_1009(make_world: MakeWorld) -> None:
    config = {"gateway": {"limits": {"frameBytes": 10_000}}}
    async with make_world(config) as world, world.client() as client:
        await client.socket.send("x" * 10_001)
        assert await client.closed() == 1009


@pytest.mark.anyio
async def test_a_waiting_request_holds_up_no_other(client: Client, world: World) -> None:
    run = await client.ask("chat.send", sessionKey="agent:held:main", message="hi")
    waiting = await client.begin("agent.wait", {"runId": run["runId"]})
    assert (await client.ask("health"))["ok"] is True
    assert waiting.empty()
    world.release.set()
    assert (await client.take(waiting))["reply"] == "released hi"


@pytest.mark.anyio
async def test_requests_beyond_the_limit_are_refused_and_the_connection_goes_on(make_world: MakeWorld) -> None:
    async with make_world(limits=Limits(requests_at_once=2)) as world, world.client() as client:
        run = await client.ask("chat.send", sessionKey="agent:held:main", message="hi")
        waits = [await client.begin("agent.wait", {"runId": run["runId"]}) for _ in range(2)]
        error = await client.refused("health")
        assert error["code"] == "UNAVAILABLE" and error["retryable"] is True
        world.release.set()
        for wait in waits:
            assert (await client.take(wait))["status"] == "ok"
        assert (await client.ask("health"))["ok"] is True


@pytest.mark.anyio
async def test_an_unexpected_failure_is_answered_without_its_details(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(world.gateway.store, "run_counts", fail)
    error = await client.refused("status")
    assert error["code"] == "UNAVAILABLE"
    assert error["details"] == {"code": "internal"}
    assert "secret" not in json.dumps(error)
    assert (await client.ask("agents.list"))["agents"]


@pytest.mark.parametrize(
    ("name", "plain", "more"),
    [
        (
            "agent",
            {"message": "hi"},
            {"spawnedBy": "main", "extraSystemPrompt": "obey", "inputProvenance": {"kind": "x"}},
        ),
        ("chat.send", {"sessionKey": "main", "message": "hi"}, {"originatingTo": 5, "systemInputProvenance": {}}),
        ("chat.abort", {"sessionKey": "main"}, {"preserveSideRuns": True}),
        ("chat.history", {"sessionKey": "main"}, {"inputRunIds": ["a"], "maxChars": "?"}),
        ("models.list", {}, {"sessionKey": "main", "includeDetails": True}),
        ("status", {}, {"includeChannelSummary": True}),
    ],
)
def test_what_a_shared_method_does_not_know_changes_nothing(
    name: str, plain: dict[str, Any], more: dict[str, Any]
) -> None:
    method = METHODS[name]
    assert method.read_params(_raw({**plain, **more})) == method.read_params(_raw(plain))


@pytest.mark.parametrize("name", ["runs.list", "chat.search", "tools.invoke", "deliveries.list"])
def test_an_unknown_parameter_of_a_method_of_our_own_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="unknown parameter 'other'"):
        METHODS[name].read_params(_raw({"other": 1}))


@pytest.mark.parametrize(
    ("name", "param"),
    [("agent", "attachments"), ("sessions.send", "attachments"), ("send", "mediaUrl"), ("send", "buffer")],
)
def test_a_file_that_would_be_dropped_is_refused(name: str, param: str) -> None:
    needed = {"sessionKey": "main", "key": "main", "message": "hi", "channel": "c", "to": "t"}
    params = {field: text for field, text in needed.items() if field in METHODS[name].params.__struct_encode_fields__}
    with pytest.raises(InvalidRequest, match=f"^{name}: {param}: expected an empty list"):
        METHODS[name].read_params(_raw({**params, param: "data:x"}))
    assert METHODS[name].read_params(_raw({**params, param: []})) is not None


@pytest.mark.parametrize("number", ["1e400", "1" + "0" * 400, "1" + "0" * 5000])
@pytest.mark.parametrize("name", ["limit", "cursor", "other"])
def test_a_number_that_nothing_can_hold_is_a_bad_parameter(name: str, number: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^runs\.list: "):
        METHODS["runs.list"].read_params(msgspec.Raw(f'{{"{name}":{number}}}'.encode()))


@pytest.mark.parametrize("name", ["agent", "chat.send", "send", "tools.invoke"])
def test_no_client_takes_a_key_away_from_a_hook_or_a_node(name: str) -> None:
    needed = {"sessionKey": "main", "message": "hi", "channel": "c", "to": "t", "tool": "sessions_spawn"}
    params = {field: text for field, text in needed.items() if field in METHODS[name].params.__struct_encode_fields__}
    for key in ("hook/build-7", "agent:main:node-pi/7", "agent:research-bot:node-/", scoped_run_id("hook", "x/y")):
        with pytest.raises(InvalidRequest, match="idempotencyKey"):
            METHODS[name].read_params(_raw({**params, "idempotencyKey": key}))
    for key in ("hook", "my/hook/7", "agent:main:main/7", "node-pi/7", "hooks/7"):
        METHODS[name].read_params(_raw({**params, "idempotencyKey": key}))
    node = METHODS["node.message"].read_params(_raw({"text": "hi", "idempotencyKey": "hook/7"}))
    assert node.idempotency_key == "hook/7"  # it is made the id of a run under the node's own name


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.text() | json_values.map(json.dumps))
def test_no_text_makes_reading_a_frame_fail_otherwise_than_it_should(text: str) -> None:
    try:
        frame = read_frame(text)
    except BadFrame as bad:
        assert isinstance(bad.error, InvalidRequest)
    else:
        assert isinstance(frame, Request | Cancel)


@given(st.sampled_from(sorted(METHODS)), st.data())
@settings(max_examples=300, deadline=None)
def test_no_parameters_make_reading_them_fail_otherwise_than_they_should(name: str, data: st.DataObject) -> None:
    method = METHODS[name]
    names = st.sampled_from([*method.params.__struct_encode_fields__, "other"])
    params = data.draw(st.dictionaries(names, json_values, max_size=5) | json_values)
    try:
        method.read_params(_raw(params))
    except InvalidRequest as error:
        assert error.message.startswith(name)
