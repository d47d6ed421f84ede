"""Events of a run that a client starts: they follow the answer that names the run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import websockets

from .client import OPERATOR
from .conftest import World

pytestmark = pytest.mark.anyio
CONNECT = {"minProtocol": 4, "maxProtocol": 4, "client": {"id": "test", "mode": "cli"}, "auth": {"token": OPERATOR}}
KEY = "agent:speaker:main"


async def frames_of(world: World, *requests: tuple[str, dict[str, Any]], finals: int) -> list[dict[str, Any]]:
    """Connect, send these requests at once, and read all frames until so many conversations have ended."""
    frames: list[dict[str, Any]] = []
    async with asyncio.timeout(20), websockets.connect(world.url, compression=None) as socket:
        for id, (method, params) in enumerate((("connect", CONNECT), ("sessions.subscribe", {}), *requests)):
            await socket.send(json.dumps({"type": "req", "id": str(id), "method": method, "params": params}))
            while id < 2 and (not frames or frames[-1]["type"] != "res" or frames[-1]["id"] != str(id)):
                frames.append(json.loads(await socket.recv()))
        while sum(frame.get("payload", {}).get("state") == "final" for frame in frames) < finals:
            frames.append(json.loads(await socket.recv()))
    return frames


def is_of_run(frame: dict[str, Any], run_id: str) -> bool:
    return bool(frame["type"] == "event" and frame["payload"].get("runId") == run_id)


@pytest.mark.parametrize("method", ["chat.send", "agent", "sessions.send", "sessions.create"])
async def test_the_answer_comes_before_what_the_run_says(world: World, method: str) -> None:
    named = {"key" if method.startswith("sessions.") else "sessionKey": KEY}
    frames = await frames_of(world, (method, {**named, "message": "speak", "idempotencyKey": "r1"}), finals=1)
    answered = next(n for n, frame in enumerate(frames) if frame.get("payload", {}).get("runId") == "r1")
    assert frames[answered]["type"] == "res", frames[answered]
    told = [frame["payload"] for frame in frames[answered:] if is_of_run(frame, "r1")]
    assert told[0]["stream"] == "lifecycle" and told[-1]["state"] == "final"


async def test_each_of_several_requests_at_once_is_answered_before_its_run_speaks(world: World) -> None:
    ids = [f"r{n}" for n in range(8)]
    sends = [("chat.send", {"sessionKey": KEY, "message": "speak", "idempotencyKey": id}) for id in ids]
    frames = await frames_of(world, *sends, finals=8)
    for id in ids:
        first = next(frame for frame in frames if frame.get("payload", {}).get("runId") == id)
        assert first["type"] == "res", first
    numbers = [frame["seq"] for frame in frames if frame["type"] == "event"]
    assert numbers == sorted(numbers)


async def test_the_answer_to_a_command_comes_before_its_event(world: World) -> None:
    send = ("chat.send", {"sessionKey": KEY, "message": "/help", "idempotencyKey": "c1"})
    frames = await frames_of(world, send, finals=1)
    assert [frame["type"] for frame in frames if frame.get("payload", {}).get("runId") == "c1"] == ["res", "event"]
