"""Streams read on another gateway: each part arrives once, and the end is exact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, ScriptedModel, call
from backchannel.core.contracts import ModelEvent, ModelRequest, TextDelta, ThinkingDelta, ToolContext
from backchannel.core.facts import GrowthWanted, GrowthWritten
from backchannel.core.runs import RunState
from backchannel.gateway.app import Gateway
from backchannel.gateway.openai.following import Pause, follow
from backchannel.gateway.server import listening
from backchannel.gateway.ws.connections import OpenWaits
from backchannel.runtime.cluster import echoing, growing
from backchannel.runtime.cluster.growing import WRITTEN_EVERY_S
from backchannel.runtime.events import Event, ReplyGrew
from tests.cluster.gateways import PATIENCE_S, execute, gateways, until
from tests.gateway.client import OPERATOR, Client, connected
from tests.support.gateways import CONFIG, ended

pytestmark = pytest.mark.anyio
SERVED = {**CONFIG, "gateway": {"port": 0}}


class Typist(ScriptedModel):
    """A model that says what it is given, piece by piece, and ends when it is given nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: asyncio.Queue[str | None] = asyncio.Queue()

    def type(self, *pieces: str | None) -> None:
        for piece in pieces:
            self.keys.put_nowait(piece)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if self.requests:
            self.keys = asyncio.Queue()  # what was asked before does not hear it
        self.requests.append(request)
        keys, said = self.keys, ""
        while (piece := await keys.get()) is not None:
            said += piece
            yield TextDelta(piece)
        yield self._end(Reply(text=said))


@asynccontextmanager
async def watched(folder: Path, url: str, model: ScriptedModel, **more: Any) -> AsyncIterator[tuple[Gateway, Client]]:
    """Open two gateways: the one that works, and a client of the other."""
    async with (
        gateways(folder, url, model, config=SERVED, **more) as (one, other, *_),
        listening(other, OPERATOR) as there,
        connected(there.websocket_url) as client,
    ):
        yield one, client


async def grown(client: Client, text: str, state: str = "delta") -> None:
    """Wait for the event that shows a reply as far as this."""
    async with asyncio.timeout(PATIENCE_S):
        while text not in [text_of(event) for event in client.seen("chat") if event["state"] == state]:
            async with client.came:
                await client.came.wait()


def text_of(event: dict[str, Any]) -> str:
    return "".join(block["text"] for block in event["message"]["content"])


@pytest.mark.parametrize("wakeups", ["notify", "poll"])
async def test_a_reply_is_seen_to_grow_on_another_gateway_each_piece_of_it_once(
    tmp_path: Path, url: str, wakeups: str
) -> None:
    model = Typist()
    async with watched(tmp_path, url, model, wakeups=wakeups) as (one, client):
        await client.ask("sessions.messages.subscribe", key="main")
        run = await one.submit("main", "go")
        model.type("Once ")
        await grown(client, "Once ")
        model.type("upon ")
        await grown(client, "Once upon ")
        model.type("a time.", None)
        await grown(client, "Once upon a time.", "final")
        deltas = [event["deltaText"] for event in client.seen("chat") if event["state"] == "delta"]
        assert "Once upon a time.".startswith("".join(deltas))
        assert [event["state"] for event in client.seen("chat")].count("final") == 1
        phases = [event["data"] for event in client.seen("agent") if event["stream"] == "lifecycle"]
        assert [phase["phase"] for phase in phases] == ["start", "end"]
        said = await client.event("session.message", messageSeq=2)
        assert said["message"]["runId"] == run.id
        await until(lambda: execute(url, "SELECT count(*) FROM growing") == [(0,)])


