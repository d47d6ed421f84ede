"""One long conversation in a small window, with tools and twenty facts; both real wires and a scripted model answer."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from pathlib import Path
from typing import Any

from backchannel.agents.scripted import Scripted, call
from backchannel.core.contracts import ModelRequest
from backchannel.core.keys import SessionKey
from backchannel.core.messages import Role
from backchannel.core.sessions import SessionPatch
from backchannel.gateway.app import Gateway
from tests.support.gateways import MAIN, running, session_of, transcript_of
from tests.support.remembering import FACT, QUESTION, UNKNOWN, Remembering
from tests.support.stub_provider import Answer, Asked, Call, StubProvider

SMALL_TALK = "we talk about the weather for a while, and nothing of it matters much. " * 3
WINDOW = 8_000
FORMS = ("scripted/first", "one/m", "two/m", "scripted/first")
"""The model changes three times: a scripted one, and one on each wire."""
WIRES = {"one": "openai", "two": "anthropic"}


def settings(stub: StubProvider) -> dict[str, Any]:
    providers = {
        name: {
            "api": api,
            "baseUrl": stub.base_url if api == "openai" else stub.base_url.removesuffix("/v1"),
            "models": [{"id": "m", "contextWindow": WINDOW}],
        }
        for name, api in WIRES.items()
    }
    return {
        "agents": {"list": [{"id": "main", "model": FORMS[0]}]},
        "tools": {"allow": ["look"]},
        "models": {"providers": providers},
    }


def with_tools(request: ModelRequest) -> Scripted | None:
    """Use a tool now and then, as agents do."""
    last = request.messages[-1]
    return [call("look"), call("look")] if last.role is Role.USER and last.text.endswith("look twice") else None


def over_wire(asked: Asked) -> Answer:
    """Answer from what came over the wire, and nothing else; use tools now and then."""
    text = json.dumps(asked.body)
    if "You write the summary" in text:
        return Answer(text="\n".join(f"fact {name} is {value}" for name, value in dict(FACT.findall(text)).items()))
    last = json.dumps(asked.messages[-1])
    if "look twice" in last:
        return Answer(calls=(Call("look", {}), Call("look", {})))
    questions = QUESTION.findall(last)
    return Answer(text=dict(FACT.findall(text)).get(questions[-1], UNKNOWN) if questions else "noted")


def equip(gateway: Gateway) -> None:
    @gateway.tool(effects="none")
    async def look() -> str:
        return "a long result " * 30


async def settled(gateway: Gateway) -> None:
    compaction = gateway.runtime.compaction
    while waiting := list(compaction._tasks.values()):
        await asyncio.gather(*waiting, return_exceptions=True)


async def answered_by(gateway: Gateway, model: str) -> None:
    await gateway.store.patch_session(SessionKey.parse(MAIN), SessionPatch(model=model))


async def talk(gateway: Gateway, scene: Remembering, stub: StubProvider, turns: int, length: int) -> list[int]:
    """Let people talk; returns the memory in use at each tenth."""
    sizes: list[int] = []
    for n in range(turns):
        if n % (turns // len(FORMS)) == 0:
            await answered_by(gateway, FORMS[min(n // (turns // len(FORMS)), len(FORMS) - 1)])
        text = f"fact f{n} is v{n}" if n % (turns // 20) == 0 else f"{n}: {SMALL_TALK * length}"
        await gateway.ask("main", f"{text} look twice" if n % 10 == 3 else text)
        if n % (turns // 10) == turns // 10 - 1:
            await settled(gateway)
            for kept in (scene.model.requests, scene.asked, scene.summaries, stub.requests):
                kept.clear()  # what the stand-ins keep is not the gateway's
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    return sizes


async def check(tmp_path: Path, messages: int, *, length: int = 1) -> list[int]:
    """Talk for so many messages, each of `length` pieces of small talk, and ask for what was said early."""
    scene, turns = Remembering(ref=FORMS[0], window=WINDOW, reply=with_tools), messages // 2
    async with (
        StubProvider(reply=over_wire) as stub,
        running(tmp_path, scene.model, config=settings(stub), equip=equip) as gateway,
    ):
        for model in reversed(FORMS):  # what they import counts for no tenth
            await gateway.ask("main", "hello")
            await answered_by(gateway, model)
        sizes = await talk(gateway, scene, stub, turns, length)
        for model in FORMS[:3]:
            await answered_by(gateway, model)
            for n in range(0, turns, turns // 20):
                assert await gateway.ask("main", f"what is f{n}?") == f"v{n}", model
        entry = await gateway.store.compaction((await session_of(gateway)).session_id)
        assert entry is not None and entry.messages > messages // 2
        writers = {message.compaction.model for message in await transcript_of(gateway) if message.compaction}
        assert writers == set(FORMS)
    assert scene.model.refused == [] and stub.refused == []
    return sizes
