"""Two gateways are asked at the same moment for what only one may have, many times over; one of them must be refused.

Each has its own connections to the database. The pairs of a batch run side by side, so that their transactions meet
those of others as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from backchannel.agents.scripted import Scripted, ScriptedModel, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.core.sessions import SessionPatch
from backchannel.errors import IdempotencyConflict, LabelInUse
from backchannel.gateway.app import Gateway
from tests.cluster.gateways import execute, gateways
from tests.support.gateways import settled, transcript_of

AT_ONCE = 25
"""How many pairs of a race run side by side."""
LIMIT_S = 120.0
CONFIG: dict[str, Any] = {
    "agents": {
        "list": [{"id": name, "model": "scripted/test"} for name in "ab"],
        "defaults": {"maxConcurrent": 5000, "subagents": {"maxChildren": 1, "maxConcurrent": 5000}},
    },
    "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
    "session": {"agentToAgent": {"maxPingPongTurns": 0}},
}


class Racers:
    """Two gateways on one database, and what their model says."""

    def __init__(self, pair: Sequence[Gateway], url: str, barriers: dict[str, asyncio.Barrier]) -> None:
        self.one, self.other = pair
        self._url = url
        self._barriers = barriers

    async def circles(self, times: int) -> None:
        """Two sessions ask each other and wait: exactly one of them is refused, and no wait is left."""
        await _in_batches(times, self._circle)
        await settled(self.one)
        assert execute(self._url, "SELECT count(*) FROM waits") == [(0,)]

    async def _circle(self, n: int) -> None:
        here, there = f"agent:a:circle{n}", f"agent:b:circle{n}"
        self._barriers[here] = self._barriers[there] = asyncio.Barrier(2)
        await asyncio.gather(
            self.one.ask(here, f"{here} asks {there}", timeout_s=LIMIT_S),
            self.other.ask(there, f"{there} asks {here}", timeout_s=LIMIT_S),
        )
        found = [await self._status(here), await self._status(there)]
        assert sorted(found) == ["error", "ok"], (n, found)

    async def _status(self, key: str) -> str:
        """Read what the only send of a session came to."""
        (result,) = [each for each in await transcript_of(self.one, key) if each.role is Role.TOOL_RESULT]
        return str(json.loads(result.text)["status"])

    async def labels(self, times: int) -> None:
        """Two sessions want one label: one gets it."""
        for side in "ab":
            await self.one.ask(f"agent:a:label-{side}", "hello")
        for n in range(times):  # one after the other: a session has one label at a time
            given = await asyncio.gather(
                self.one.store.patch_session(SessionKey.of("a", "label-a"), SessionPatch(label=f"label {n}")),
                self.other.store.patch_session(SessionKey.of("a", "label-b"), SessionPatch(label=f"label {n}")),
                return_exceptions=True,
            )
            assert _refused(given, LabelInUse) == 1, (n, given)

    async def children(self, times: int) -> None:
        """A session that may have one child starts two: one is refused."""
        await _in_batches(times, self._two_children)

    async def _two_children(self, n: int) -> None:
        requester = f"agent:a:parent{n}"
        await self.one.ask(requester, "hello")
        both = [gateway.tools(requester).sessions_spawn(task="dig") for gateway in (self.one, self.other)]
        answers = [answer["status"] for answer in await asyncio.gather(*both)]
        assert sorted(answers) == ["accepted", "forbidden"], (n, answers)

    async def keys(self, times: int) -> None:
        """Two messages come under one key: the same one is taken once, and of two different ones the second is not."""
        await _in_batches(times, self._one_key)
        taken = execute(self._url, "SELECT count(*) FROM runs WHERE session_key LIKE 'agent:a:key%%'")
        assert taken == [(2 * times,)]

    async def _one_key(self, n: int) -> None:
        session, both = f"agent:a:key{n}", (self.one, self.other)
        same = await asyncio.gather(*(gateway.submit(session, "hello", run_id=f"same-{n}") for gateway in both))
        assert {run.id for run in same} == {f"same-{n}"}
        differing = (gateway.submit(session, f"{gateway.store.number}", run_id=f"other-{n}") for gateway in both)
        answers = await asyncio.gather(*differing, return_exceptions=True)
        assert _refused(answers, IdempotencyConflict) == 1, (n, answers)


@asynccontextmanager
async def racers(folder: Path, url: str) -> AsyncIterator[Racers]:
    """Open two gateways for races; children of theirs never end, so that each counts."""
    barriers: dict[str, asyncio.Barrier] = {}

    async def say(request: ModelRequest) -> Scripted:
        last = request.messages[-1]
        if "You are a sub-agent" in request.system:
            await asyncio.Event().wait()
        if "announce step" in last.text:
            return "ANNOUNCE_SKIP"
        if last.role is Role.USER and " asks " in last.text:
            here, _, there = last.text.split("\n")[-1].partition(" asks ")
            await barriers[here[here.index("agent:") :]].wait()
            return [call("sessions_send", sessionKey=there, message="?", timeoutSeconds=int(LIMIT_S))]
        return "fine"

    async with gateways(folder, url, ScriptedModel(replies=say), config=CONFIG, lease_s=10) as pair:
        yield Racers(pair, url, barriers)


async def _in_batches(times: int, race: Callable[[int], Awaitable[None]]) -> None:
    for start in range(0, times, AT_ONCE):
        await asyncio.gather(*(race(n) for n in range(start, min(start + AT_ONCE, times))))


def _refused(answers: Sequence[object], error: type[BaseException]) -> int:
    """Count those that were refused; anything else that failed is not what was asked for."""
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(isinstance(each, error) for each in failed), failed
    return len(failed)