async def test_words_between_gateways_are_enough_for_a_reply_that_begins_late(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(echoing, "_POLL_S", 60.0)
    monkeypatch.setattr(growing, "ASKED_AGAIN_S", 60.0)
    model = Typist()
    async with watched(tmp_path, url, model) as (one, client):
        heard: list[Event] = []
        one.runtime.hub.listen(heard.append, GrowthWanted, elsewhere=True)
        await client.ask("sessions.messages.subscribe", key="main")
        await one.submit("main", "go")
        await until(lambda: bool(heard))
        model.type("Once ")
        await grown(client, "Once ")


async def test_whoever_comes_midway_reads_what_was_streamed_so_far(tmp_path: Path, url: str) -> None:
    model = Typist()
    async with watched(tmp_path, url, model) as (one, client):
        spoken = Spoken(one)
        run = await one.submit("main", "go")
        model.type("Once upon ")
        await spoken.until("Once upon ")
        assert execute(url, "SELECT count(*) FROM growing") == [(0,)]
        await client.ask("chat.history", sessionKey="main")
        await grown(client, "Once upon ")
        model.type("a time.", None)
        await grown(client, "Once upon a time.", "final")
        assert (await ended(one, run.id)).state is RunState.OK


class Spoken:
    """What the runs of a gateway have streamed there."""

    def __init__(self, gateway: Gateway) -> None:
        self._texts: list[str] = []
        gateway.runtime.hub.listen(self._hear, ReplyGrew)

    def _hear(self, event: Event) -> None:
        assert isinstance(event, ReplyGrew)
        self._texts.append(event.text)

    async def until(self, text: str) -> None:
        await until(lambda: text in self._texts)


async def test_nothing_is_written_for_a_run_that_nobody_elsewhere_reads(tmp_path: Path, url: str) -> None:
    model = Typist()
    written: list[Event] = []
    async with watched(tmp_path, url, model) as (one, client):
        one.runtime.hub.listen(written.append, GrowthWritten)
        spoken = Spoken(one)
        await one.submit("main", "go")
        model.type("Once ")
        await spoken.until("Once ")
        read = await one.submit("agent:main:another", "go")
        await until(lambda: len(model.requests) == 2)
        model.type("Twice ")
        await client.ask("sessions.messages.subscribe", key="agent:main:another")
        await grown(client, "Twice ")
    assert {event.run_id for event in written if isinstance(event, GrowthWritten)} == {read.id}


async def test_a_reply_that_grows_quickly_is_written_five_times_a_second_at_most(tmp_path: Path, url: str) -> None:
    model = Typist()
    written: list[Event] = []
    async with watched(tmp_path, url, model) as (one, client):
        one.runtime.hub.listen(written.append, GrowthWritten)
        await client.ask("sessions.messages.subscribe", key="main")
        await one.submit("main", "go")
        model.type("…")  # a letter may be the beginning of a mark, and is shown when more has come
        await grown(client, "…")
        began = monotonic()
        while monotonic() < began + 1:
            model.type("…")
            await asyncio.sleep(0.005)
        model.type(None)
        await client.event("chat", state="final")
        assert 2 <= len(written) <= (monotonic() - began) / WRITTEN_EVERY_S + 2


async def test_thoughts_and_tool_calls_are_seen_on_another_gateway(tmp_path: Path, url: str) -> None:
    gate = asyncio.Event()

    class Thinker(Typist):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            if not self.requests:
                yield ThinkingDelta("Hm. ")
                self.requests.append(request)
                await self.keys.get()
                yield self._end(Reply(thinking="Hm. ", calls=(call("look", at="it"),)))
            else:
                yield self._end(Reply(text="seen"))

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def look(context: ToolContext, at: str) -> str:
            await gate.wait()
            return f"saw {at}"

    model = Thinker()
    async with watched(tmp_path, url, model, equip=equip) as (one, client):
        await client.ask("sessions.messages.subscribe", key="main")
        await one.submit("main", "go")
        thought = await client.event("agent", stream="thinking")
        assert thought["data"] == {"delta": "Hm. "}
        model.type(None)
        begun = await client.event("agent", stream="tool")
        assert begun["data"]["phase"] == "start"
        assert (begun["data"]["name"], begun["data"]["args"]) == ("look", {"at": "it"})
        gate.set()
        await client.event("chat", state="final")
        tools = [event["data"]["phase"] for event in client.seen("agent") if event["stream"] == "tool"]
        assert tools in (["start"], ["start", "result"])  # the end of the run may come before that of the call is read


async def test_a_stream_of_the_openai_door_grows_with_a_run_elsewhere(tmp_path: Path, url: str) -> None:
    model = Typist()
    async with gateways(tmp_path, url, model) as (one, other):
        run = await one.submit("main", "go")
        model.type("Once ")
        pieces: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            async for piece in follow(other.runtime, run, OpenWaits()):
                if isinstance(piece, str):
                    pieces.append(piece)
                    model.type("upon a time.", None) if len(pieces) == 1 else None
                elif not isinstance(piece, Pause):
                    assert piece.reply == "Once upon a time."
        assert pieces[0] == "Once " and "".join(pieces) == "Once upon a time."


async def test_a_reply_goes_on_to_grow_when_another_gateway_has_taken_its_run_over(tmp_path: Path, url: str) -> None:
    model = Typist()
    async with watched(tmp_path, url, model, count=3) as (one, client):
        await client.ask("sessions.messages.subscribe", key="main")
        run = await one.submit("main", "go")
        model.type("Half ")
        await grown(client, "Half ")
        execute(url, "UPDATE processes SET ended_at = 1 WHERE number = %s", one.store.number)
        async with asyncio.timeout(PATIENCE_S):
            while len(model.requests) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        model.type("Whole", None)
        await grown(client, "Whole", "final")
        assert run.id in {event["runId"] for event in client.seen("chat")}
