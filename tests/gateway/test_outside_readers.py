"""Whoever sends what takes longest to read, within its limit of size, holds nobody else up.

Each reader is fed while the event loop is looked at. What counts is the processor time of the loop's thread in one
turn: some 50 ms at most, and 200 here, since a processor that is shared works more slowly. How long others really wait
is measured by `make interop`, in tests/interop/test_waiting.py.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import http.client
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from backchannel.channels.signing import SIGNATURE, sign
from backchannel.gateway.app import Gateway, RunFailed
from tests.support.beside import beside
from tests.support.loop_time import loop_time
from tests.support.mcp_caller import calling, server
from tests.support.stub_provider import Answer, Call, Fault, StubProvider

from .client import OPERATOR
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
MOST_S = 0.2
HOOK_TOKEN = "a-token-of-the-hooks-of-these-tests"
CHANNEL: dict[str, Any] = {
    "adapter": "bridge",
    "url": "http://127.0.0.1:9/",
    "secret": "a-secret-of-the-wall",
    "allowFrom": ["*"],
}
CONFIG: dict[str, Any] = {
    "gateway": {"http": {"chatCompletions": True}},
    "channels": {"wall": CHANNEL},
    "bindings": [{"match": {"channel": "wall"}, "agentId": "echo"}],
    "hooks": {"enabled": True, "token": HOOK_TOKEN},
}
WORST: dict[str, tuple[bytes, bytes, bytes]] = {
    "lists": (b"[", b"[],", b"1]"),
    "objects": (b"[", b'{"k":[]},', b"1]"),
    "texts": (b"[", b'"ab",', b"1]"),
    "digits": (b"[", b"9" * 4000 + b",", b"1]"),
    "line ends": (b'"', b"\\n", b'x"'),
    "letters": (b'"', "漢 ".encode(), b'"'),
    "halves": (b'"', b"\\ud800", b'"'),
}
"""JSON that takes long: its beginning, what is repeated, its end."""
DOORS: dict[str, tuple[str, bytes]] = {
    "tools": ("/tools/invoke", b'{"tool":"sessions_list","args":{"a":%b}}'),
    "mcp": (
        "/mcp",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sessions_list","arguments":{"a":%b}}}',
    ),
    "chat": ("/v1/chat/completions", b'{"model":"echo","messages":[{"role":"user","content":%b}]}'),
    "responses": ("/v1/responses", b'{"model":"echo","input":%b}'),
    "hook": ("/hooks/agent", b'{"agentId":"echo","message":%b}'),
    "channel": (
        "/channels/wall/inbound",
        b'{"chatType":"direct","chatId":"c","senderId":"ann","messageId":"m","text":%b}',
    ),
    "mentions": (
        "/channels/wall/inbound",
        b'{"chatType":"direct","chatId":"c","senderId":"ann","messageId":"n","text":"","mentionedAccounts":%b}',
    ),
}
METHODS = {
    "tools.invoke": b'{"tool":"sessions_list","args":{"a":%b}}',
    "chat.send": b'{"sessionKey":"agent:echo:main","message":%b,"idempotencyKey":"k"}',
    "no.such": b"%b",
}


def worst(kind: str, size: int) -> bytes:
    start, unit, end = WORST[kind]
    return start + unit * ((size - len(start) - len(end)) // len(unit)) + end


@contextmanager
def watched(most_s: float = MOST_S) -> Iterator[None]:
    gc.freeze()  # as a gateway that is served does: what was imported is not looked through again
    try:
        with loop_time() as held:
            yield
    finally:
        gc.unfreeze()
    assert held.longest_s < most_s, f"the loop was held for {held.longest_s * 1000:.0f} ms at once"


@pytest.fixture
async def world(make_world: MakeWorld, anyio_backend: str) -> AsyncIterator[World]:
    async with make_world(CONFIG) as made:
        yield made


def post(world: World, path: str, body: bytes, more: dict[str, str] | None = None) -> int:
    token = HOOK_TOKEN if path.startswith("/hooks") else OPERATOR
    sent = http.client.HTTPConnection(world.at.url.removeprefix("http://"), timeout=20)
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    headers |= {"authorization": f"Bearer {token}", SIGNATURE: sign(CHANNEL["secret"], body)} | (more or {})
    try:
        sent.request("POST", path, body, headers)
        return sent.getresponse().status
    finally:
        sent.close()


@pytest.mark.parametrize("door", DOORS)
async def test_a_body_holds_nobody_up_whatever_is_in_it(world: World, door: str) -> None:
    path, form = DOORS[door]
    limits = world.gateway.config.gateway.limits
    size = (limits.hook_body_bytes if door == "hook" else limits.body_bytes) - len(form)
    await asyncio.to_thread(post, world, path, b"{}")  # the first of a door imports what it needs
    for kind in WORST:
        body = form % worst(kind, size)
        with watched():
            assert await asyncio.to_thread(post, world, path, body) in (200, 202, 400)


def ask(world: World, method: str, params: bytes) -> dict[str, Any]:
    given = {"minProtocol": 4, "maxProtocol": 4, "client": {"id": "test", "mode": "cli"}, "auth": {"token": OPERATOR}}
    with connect(world.url, max_size=None) as socket:
        socket.send(json.dumps({"type": "req", "id": "hello", "method": "connect", "params": given}))
        _answer(socket.recv)
        socket.send(b'{"type":"req","id":"x","method":"%b","params":%b}' % (method.encode(), params), text=True)
        return _answer(socket.recv)


def _answer(receive: Callable[..., Any]) -> dict[str, Any]:
    while True:
        frame: dict[str, Any] = json.loads(receive(timeout=20))
        if frame["type"] == "res":
            return frame


@pytest.mark.parametrize("method", METHODS)
async def test_a_frame_holds_nobody_up_whatever_is_in_it(world: World, method: str) -> None:
    size = world.gateway.config.gateway.limits.frame_bytes - 200
    await asyncio.to_thread(ask, world, "health", b"{}")
    for kind in WORST:
        params = METHODS[method] % worst(kind, size)
        with watched():
            answer = await asyncio.to_thread(ask, world, method, params)
        assert answer["ok"] or answer["error"]["code"] == "INVALID_REQUEST"


async def test_a_request_with_too_many_parts_is_refused_with_the_reason(world: World) -> None:
    answer = await asyncio.to_thread(ask, world, "tools.invoke", METHODS["tools.invoke"] % worst("lists", 10**6))
    assert answer["error"]["message"].startswith(
        "tools.invoke: it has more lists, objects, texts or numbers in it than"
    )


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 1000).decode()
IMAGE = f'{{"type":"image","mimeType":"image/png","data":"{PNG}{"A" * 4_000_000}"}},'
TEXT, TEXT_END = '{"content":[{"type":"text","text":"', '"}]}'
ANSWERS = {
    "a long text": (TEXT, "漢", 5_000_000, TEXT_END),
    "escapes": (TEXT, "\\n", 7_500_000, TEXT_END),
    "pictures": ('{"content":[', IMAGE, 3, '{"type":"text","text":"x"}]}'),
    "blocks": ('{"content":[', '{"type":"text","text":"x"},', 39_000, '{"type":"text","text":"x"}]}'),
    "parts": ('{"content":[],"structuredContent":{"a":[', '{"k":[]},', 39_000, "1]}}"),
    "too many parts": ('{"content":[],"structuredContent":{"a":[', "[],", 5_000_000, "1]}}"),
    "tools": ('{"tools":[', '{"name":"x","inputSchema":{"type":"object"}},', 20_000, '{"name":"y"}]}'),
    "an error": ('{"code":1,"message":"', "\\u001bpassword=", 1_000_000, '"}'),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_answer_of_an_mcp_server_holds_nobody_up_whatever_is_in_it(tmp_path: Path, kind: str) -> None:
    start, unit, count, end = ANSWERS[kind]
    async with calling(tmp_path, {"far": server()}) as at:
        await at.call("far__echo", text="the first call starts the server")
        with watched():
            field = "error" if kind == "an error" else "result"
            told = await at.call("far__raw", field=field, start=start, unit=unit, count=count, end=end)

    assert len(told.text) < 110_000 and "took longer" not in told.text


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ('{"a":[' + "[]," * 300_000 + "1]}", "(left out: it has more lists"),
        ('{"a":"' + "\\n" * 2_000_000 + '"}', "(left out: longer than"),
    ],
)
async def test_a_models_call_of_a_tool_holds_nobody_up_whatever_its_arguments_are(
    tmp_path: Path, api: str, arguments: str, why: str
) -> None:
    with beside() as side:
        stub = side.open(StubProvider())
        provider = {"api": api, "baseUrl": stub.base_url, "apiKey": "a-key-of-the-tests"}
        config = {"agents": {"defaults": {"model": "acme/m"}}, "models": {"providers": {"acme": provider}}}
        async with Gateway.open(config, state=tmp_path / "state") as gateway:
            side.tell(stub.then, Answer(text="the first of a provider imports its library"))
            await gateway.ask("main", "hello")
            side.tell(stub.then, Answer(calls=(Call("sessions_list", arguments),)))
            side.tell(stub.then, Answer(text="done"))
            with watched():
                assert await gateway.ask("main", "list them") == "done"
        assert why in str(stub.requests[-1].messages)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("text", ["漢" * 1_000_000, tuple("ab " for _ in range(10_000))], ids=["long", "in pieces"])
async def test_a_models_reply_holds_nobody_up_whatever_it_says(
    tmp_path: Path, api: str, text: str | tuple[str, ...]
) -> None:
    with beside() as side:
        stub = side.open(StubProvider())
        provider = {"api": api, "baseUrl": stub.base_url, "apiKey": "a-key-of-the-tests"}
        config = {"agents": {"defaults": {"model": "acme/m"}}, "models": {"providers": {"acme": provider}}}
        async with Gateway.open(config, state=tmp_path / "state") as gateway:
            side.tell(stub.then, Answer(text="the first of a provider imports its library"))
            await gateway.ask("main", "hello")
            side.tell(stub.then, Answer(text=text))
            with watched():
                assert len(await gateway.ask("main", "speak")) > 10_000


PARTS = "[],"
"""What takes a decoder longest, for its length."""
FOREIGN = {
    "an event": (200, "text/event-stream", 'data: {"x":[%s1]}\n\n'),
    "an error": (400, "application/json", '{"error":{"message":"no","x":[%s1]}}'),
}


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("kind", FOREIGN)
async def test_an_answer_of_a_provider_holds_nobody_up_whatever_is_in_it(tmp_path: Path, api: str, kind: str) -> None:
    status, content_type, form = FOREIGN[kind]
    with beside() as side:
        stub = side.open(StubProvider())
        provider = {"api": api, "baseUrl": stub.base_url, "apiKey": "a-key-of-the-tests"}
        config = {"agents": {"defaults": {"model": "acme/m"}}, "models": {"providers": {"acme": provider}}}
        async with Gateway.open(config, state=tmp_path / "state") as gateway:
            side.tell(stub.then, Answer(text="the first of a provider imports its library"))
            await gateway.ask("main", "hello")
            side.tell(stub.then, Fault(status, body=form % (PARTS * 1_500_000), content_type=content_type))
            with watched(), suppress(RunFailed):  # an error is told, and a broken stream is asked for again
                await gateway.ask("main", "speak")


async def test_pictures_of_a_request_hold_nobody_up(world: World) -> None:
    size = world.gateway.config.gateway.limits.frame_bytes - 1000
    picture = {"type": "image", "mimeType": "image/png", "content": PNG + "A" * (size - len(PNG) - 200)}
    sent = {"sessionKey": "agent:echo:main", "message": "look", "idempotencyKey": "k", "attachments": [picture]}
    await asyncio.to_thread(ask, world, "health", b"{}")
    with watched():
        answer = await asyncio.to_thread(ask, world, "chat.send", json.dumps(sent).encode())
    assert answer["ok"], answer


READS = {
    "chat.history": {"sessionKey": "agent:echo:long"},
    "chat.startup": {"sessionKey": "agent:echo:long"},
    "sessions.export": {"keys": ["agent:echo:long"]},
    "tools.invoke": {"tool": "sessions_history", "args": {"sessionKey": "agent:echo:long", "limit": 200}},
    "chat.search": {"sessionKey": "agent:echo:long", "query": "nowhere"},
    "sessions.search": {"query": "nowhere"},
}


async def test_nobody_waits_while_a_long_transcript_is_read_or_exported(world: World) -> None:
    for number in range(12):
        await world.gateway.ask("agent:echo:long", f"{number} " + "漢\n" * 200_000)
    exported = await asyncio.to_thread(ask, world, "sessions.export", b"{}")
    [session] = exported["payload"]["sessions"]
    reads = {**READS, "transcripts.read": {"sessionId": session["sessionId"]}}
    for method, params in reads.items():
        with watched():
            answer = await asyncio.to_thread(ask, world, method, json.dumps(params).encode())
        assert answer["ok"], answer
