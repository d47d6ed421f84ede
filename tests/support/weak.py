"""Loops of a gateway that fail once, each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from backchannel.gateway.app import Gateway
from backchannel.runtime import recovery
from backchannel.runtime.cluster import echoing
from backchannel.service import SupervisedLoop

PATIENCE_S = 20.0


def make_loops_weak(monkeypatch: pytest.MonkeyPatch) -> list[SupervisedLoop]:
    """Let each supervised loop fail when it is first started; returns those that have."""
    failed: list[SupervisedLoop] = []
    keep = SupervisedLoop.keep

    async def keep_weak(self: SupervisedLoop, work: Callable[[], Awaitable[None]]) -> None:
        async def weak() -> None:
            if self not in failed:
                failed.append(self)
                raise OSError("one fault")
            await work()

        await keep(self, weak)

    monkeypatch.setattr(SupervisedLoop, "keep", keep_weak)
    monkeypatch.setattr(recovery, "SIGN_OF_LIFE_S", 0.01)
    monkeypatch.setattr(echoing, "WANTED_AGAIN_S", 0.01)
    monkeypatch.setattr(echoing, "_POLL_S", 0.01)
    return failed


async def see_loops_recover(gateways: Sequence[Gateway], failed: list[SupervisedLoop]) -> set[str]:
    """Wait until each loop has failed and is up again; returns their names."""
    services = [service for gateway in gateways for service in gateway.runtime._services()]
    moved = [gateway.runtime._wait for gateway in gateways] + [gateway.runtime.compaction for gateway in gateways]
    loops = {kept for service in services for kept in service.kept} - {
        service._state
        for service in moved  # no loops: units that wait for the database, and summaries, move them
    }
    async with asyncio.timeout(PATIENCE_S):
        while not (loops <= set(failed) and all(loop.health.is_up for loop in loops)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert set(failed) == loops, "every loop belongs to a service, which shows it"
    assert {loop.health.error for loop in loops} == {"OSError: one fault"}
    assert {loop.health.next_try_ms for loop in loops} == {None}
    return {loop.name for loop in loops}
