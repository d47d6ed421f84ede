"""The person of the soak who answers what agents ask for, sometimes in two ways at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import websockets

from backchannel.core.policy.answering import Answerer
from backchannel.core.policy.approvals import ApprovalDecided, ApprovalState
from backchannel.errors import InvalidRequest
from backchannel.gateway.app import Gateway
from tests.gateway.client import Client, Refused, connected
from tests.soak.hands import drawn, is_denied
from tests.soak.lives import Lives
from tests.soak.served import NAME, TOKEN

PAUSE_S = 0.05


def decision(name: str) -> ApprovalDecided:
    return ApprovalDecided.DENY if is_denied(name) else ApprovalDecided.APPROVE


class Approver:
    """Answers whatever gateway is there, until it is told to stop."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self.contrary = 0
        """Answers that came too late, because the other one was first."""

    async def answer_all(self) -> None:
        """Answer until this is cancelled."""
        while True:
            place = await self._lives.at()
            with suppress(OSError, TimeoutError, websockets.WebSocketException):
                async with connected(place.url.replace("http", "ws", 1) + "/ws", TOKEN) as client:
                    while True:
                        await self._answer(client)
                        await asyncio.sleep(PAUSE_S)
            await asyncio.sleep(PAUSE_S)

    async def _answer(self, client: Client) -> None:
        asked = (await client.ask("approvals.list", state="pending"))["approvals"]
        await asyncio.gather(*(self._answer_one(client, approval) for approval in asked))

    async def _answer_one(self, client: Client, approval: dict[str, Any]) -> None:
        name = NAME.findall(approval["args"]["command"])[-1]
        said = decision(name)
        words = [said] if drawn(name, "contrary") < 0.7 else [said, _other(said)]
        answers = [client.ask("approvals.answer", id=approval["id"], decision=word.value) for word in words]
        for outcome in await asyncio.gather(*answers, return_exceptions=True):
            if isinstance(outcome, Refused):
                assert outcome.code == "shutting_down" or "already" in str(outcome), outcome
                self.contrary += outcome.code != "shutting_down"
            elif isinstance(outcome, BaseException):
                raise outcome


def _other(said: ApprovalDecided) -> ApprovalDecided:
    return ApprovalDecided.APPROVE if said is ApprovalDecided.DENY else ApprovalDecided.DENY


async def answer_within(gateway: Gateway) -> None:
    """Answer what a gateway of this process asks, until this is cancelled."""
    while True:
        for approval in await gateway.store.approvals(state=ApprovalState.PENDING, limit=100):
            said = decision(NAME.findall(approval.arguments)[-1])
            with suppress(InvalidRequest):
                await gateway.store.answer_approval(approval.id, said, Answerer.operator("soak"))
        await asyncio.sleep(PAUSE_S)
