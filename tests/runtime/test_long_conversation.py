"""A long conversation in a small window: early facts are answered late, and no bad sequence is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backchannel.core.keys import SessionKey
from backchannel.core.sessions import SessionPatch
from tests.support.gateways import MAIN, running, session_of
from tests.support.long_talk import SMALL_TALK, check, equip, settled
from tests.support.remembering import FACT, QUESTION, UNKNOWN
from tests.support.stub_provider import Answer, Asked, Call, StubProvider

pytestmark = pytest.mark.anyio


async def test_facts_told_early_are_answered_late_whatever_model_answers(tmp_path: Path) -> None:
    await check(tmp_path, 400)


WIRES = {"first": "openai", "second": "anthropic"}


def reply(asked: Asked) -> Answer:
    """Answer from what came over the wire, and nothing else; use tools now and then."""
    text = json.dumps(asked.body)
    if "You write the summary" in text:
        return Answer(text="\n".join(f"fact {name} is {value}" for name, value in dict(FACT.findall(text)).items()))
    last = json.dumps(asked.messages[-1])
    if "look twice" in last:
        return Answer(calls=(Call("look", {}), Call("look", {})))
    questions = QUESTION.findall(last)
    return Answer(text=dict(FACT.findall(text)).get(questions[-1], UNKNOWN) if questions else "noted")


def _address(stub: StubProvider, api: str) -> str:
    return stub.base_url if api == "openai" else stub.base_url.removesuffix("/v1")


async def test_each_wire_takes_every_request_and_the_model_answers_from_the_summary(tmp_path: Path) -> None:
    async with StubProvider(reply=reply) as stub:
        providers = {
            name: {"api": api, "baseUrl": _address(stub, api), "models": [{"id": "m", "contextWindow": 8_000}]}
            for name, api in WIRES.items()
        }
        config = {
            "agents": {"list": [{"id": "main", "model": "first/m"}]},
            "tools": {"allow": ["look"]},
            "models": {"providers": providers},
        }
        async with running(tmp_path, config=config, equip=equip) as gateway:
            for turn, name in enumerate([*WIRES, *WIRES]):
                await gateway.store.patch_session(SessionKey.parse(MAIN), SessionPatch(model=f"{name}/m"))
                await gateway.ask("main", f"fact f{turn} is v{turn}")
                for n in range(24):
                    await gateway.ask("main", f"{n}: {SMALL_TALK * 3}{' look twice' if n % 6 == 3 else ''}")
                await settled(gateway)
            assert [await gateway.ask("main", f"what is f{n}?") for n in range(4)] == ["v0", "v1", "v2", "v3"]
            session = await session_of(gateway)
            assert await gateway.store.compaction(session.session_id) is not None
        assert stub.refused == []
        assert {asked.path for asked in stub.requests} == {"/v1/chat/completions", "/v1/messages"}
