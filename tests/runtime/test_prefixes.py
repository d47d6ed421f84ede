"""Prefixes of requests over a real wire: sends, announces, sub-agents' posts and a restart move none of them."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from backchannel.core.keys import SessionKey
from backchannel.gateway.app import Gateway
from tests.support.gateways import dying, running, transcript_of
from tests.support.resting import at_rest
from tests.support.stub_provider import Answer, Asked, Call, StubProvider

pytestmark = pytest.mark.anyio

MAIN, OTHER = "agent:main:main", "agent:other:main"


def reply(asked: Asked) -> Answer:
    """Send, spawn or answer, by what was said last."""
    last = json.dumps(asked.messages[-1])
    if "ask the other" in last:
        send = {"sessionKey": OTHER, "message": "what is new?", "timeoutSeconds": 30}
        return Answer(text="I ask.", calls=(Call("sessions_send", send),))
    if "let a child look" in last:
        return Answer(text="I spawn.", calls=(Call("sessions_spawn", {"task": "look around"}),))
    return Answer(text="It is so.")


def settings(api: str, url: str) -> dict[str, Any]:
    provider = {"api": api, "baseUrl": url, "models": [{"id": "m", "contextWindow": 200_000}]}
    return {
        "agents": {"list": [{"id": "main"}, {"id": "other"}], "defaults": {"model": "acme/m"}},
        "models": {"providers": {"acme": provider}},
        "tools": {
            "allow": ["group:sessions", "look"],
            "sessions": {"visibility": "all"},
            "agentToAgent": {"enabled": True},
        },
    }


def without_marks(value: Any) -> Any:
    """Leave out the marks for the provider's cache: they are no part of what is compared."""
    if isinstance(value, dict):
        return {name: without_marks(part) for name, part in value.items() if name != "cache_control"}
    return [without_marks(part) for part in value] if isinstance(value, list) else value


def by_session(requests: list[Asked]) -> dict[str, list[dict[str, Any]]]:
    """Part the requests by their sessions: each has a mark of its own in its system prompt."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for asked in requests:
        body = without_marks(asked.body)
        found[json.dumps(body["system"] if "system" in body else body["messages"][0])].append(body)
    return found


def equip(gateway: Gateway) -> None:
    @gateway.tool(effects="none")
    async def look() -> str:
        return "nothing"


async def work(gateway: Gateway, turn: int) -> None:
    """Let sessions ask each other, let a child report, and leave a note."""
    for text in ("hello", "ask the other", "let a child look", "and now?"):
        await gateway.ask(MAIN, f"{turn}: {text}", timeout_s=30)
        await at_rest(gateway)
    await gateway.runtime.inject(SessionKey.parse(MAIN), "it rains", None)
    await gateway.ask(OTHER, f"{turn}: and you?", timeout_s=30)
    await at_rest(gateway)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_no_send_announce_post_or_restart_moves_the_beginning_of_a_request(tmp_path: Path, api: str) -> None:
    async with StubProvider(reply=reply) as stub:
        url = stub.base_url if api == "openai" else stub.base_url.removesuffix("/v1")
        for turn in range(3):
            life = dying if turn == 1 else running
            async with life(tmp_path, config=settings(api, url), equip=equip) as gateway:
                await work(gateway, turn)
                moved = [message.moved for key in (MAIN, OTHER) for message in await transcript_of(gateway, key)]
    assert stub.refused == [] and not any(moved)
    assert [asked for asked in stub.requests if asked.body["tool_choice"] in ("none", {"type": "none"})], "announces"
    talks = by_session(stub.requests)
    assert len(talks) == 5, "the main session, the other, and three children"
    for bodies in talks.values():
        assert len(bodies) >= 2
        for before, after in pairwise(bodies):
            assert after["tools"] == before["tools"]
            assert json.dumps(after["messages"]).startswith(json.dumps(before["messages"])[:-1])
