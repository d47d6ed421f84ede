"""A client that does not read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from backchannel.gateway.ws.websocket import OutgoingFrames
from backchannel.wire.frames import show_event_head

pytestmark = pytest.mark.anyio


class Pipe:
    """A client that reads when the test lets it."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.sent: list[Any] = []

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.sent.append(message)

    @property
    def seqs(self) -> list[int]:
        return [json.loads(message["text"])["seq"] for message in self.sent if message["type"] == "websocket.send"]


def event(size: int) -> str:
    return show_event_head("chat", "x" * size)


async def drain(pipe: Pipe, out: OutgoingFrames) -> None:
    pipe.reads.set()
    out.close(1000, "done")
    await out.write()
    await out.send_close()


async def test_what_is_queued_is_sent_in_order_before_the_close() -> None:
    pipe = Pipe()
    out = OutgoingFrames(pipe.send, 1000)
    for _ in range(3):
        out.send_event(event(1), droppable=False)
    await drain(pipe, out)
    assert pipe.seqs == [1, 2, 3]
    assert pipe.sent[-1] == {"type": "websocket.close", "code": 1000, "reason": "done"}


async def test_deltas_are_left_out_first_and_the_gap_shows() -> None:
    pipe = Pipe()
    out = OutgoingFrames(pipe.send, 1500)
    out.send_event(event(400), droppable=True)
    out.send_event(event(400), droppable=False)
    out.send_event(event(400), droppable=True)  # does not fit: left out
    out.send_event(event(400), droppable=False)  # takes the place of the first
    await drain(pipe, out)
    assert pipe.seqs == [2, 4]


async def test_when_that_is_not_enough_the_connection_is_closed() -> None:
    pipe = Pipe()
    out = OutgoingFrames(pipe.send, 1000)
    out.send_event(event(400), droppable=False)
    writing = asyncio.create_task(out.write())
    await asyncio.sleep(0)  # the writer now waits for the client
    for _ in range(3):
        out.send_event(event(400), droppable=False)
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert out.done.is_set()
    pipe.reads.set()
    await out.send_close()
    assert [message["type"] for message in pipe.sent] == ["websocket.close"]
    assert pipe.sent[0]["code"] == 1008


async def test_a_client_that_reads_is_not_closed_for_much_at_once() -> None:
    pipe = Pipe()
    out = OutgoingFrames(pipe.send, 1000)
    for _ in range(5):
        out.send_event(event(400), droppable=False)
    await drain(pipe, out)
    assert pipe.seqs == [1, 2, 3, 4, 5]


async def test_what_counts_is_the_memory_of_a_text_not_its_characters() -> None:
    pipe = Pipe()
    out = OutgoingFrames(pipe.send, 10_000)
    out.send("x" * 2000)
    out.send("x" * 1999 + "😀")  # four bytes for each
    assert out.held_bytes > 10_000
    await drain(pipe, out)
    assert out.held_bytes == 0


async def test_what_the_transport_holds_counts_too() -> None:
    pipe = Pipe()
    out = OutgoingFrames(pipe.send, 1000, unsent=lambda: 900)
    out.send_event(event(10), droppable=False)
    writing = asyncio.create_task(out.write())
    await asyncio.sleep(0)  # the writer now waits for the client
    out.send_event(event(10), droppable=False)
    with pytest.raises(asyncio.CancelledError):
        await writing


async def test_one_large_answer_is_sent_whatever_the_limit() -> None:
    pipe = Pipe()
    out = OutgoingFrames(pipe.send, 100)
    out.send("x" * 1000)
    pipe.reads.set()
    out.close(1000, "")
    await out.write()
    assert len(pipe.sent[0]["text"]) == 1000


async def test_nothing_is_queued_after_the_end() -> None:
    pipe = Pipe()
    out = OutgoingFrames(pipe.send, 1000)
    out.close(1000, "done")
    out.send("late")
    await drain(pipe, out)
    assert [message["type"] for message in pipe.sent] == ["websocket.close"]


async def test_a_close_that_does_not_get_through_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backchannel.gateway.ws.websocket.CLOSE_S", 0.01)
    out = OutgoingFrames(Pipe().send, 1000)
    out.close(1008, "é" * 200)
    async with asyncio.timeout(20):
        await out.send_close()
