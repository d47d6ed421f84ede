"""Limits on unread input: its size, and the time to wait for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from websockets.frames import Frame, Opcode

from backchannel.gateway.ws.connections import Limits
from backchannel.gateway.ws.transport import HEAD_BYTES, LINE_BYTES, JoinedWrites, text_frame
from tests.support.logs import captured_logs

from .client import OPERATOR, connected, opened
from .conftest import MakeWorld, World

pytestmark = pytest.mark.anyio

BEGINNING = b"POST /tools/invoke HTTP/1.1\r\nHost: 127.0.0.1\r\n"
IMPATIENT = Limits(request_s=0.2)


@asynccontextmanager
async def line(world: World) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = world.at.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def is_let_go(reader: asyncio.StreamReader) -> bool:
    """Wait until the gateway has ended the connection, without an answer."""
    async with asyncio.timeout(20):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def answer_to(world: World, request: bytes) -> bytes:
    async with line(world) as (reader, writer), asyncio.timeout(20):
        writer.write(request)
        return await reader.readuntil(b"\r\n")


@pytest.mark.parametrize("piece", [b"X-Name: value\r\n", b"x"])
async def test_headers_without_end_are_cut_off_and_the_others_are_served(world: World, piece: bytes) -> None:
    sent = 0
    async with line(world) as (_, writer):
        writer.write(BEGINNING + b"X: ")
        with pytest.raises(ConnectionError):
            while sent < 100 * HEAD_BYTES:
                writer.write(piece * 1000)
                await writer.drain()
                sent += 1000 * len(piece)
    async with world.client() as client:
        assert (await client.ask("health"))["ok"]


def of_clients(logs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out what the watchdog logs on a machine that is busy with something else."""
    return [entry for entry in logs if entry["event"] != "the event loop was held"]


UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
PLAIN = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
COOKIE = b"Cookie: " + b"c" * (LINE_BYTES + 100) + b"\r\n"


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (UPGRADE + COOKIE, 431),
        (PLAIN + COOKIE, 431),
        (UPGRADE + b"X-Name: value\r\n" * 200, 431),
        (PLAIN + b"X-Name: value\r\n" * 5000, 431),
        (UPGRADE.replace(b"/ws", b"/ws?" + b"q" * LINE_BYTES), 414),
        (PLAIN.replace(b"/healthz", b"/" + b"q" * LINE_BYTES), 414),
        (UPGRADE + b"Host: localhost\r\n", 400),
        (PLAIN + b"Host: localhost\r\n", 400),
        (UPGRADE + b"Content-Length: 5\r\n", 400),
        (UPGRADE.replace(b"GET", b"POST"), 405),
        (UPGRADE.replace(b"Version: 13", b"Version: 12"), 400),
        (b"nonsense\r\n", 400),
    ],
    ids=[
        "a long header, upgrade",
        "a long header",
        "many headers, upgrade",
        "many headers",
        "a long path, upgrade",
        "a long path",
        "two hosts, upgrade",
        "two hosts",
        "a body, upgrade",
        "no GET, upgrade",
        "another version, upgrade",
        "nonsense",
    ],
)
async def test_what_is_not_taken_in_is_answered_and_closed(
    world: World, request_head: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with captured_logs() as logs:
        async with line(world) as (reader, writer), asyncio.timeout(20):
            writer.write(request_head + b"\r\n")
            answer = await reader.read()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert of_clients(logs) == [] and caplog.records == []


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (UPGRADE.replace(b"Host: 127.0.0.1", b"Host: evil.example"), 403),
        (UPGRADE.replace(b"/ws", b"/elsewhere"), 404),
        (UPGRADE, 503),
    ],
    ids=["a foreign name", "another path", "one too many"],
)
async def test_a_connection_that_is_refused_fills_no_log(
    make_world: MakeWorld, request_head: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_world(limits=Limits(connections=1)) as world, connected(world.url):
        with captured_logs() as logs:
            async with line(world) as (reader, writer), asyncio.timeout(20):
                writer.write(request_head + b"\r\n")
                answer = await reader.read()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert of_clients(logs) == [] and caplog.records == []


async def test_a_foreign_page_that_is_refused_fills_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with captured_logs() as logs:
        async with opened(world.url, additional_headers={"Origin": "https://evil.example"}) as page:
            assert "allowedOrigins" in (await page.refused("connect", {}))["message"]
            assert await page.closed() == 1008
    assert of_clients(logs) == [] and caplog.records == []


async def test_nonsense_behind_a_request_leaves_its_answer_whole(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{"tool":"agents_list"}'
    token = f"Authorization: Bearer {OPERATOR}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with captured_logs() as logs:
        async with line(world) as (reader, writer), asyncio.timeout(20):
            writer.write(BEGINNING + token + body + b"}}nonsense")
            answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200 OK") and answer.count(b"HTTP/1.1") == 1
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["ok"] is True
    assert of_clients(logs) == [] and caplog.records == []


async def test_nonsense_in_a_body_ends_its_request(world: World, caplog: pytest.LogCaptureFixture) -> None:
    token = f"Authorization: Bearer {OPERATOR}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with captured_logs() as logs:
        async with line(world) as (reader, writer), asyncio.timeout(20):
            writer.write(BEGINNING + token)
            await writer.drain()
            writer.write(b"5\r\nhello\r\nnonsense\r\n")
            answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    assert of_clients(logs) == [] and caplog.records == []


async def test_text_that_is_not_utf_8_closes_its_connection_and_fills_no_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with captured_logs() as logs:
        async with world.client() as client:
            await client.socket.send(b"\xff\xfe", text=True)
            assert await client.closed() == 1007
    assert of_clients(logs) == [] and caplog.records == []


async def test_a_header_of_almost_that_length_is_read(world: World) -> None:
    cookie = b"c" * (LINE_BYTES - 200)
    for head, status in ((UPGRADE, b"101"), (PLAIN, b"200")):
        answer = await answer_to(world, head + b"Cookie: " + cookie + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status)


async def test_many_headers_and_a_large_body_are_none_too_many(world: World) -> None:
    head = BEGINNING + b"X-Name: value\r\n" * 2000 + b"Content-Length: 900000\r\n\r\n"
    assert await answer_to(world, head + b"x" * 900_000) == b"HTTP/1.1 401 Unauthorized\r\n"
    token = f"Authorization: Bearer {OPERATOR}\r\n".encode()
    assert await answer_to(world, head[:-2] + token + b"\r\n" + b"x" * 900_000) == b"HTTP/1.1 400 Bad Request\r\n"


async def test_one_request_after_the_other_counts_each_for_itself(world: World) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-Name: value\r\n" * 2000 + b"\r\n"
    async with line(world) as (reader, writer), asyncio.timeout(20):
        for _ in range(5):
            writer.write(request)
            assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
            await reader.readuntil(b'{"ok":true}')


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST", BEGINNING, BEGINNING + b"Content-Length: 10\r\n\r\n12345"],
    ids=["nothing", "a word", "half of the headers", "half of the body"],
)
async def test_a_request_that_does_not_come_to_its_end_is_not_waited_for(make_world: MakeWorld, sent: bytes) -> None:
    async with make_world(limits=IMPATIENT) as world, line(world) as (reader, writer):
        writer.write(sent)
        async with asyncio.timeout(20):
            left = await reader.read()
        assert left == b"" or left.startswith(b"HTTP/1.1 401 ")


async def test_whoever_is_answered_slowly_or_has_connected_is_not_let_go(make_world: MakeWorld) -> None:
    async with make_world(limits=IMPATIENT) as world, connected(world.url) as client:
        before = await client.begin("agent", {"message": "hello", "sessionKey": "agent:held:main"})
        assert (await client.take(before))["status"] == "accepted"
        async with line(world) as (reader, _):  # lives as long as one that is let go
            assert await is_let_go(reader)
        world.release.set()
        assert (await client.take(before))["status"] == "ok"


async def test_whoever_goes_away_in_the_middle_fills_no_log(make_world: MakeWorld) -> None:
    channel = {"adapter": "bridge", "url": "http://127.0.0.1:1", "secret": "a secret of the channel"}
    with captured_logs() as logs:
        async with make_world({"channels": {"desk": channel}}) as world, line(world) as (_, writer):
            writer.write(b"POST /channels/desk/inbound HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n123")
            await writer.drain()
            assert await answer_to(world, BEGINNING + b"\r\n") == b"HTTP/1.1 401 Unauthorized\r\n"
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


def test_what_is_written_to_a_connection_that_was_just_cut_is_dropped_without_a_word() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_complaints_of_a_cut_connection()) == []


