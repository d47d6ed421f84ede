"""Connections to providers: used again, never held up by a large request, and closed with the client."""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import AsyncIterator

import anyio
import httpx2
import msgspec
import pytest

from backchannel.agents.endpoints import Endpoint
from backchannel.agents.providers import Connection, ProviderModel
from backchannel.agents.wires.talking import MOST_FRAMES, encode_steps
from backchannel.core.contracts import ModelReply, ModelRequest, ToolSpec
from backchannel.core.messages import ImageBlock, Message, Role, TextBlock
from tests.support.loop_time import loop_time
from tests.support.servers import LocalServer
from tests.support.stub_provider import WIRES, StubProvider
from tests.support.stub_wires import Answer

from .reference import MODELS, pair

pytestmark = pytest.mark.anyio

KINDS = ["openai-compatible", "openai", "anthropic"]
MOST_S = 0.05
"""Of the loop's thread: 5 ms on a machine of its own."""


class PatientProvider(LocalServer):
    """A provider that keeps its connections open, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.base_url = ""
        self.connections = 0
        self.bodies: list[bytes] = []

    def opened(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            self.bodies.append(await reader.readexactly(length))
            wire = WIRES[head.split(" ")[1]]
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for frame in wire.frames({"model": "m"}, Answer(text="ok")):
                data = frame.data.encode()
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await writer.drain()
            writer.write(b"0\r\n\r\n")


@pytest.fixture
async def provider() -> AsyncIterator[PatientProvider]:
    async with PatientProvider() as provider:
        yield provider


def said(*content: TextBlock | ImageBlock, role: Role = Role.USER) -> Message:
    return Message(id="m", role=role, content=content, timestamp=0)


HELLO = ModelRequest(system="Be brief.", messages=(said(TextBlock(text="hello")),))


async def ask(model: ProviderModel, request: ModelRequest = HELLO) -> ModelReply:
    with anyio.fail_after(60):
        *_, reply = [event async for event in model.stream(request)]
    assert isinstance(reply, ModelReply)
    return reply


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_is_used_again(kind: str, provider: PatientProvider) -> None:
    connection = Connection(Endpoint("acme", kind, provider.base_url, "k"))
    model = ProviderModel(connection, MODELS[kind], context_window=1000)
    for _ in range(5):
        await ask(model)
    assert provider.connections == 1
    await connection.close()
    await ask(model)
    assert provider.connections == 2
    await connection.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_long_conversation_with_large_pictures_arrives_whole_and_holds_nothing(
    kind: str, provider: PatientProvider
) -> None:
    data = base64.b64encode(bytes(range(256)) * 14_000).decode()
    picture = said(TextBlock(text="see"), ImageBlock(mime_type="image/png", data=data))
    talk = [
        said(TextBlock(text=f"number {n} of many"), role=Role.ASSISTANT if n % 2 else Role.USER) for n in range(800)
    ]
    request = ModelRequest(system="Be brief.", messages=(*talk, picture))
    connection = Connection(Endpoint("acme", kind, provider.base_url, "k"))
    model = ProviderModel(connection, MODELS[kind], context_window=1000)
    await ask(model)
    gc.collect()
    with loop_time() as held:
        await ask(model, request)
    await connection.close()
    body = msgspec.json.decode(provider.bodies[-1])
    assert data in str((body.get("messages") or body["input"])[-1])
    assert held.longest_s < MOST_S


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_that_are_kept_are_sent_as_they_are(kind: str, provider: PatientProvider) -> None:
    connection = Connection(Endpoint("acme", kind, provider.base_url, "k"))
    model = ProviderModel(connection, MODELS[kind], context_window=1000)
    encoder = await model.encoder()
    assert encoder is not None
    steps = await encode_steps(encoder, HELLO.messages)
    await ask(model)
    await ask(model, msgspec.structs.replace(HELLO, messages=(), encoded=steps))
    await connection.close()
    assert provider.bodies[0] == provider.bodies[1]


async def test_an_endpoint_that_does_not_end_its_stream_is_not_waited_for() -> None:
    class Lingering(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for frame in WIRES["/v1/chat/completions"].frames({"model": "m"}, Answer(text="ok")):
                yield frame.data.encode()
            await asyncio.Event().wait()

    both = pair("openai-compatible")
    both.by_wire.answer = lambda request: httpx2.Response(200, stream=Lingering(), request=request)
    with anyio.fail_after(20):
        outcome = await both.ask_wire(HELLO)
    assert not isinstance(outcome, Exception)


async def test_the_encoder_of_another_provider_is_its_own_library() -> None:
    connection = Connection(Endpoint("deepseek", "deepseek", api_key="k"))
    assert await ProviderModel(connection, "deepseek-chat", context_window=1000).encoder() is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_model_that_sees_no_pictures_has_an_encoder_of_another_name(kind: str) -> None:
    connection = Connection(Endpoint("acme", kind, "http://127.0.0.1:9/v1", "k"))
    names = set()
    for sees in (True, False):
        model = ProviderModel(connection, MODELS[kind], context_window=1000, sees_images=sees)
        encoder = await model.encoder()
        assert encoder is not None
        names.add(encoder.name)
    await connection.close()
    assert len(names) == 2


async def test_frames_are_kept_within_a_bound() -> None:
    async with StubProvider() as stub:
        connection = Connection(Endpoint("acme", "openai-compatible", stub.base_url, "k"))
        model = ProviderModel(connection, "some-model", context_window=1000)
        for number in range(MOST_FRAMES + 10):
            tools = (ToolSpec(f"tool_{number}", "", {"type": "object"}),)
            await ask(model, msgspec.structs.replace(HELLO, tools=tools))
            assert stub.requests[-1].body["tools"][0]["function"]["name"] == f"tool_{number}"
        wire = await connection.wire("some-model")
        assert len(vars(wire)["_frames"]) == MOST_FRAMES
        await connection.close()


async def test_no_proxy_is_asked_for_an_endpoint_on_this_machine(
    provider: PatientProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    connection = Connection(Endpoint("acme", "openai-compatible", provider.base_url, "k"))
    assert (await ask(ProviderModel(connection, "m", context_window=1000))).content == (TextBlock(text="ok"),)
    await connection.close()
