"""A gateway with cron jobs whose clock is turned by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from backchannel.agents.scripted import Scripted, ScriptedModel
from backchannel.core.contracts import ModelRequest
from backchannel.gateway.app import Gateway
from tests.support.clocks import StageClock
from tests.support.far_channel import FAR, FarChannel
from tests.support.gateways import CONFIG, dying, running, settled
from tests.support.resting import until


def job(schedule: str, **more: Any) -> dict[str, Any]:
    return {"id": "j", "schedule": schedule, "message": "work", **more}


def echo(request: ModelRequest) -> Scripted:
    return f"re: {request.messages[-1].text.splitlines()[-1]}"


class Clockwork:
    """The gateway, its clock and its far end."""

    def __init__(self, gateway: Gateway, clock: StageClock, far: FarChannel) -> None:
        self.gateway, self.clock, self.far = gateway, clock, far

    async def turn_to(self, *times: str) -> None:
        """Let it be each of these times, until nothing is left to do."""
        for at in times:
            self.clock.turn_to(at)
            await self.rest()

    async def rest(self) -> None:
        """Wait until nothing is due and no run is left to do."""
        await rest(self.gateway, self.clock)

    async def fired(self) -> list[str]:
        """List what fired, by the times in the run ids, in order."""
        runs = (await self.gateway.store.runs(limit=1000))[::-1]
        return [run.id.removeprefix("cron:j:") for run in runs]


async def rest(gateway: Gateway, clock: StageClock) -> None:
    """Wait until nothing is due, no command of a job runs, and no run is left to do."""
    await all_seen_to(gateway, clock)
    async with asyncio.timeout(20):
        await until(gateway, partial(_no_check, gateway))
    await settled(gateway)


async def _no_check(gateway: Gateway) -> bool:
    return all(each.stored.checking is None for each in await gateway.cron.list())


async def all_seen_to(gateway: Gateway, clock: StageClock) -> None:
    """Wait until the timers have seen to everything that is due."""
    async with asyncio.timeout(20):
        while (await gateway.store.due(1)).timers:
            clock.stir()


@asynccontextmanager
async def clockwork(
    state: Path,
    clock: StageClock,
    *jobs: dict[str, Any],
    model: ScriptedModel | None = None,
    dies: bool = False,
    **config: Any,
) -> AsyncIterator[Clockwork]:
    """Open a gateway with these jobs; it ends cleanly, or as by a power cut."""
    far = FarChannel()
    whole = {**CONFIG, "channels": {"far": FAR}, "cron": {"jobs": list(jobs)}, **config}

    def equip(gateway: Gateway) -> None:
        gateway.add_channel(far)

    model = model or ScriptedModel(replies=echo)
    opened: AbstractAsyncContextManager[Gateway]
    opened = (dying if dies else running)(state, model, config=whole, equip=equip, clock=clock)
    async with opened as gateway:
        yield Clockwork(gateway, clock, far)
