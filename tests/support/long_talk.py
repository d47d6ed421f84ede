"""One long conversation in a small window, with tools, twenty facts, and three changes of the model."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

from backchannel.agents.scripted import Scripted, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.core.sessions import SessionPatch
from backchannel.gateway.app import Gateway
from tests.support.gateways import MAIN, running, session_of
from tests.support.remembering import Remembering

SMALL_TALK = "we talk about the weather for a while, and nothing of it matters much. " * 3
FORMS = ("scripted/first", "scripted/second", "scripted/third", "scripted/first")
"""The model changes three times."""
SETTINGS: dict[str, Any] = {
    "agents": {"list": [{"id": "main", "model": FORMS[0]}]},
    "tools": {"allow": ["look"]},
}


def with_tools(request: ModelRequest) -> Scripted | None:
    """Use a tool now and then, as agents do."""
    last = request.messages[-1]
    return [call("look"), call("look")] if last.role is Role.USER and last.text.endswith("look twice") else None


def equip(gateway: Gateway) -> None:
    @gateway.tool(effects="none")
    async def look() -> str:
        return "a long result " * 30


async def settled(gateway: Gateway) -> None:
    compaction = gateway.runtime.compaction
    while waiting := list(compaction._tasks.values()):
        await asyncio.gather(*waiting, return_exceptions=True)


async def talk(gateway: Gateway, scenes: dict[str, Remembering], messages: int) -> list[int]:
    """Let people talk; returns the memory in use at each tenth."""
    sizes: list[int] = []
    turns = messages // 2
    for n in range(turns):
        if n % (turns // len(FORMS)) == 0:
            model = FORMS[min(n // (turns // len(FORMS)), len(FORMS) - 1)]
            await gateway.store.patch_session(SessionKey.parse(MAIN), SessionPatch(model=model))
        text = f"fact f{n} is v{n}" if n % (turns // 20) == 0 else f"{n}: {SMALL_TALK}"
        await gateway.ask("main", f"{text} look twice" if n % 10 == 3 else text)
        if n % (turns // 10) == turns // 10 - 1:
            await settled(gateway)
            sizes.append(tracemalloc.get_traced_memory()[0])
            for scene in scenes.values():
                for kept in (scene.model.requests, scene.asked, scene.summaries):
                    kept.clear()
    return sizes


async def check(tmp_path: Path, messages: int) -> list[int]:
    scenes = {ref: Remembering(ref=ref, window=8_000, reply=with_tools) for ref in set(FORMS)}
    async with running(tmp_path, *(scene.model for scene in scenes.values()), config=SETTINGS, equip=equip) as gateway:
        await gateway.ask("main", "hello")
        sizes = await talk(gateway, scenes, messages)
        turns = messages // 2
        for n in range(0, turns, turns // 20):
            assert await gateway.ask("main", f"what is f{n}?") == f"v{n}"
        session = await session_of(gateway)
        kept = await gateway.store.history(session.session_id, limit=10)
        assert kept.has_more
        entry = await gateway.store.compaction(session.session_id)
        assert entry is not None and entry.messages > messages // 2
    assert not [problem for scene in scenes.values() for problem in scene.model.refused]
    return sizes
