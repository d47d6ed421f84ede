"""Prefixes of requests over a takeover: what another gateway sends begins with what the dead one has sent."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from backchannel.gateway.app import Gateway
from tests.cluster.gateways import gateways
from tests.runtime.test_prefixes import settings, without_marks
from tests.support.gateways import MAIN, ended, transcript_of
from tests.support.postgres import new_database
from tests.support.stub_provider import Answer, Asked, Call, Hang, StubProvider

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


def equip(gateway: Gateway) -> None:
    @gateway.tool(effects="none")
    async def look() -> str:
        return "nothing"


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_gateway_that_takes_a_run_over_sends_the_same_bytes_first(tmp_path: Path, api: str) -> None:
    is_held = True

    def reply(asked: Asked) -> Answer | Hang:
        nonlocal is_held
        last = json.dumps(asked.messages[-1])
        if "look first" in last:
            return Answer(text="I look.", calls=(Call("look", {}),))
        if is_held and "nothing" in last and "hold" in json.dumps(asked.messages[-3:]):
            is_held = False
            return Hang()
        return Answer(text="It is so.")

    async with StubProvider(reply=reply) as stub:
        config = settings(api, stub.base_url if api == "openai" else stub.base_url.removesuffix("/v1"))
        async with gateways(tmp_path, new_database(), config=config, equip=equip) as (one, other):
            for text in ("hello", "look first"):
                await one.ask(MAIN, text)
            await other.ask(MAIN, "and you?")
            run = await one.submit(MAIN, "hold: look first")
            await stub.asked(6)  # it has called its tool, and waits for the model
            one.store.set_lease_end(0)
            await one.store.abandon()  # as a process that dies: nothing of it is committed from here on
            assert (await ended(other, run.id, 40)).reply == "It is so."
            await other.ask(MAIN, "look first")
            moved = [message.moved for message in await transcript_of(other)]
    assert (stub.refused, [reason for reason in moved if reason], is_held) == ([], [], False)
    bodies = [without_marks(asked.body) for asked in stub.requests]
    assert len(bodies) == 9 and bodies[5] == bodies[6], "the request of the dead gateway is sent again"
    for before, after in pairwise(bodies):
        assert (after["tools"], after.get("system")) == (before["tools"], before.get("system"))
        assert json.dumps(after["messages"]).startswith(json.dumps(before["messages"])[:-1])