async def _complaints_of_a_cut_connection() -> list[dict[str, Any]]:
    loop, complaints = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, complaint: complaints.append(complaint))
    made: asyncio.Future[asyncio.Transport] = loop.create_future()
    lost: asyncio.Future[None] = loop.create_future()

    class Far(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set_result(transport)  # type: ignore[arg-type]  # one that writes

        def connection_lost(self, exc: Exception | None) -> None:
            lost.set_result(None)

    server = await loop.create_server(Far, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    async with asyncio.timeout(20):
        transport = await made
        joined = JoinedWrites(transport)
        transport.abort()
        joined.write(b"too late")
        await lost
        joined.write(b"much too late")
        await asyncio.sleep(0)
    writer.close()
    server.close()
    return complaints


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_a_text_frame_is_what_the_library_of_websockets_writes(size: int) -> None:
    data = b"x" * size
    assert text_frame(data) == Frame(Opcode.TEXT, data).serialize(mask=False)


def frame_of(text: str, *, opcode: Opcode = Opcode.TEXT, fin: bool = True) -> bytes:
    return Frame(opcode, text.encode(), fin=fin).serialize(mask=True)


def ask_health(id: str, note: str = "") -> str:
    return json.dumps({"type": "req", "id": id, "method": "health", "params": {}, "note": note})


@pytest.mark.parametrize("size", [1, 3, 1000, 1 << 20], ids=lambda size: f"{size} bytes at once")
async def test_frames_are_read_in_order_however_they_are_cut_and_mixed(world: World, size: int) -> None:
    parted = ask_health("3", "ü")
    sent = [
        frame_of(ask_health("1")),
        frame_of(ask_health("2", "x" * 200)),
        frame_of(parted[:10], fin=False),
        frame_of("still there?", opcode=Opcode.PING),
        frame_of(parted[10:], opcode=Opcode.CONT),
        frame_of("[1]", opcode=Opcode.BINARY),
        frame_of(ask_health("4", "y" * 70_000 if size > 1 else "y" * 300)),
        frame_of(ask_health("5", "é")),
    ]
    async with line(world) as (reader, writer), asyncio.timeout(20):
        writer.write(UPGRADE + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        auth = {"token": OPERATOR}
        params = {"minProtocol": 4, "maxProtocol": 4, "client": {"id": "t", "mode": "cli"}, "auth": auth}
        writer.write(frame_of(json.dumps({"type": "req", "id": "0", "method": "connect", "params": params})))
        received = bytearray(await reader.readuntil(b"hello-ok"))
        stream = b"".join(sent)
        for at in range(0, len(stream), size):
            writer.write(stream[at : at + size])
            await asyncio.sleep(0)
        for text in (*(f'"id":"{n}"' for n in range(1, 6)), "still there?", "binary frame"):
            while text.encode() not in received:
                received += await reader.read(65536)


async def test_a_text_frame_that_is_not_utf8_or_not_masked_ends_the_connection(world: World) -> None:
    for bad, code in ((b"\x81\x82\0\0\0\0\xff\xfe", 1007), (text_frame(b"{}"), 1002)):
        async with world.client() as client:
            client.socket.transport.write(bad)
            assert await client.closed() == code
