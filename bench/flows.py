"""Flows that `bench.walk` follows: a run, a send, a spawn, a message over Telegram.

Each flow has a round on sessions of its own, which have had a run before. A flow is over when its model was asked so
many times and the package is quiet.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from tests.support.telegram import Telegram

from backchannel.core.contracts import ModelEvent, ModelRequest
from bench.client import Client
from bench.processes.models import QUESTION, CallingModel, please_call

MODEL = "bench/walk"
TURNS = 2


class CountedModel(CallingModel):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__(MODEL, 0)
        self.asked = 0
        self._changed = asyncio.Condition()

    async def was_asked(self, times: int) -> None:
        """Wait until it was asked so often."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.asked >= times)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        async with self._changed:
            self.asked += 1
            self._changed.notify_all()
        async for event in super().stream(request):
            yield event


@dataclass(frozen=True, slots=True)
class Doors:
    """The ways into the gateway that a flow may take."""

    client: Client
    telegram: Telegram | None


@dataclass(frozen=True, slots=True)
class Flow:
    """One kind of work from its first request to its end. Both functions get the name of the round."""

    prepare: Callable[[Doors, str], Awaitable[None]]
    begin: Callable[[Doors, str], Awaitable[None]]
    model_calls: int
    over_telegram: bool = False


async def _run(doors: Doors, name: str) -> None:
    accepted, ended = doors.client.agent(f"agent:main:{name}", QUESTION)
    run_id = json.loads(await accepted)["runId"]
    await doors.client.ask("agent.wait", {"runId": run_id})
    await ended


async def _send(doors: Doors, name: str) -> None:
    arguments = {"sessionKey": _target(name), "message": QUESTION, "timeoutSeconds": 60}
    _, ended = doors.client.agent(f"agent:main:{name}", please_call("sessions_send", arguments))
    await ended


async def _spawn(doors: Doors, name: str) -> None:
    _, ended = doors.client.agent(f"agent:main:{name}", please_call("sessions_spawn", {"task": QUESTION}))
    await ended


async def _telegram(doors: Doors, name: str) -> None:
    assert doors.telegram is not None
    count = len(doors.telegram.posts)
    doors.telegram.say(QUESTION)
    await doors.telegram.posted(count + 1)


async def _meet(doors: Doors, name: str) -> None:
    """Speak to the sessions of a round from a chat, so that they have one to announce to."""
    for session in (f"agent:main:{name}", _target(name)):
        message = {"sessionKey": session, "message": QUESTION, "idempotencyKey": session}
        started = json.loads(await doors.client.ask("chat.send", message))
        await doors.client.ask("agent.wait", {"runId": started["runId"]})


def _target(name: str) -> str:
    return f"agent:main:{name}-target"


FLOWS = {
    "run": Flow(prepare=_run, begin=_run, model_calls=1),
    "send": Flow(prepare=_meet, begin=_send, model_calls=2 + 1 + TURNS + 1),  # who asks, target, turns, announce
    "spawn": Flow(prepare=_meet, begin=_spawn, model_calls=2 + 1 + 1),  # parent, child, announce
    "telegram": Flow(prepare=_telegram, begin=_telegram, model_calls=1, over_telegram=True),
}


async def enter_telegram(flow: Flow, exits: AsyncExitStack) -> Telegram | None:
    """Start the stand-in for Telegram, if the flow needs it."""
    return await exits.enter_async_context(Telegram()) if flow.over_telegram else None


def settings_for(telegram: Telegram | None) -> dict[str, Any]:
    """Make the settings of a gateway for a flow. A reply to Telegram comes in one piece: drafts follow a clock."""
    return {
        "agents": {"defaults": {"model": MODEL}},
        "tools": {"sessions": {"visibility": "all"}},
        "session": {"agentToAgent": {"maxPingPongTurns": TURNS}},
        "gateway": {"port": 0},
        "channels": {"telegram": telegram.settings(streaming=False)} if telegram else {},
    }
