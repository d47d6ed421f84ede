"""Two gateways on one database: a summary of one never overtakes what the other has done meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backchannel.agents.scripted import Reply, Scripted, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.cut import Cut, read_cut
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Message, Role
from backchannel.gateway.app import Gateway
from tests.cluster.gateways import gateways, until
from tests.support.gateways import CONFIG, MAIN, ended, session_of, transcript_of
from tests.support.postgres import new_database
from tests.support.remembering import Remembering

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

FILLER = "we talk about the weather for a while, and nothing of it matters. " * 12
SETTINGS: dict[str, Any] = {**CONFIG, "tools": {"allow": ["wait"]}}


class Slow:
    """A summary that waits for its cue."""

    def __init__(self) -> None:
        self.gate, self.reached = asyncio.Event(), asyncio.Event()

    def __call__(self, request: ModelRequest) -> Scripted:
        return Reply(text="fact harbour is Varna", gate=self.gate, reached=self.reached)


async def settled(*gateways: Gateway) -> None:
    for gateway in gateways:
        while waiting := list(gateway.runtime.compaction._tasks.values()):
            await asyncio.gather(*waiting, return_exceptions=True)


async def grown(gateway: Gateway, slow: Slow) -> None:
    """Talk on one gateway until it begins a summary."""
    while not gateway.runtime.compaction._tasks:
        await gateway.ask("main", f"and then: {FILLER}")
    await slow.reached.wait()


async def view_of(gateway: Gateway) -> tuple[Cut, list[Message]]:
    session = await session_of(gateway)
    cut = read_cut((await gateway.store.context(session.session_id, max_bytes=1)).head.cut)
    return cut, [message for message in await transcript_of(gateway) if message.compaction is not None]


async def test_a_summary_is_put_off_while_another_gateway_works_on_the_session(tmp_path: Path) -> None:
    slow, calling, go = Slow(), asyncio.Event(), asyncio.Event()
    scene = Remembering(summary=slow)
    scene._reply = lambda request: [call("wait")] if request.messages[-1].text == "use the tool" else None

    def equip(gateway: Gateway) -> None:
        @gateway.tool(effects="none")
        async def wait() -> str:
            calling.set()
            await go.wait()
            return "waited"

    async with gateways(tmp_path, new_database(), scene.model, config=SETTINGS, equip=equip) as (one, other):
        await grown(one, slow)
        run = await other.submit("main", "use the tool")
        await calling.wait()
        slow.gate.set()
        await one.runtime.compaction._begun((await session_of(one)).session_id)
        assert (await view_of(one))[1] == []
        go.set()
        await ended(other, run.id)
        await settled(one, other)
        cut, entries = await view_of(one)
        assert cut.summary_id in {entry.id for entry in entries} and len(entries) <= 2
        messages = await transcript_of(one)
        at = next(n for n, message in enumerate(messages) if message.tool_calls)
        assert messages[at + 1].role is Role.TOOL_RESULT
        assert await other.ask("main", "what is harbour?") == "Varna"
        assert not scene.model.refused


async def test_of_two_summaries_of_one_session_one_counts(tmp_path: Path) -> None:
    slow = Slow()
    scene = Remembering(summary=slow)
    async with gateways(tmp_path, new_database(), scene.model, config=SETTINGS) as (one, other):
        await grown(one, slow)
        session = await session_of(other)
        asked = asyncio.create_task(other.runtime.compaction.asked(session, None))
        await until(lambda: len(scene.summaries) == 2)
        slow.gate.set()
        await asked
        await settled(one, other)
        cut, entries = await view_of(one)
        assert [entry.id for entry in entries] == [cut.summary_id]


async def test_a_reset_by_another_gateway_drops_the_summary(tmp_path: Path) -> None:
    slow = Slow()
    scene = Remembering(summary=slow)
    async with gateways(tmp_path, new_database(), scene.model, config=SETTINGS) as (one, other):
        await grown(one, slow)
        await other.store.reset_session(SessionKey.parse(MAIN))
        slow.gate.set()
        await settled(one, other)
        assert await view_of(one) == (Cut(), [])


async def test_a_gateway_that_takes_a_run_over_makes_the_summary_that_the_dead_one_was_making(tmp_path: Path) -> None:
    slow = Slow()
    scene = Remembering(summary=slow)
    url = new_database()
    async with gateways(tmp_path, url, scene.model, config=SETTINGS) as (one, other):
        await one.ask("main", "fact ship is Ada")
        for n in range(22):
            await one.ask("main", f"{n}: {FILLER}")
        run = await one.submit("main", f"what is harbour? {FILLER * 16}")
        await slow.reached.wait()  # the run waits for its summary
        one.store.set_lease_end(0)
        await one.store.abandon()  # as a process that dies: nothing of it is committed from here on
        slow.gate.set()
        assert (await ended(other, run.id, 40)).reply == "Varna"
        cut, entries = await view_of(other)
        assert [entry.id for entry in entries][-1:] == [cut.summary_id]
        assert not scene.model.refused
