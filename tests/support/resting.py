"""Waiting until a gateway has done what there is to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from backchannel.core.delivery.delivery import DeliveryState
from backchannel.core.runs import RunState
from backchannel.gateway.app import Gateway

ALL = 1_000_000


async def until(gateway: Gateway, holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds; it is looked at whenever the gateway tells something."""
    changed = asyncio.Event()
    unlisten = gateway.runtime.hub.listen(lambda event: changed.set())
    try:
        while True:
            changed.clear()
            if await holds():
                return
            await changed.wait()
    finally:
        unlisten()


async def at_rest(gateway: Gateway) -> None:
    """Wait until no run is left to do, nothing is left to send, and no draft to remove."""

    async def nothing_left() -> bool:
        if await gateway.store.runs(states=(RunState.QUEUED, RunState.RUNNING), limit=1):
            return False
        for state in (DeliveryState.PENDING, DeliveryState.SENDING):
            if await gateway.store.receipts(state=state, limit=1):
                return False
        # One look in the end, not one a state: a delivery of several parts goes back and forth between the two.
        receipts = await gateway.store.receipts(limit=ALL)
        if any(receipt.delivery.state.is_open for receipt in receipts):
            return False
        return not await gateway.store.drafts()

    await until(gateway, nothing_left)
