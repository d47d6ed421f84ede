"""A gateway with bridges to far ends, and what people there do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.contracts import Clock
from backchannel.core.delivery.channels import Channel
from backchannel.core.delivery.delivery import DeliveryState, Post, Receipt
from backchannel.core.facts import DeliveryChanged
from backchannel.gateway.app import Gateway
from backchannel.gateway.server import listening
from tests.gateway.client import OPERATOR
from tests.support.far_end import event, signed
from tests.support.gateways import CONFIG, Heard, echo, running


@dataclass
class ChannelDesk:
    """The gateway, its door, and what it tells."""

    gateway: Gateway
    http: httpx.AsyncClient
    heard: Heard
    url: str

    async def post(self, channel: str = "desk", **changed: Any) -> httpx.Response:
        """Post an event, as the far end does."""
        body, headers = signed(event(**changed))
        return await self.http.post(f"/channels/{channel}/inbound", content=body, headers=headers)

    async def say(self, channel: str = "desk", **changed: Any) -> dict[str, Any]:
        """Post an event that must be taken."""
        answer = await self.post(channel, **changed)
        assert answer.status_code == 200, answer.text
        taken: dict[str, Any] = answer.json()
        return taken

    async def receipts(self) -> list[Receipt]:
        """Read all receipts, oldest first."""
        return (await self.gateway.store.receipts(limit=1000))[::-1]

    async def send(self, post: Post) -> str:
        """Put a text in line; returns the id of its receipt."""
        return (await self.gateway.store.post(post)).delivery.id

    def states(self, delivery_id: str) -> list[DeliveryState]:
        """List the states that a delivery was told to be in."""
        facts = self.heard.of(DeliveryChanged)
        return [fact.delivery.state for fact in facts if fact.delivery.id == delivery_id]

    async def becomes(self, state: DeliveryState, delivery_id: str | None = None) -> Receipt:
        """Wait until a delivery, or the only one, is told to be in a state, and load it."""

        def told() -> list[str]:
            return [
                fact.delivery.id
                for fact in self.heard.of(DeliveryChanged)
                if fact.delivery.state is state and delivery_id in (None, fact.delivery.id)
            ]

        for receipt in await self.receipts():  # it may have been told before anyone listened
            if receipt.delivery.state is state and delivery_id in (None, receipt.delivery.id):
                return receipt
        await self.heard.until(lambda: bool(told()))
        return await self.gateway.store.receipt(told()[-1])


@asynccontextmanager
async def desk(
    state: Path,
    channels: dict[str, Any],
    *own: Channel,
    model: ScriptedModel | None = None,
    clock: Clock | None = None,
    **config: Any,
) -> AsyncIterator[ChannelDesk]:
    """Open a gateway with these channels."""
    whole = {**CONFIG, "channels": channels, "gateway": {"port": 0}, **config}

    def equip(gateway: Gateway) -> None:
        for channel in own:
            gateway.add_channel(channel)

    model = model or ScriptedModel(replies=echo)
    async with AsyncExitStack() as exits:
        opened = running(state, model, config=whole, equip=equip, clock=clock)
        gateway = await exits.enter_async_context(opened)
        url = ""
        if clock is None:  # a door's ticks would make a quick clock run away
            url = (await exits.enter_async_context(listening(gateway, OPERATOR))).url
        http = await exits.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False, timeout=20))
        yield ChannelDesk(gateway, http, Heard(gateway), url.replace("http", "ws", 1) + "/ws")
