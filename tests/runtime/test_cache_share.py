"""The share of a long conversation that a provider reads from its cache, by the provider's own rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backchannel.gateway.app import Gateway
from tests.support.gateways import running
from tests.support.prompt_caches import AnthropicCache, OpenAiCache
from tests.support.stub_provider import Answer, Asked, Call, StubProvider

pytestmark = pytest.mark.anyio
TURNS = 200


def add_tools(gateway: Gateway) -> None:
    @gateway.tool(effects="none")
    async def look(place: str) -> str:
        """Look somewhere."""
        return f"In {place} there is a lamp, a cat and a letter. " * 8


def answer(asked: Asked) -> Answer:
    """Call a tool for every other question, twice in a row."""
    said = str(asked.messages[-1])
    if "look" in said and "lamp" not in said:
        return Answer(text="Let me see.", calls=(Call("look", {"place": "box"}), Call("look", {"place": "bag"})))
    return Answer(text="It is there, as I told you. " * 6)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("window", [200_000, 16_000], ids=["wide", "narrow"])
async def test_nine_tenths_of_a_conversation_with_tools_are_read_from_the_cache(
    tmp_path: Path, api: str, window: int
) -> None:
    cache: OpenAiCache | AnthropicCache = OpenAiCache() if api == "openai" else AnthropicCache()
    async with StubProvider(reply=answer) as stub:
        provider = {"api": api, "baseUrl": stub.base_url, "models": [{"id": "m", "contextWindow": window}]}
        config: dict[str, Any] = {
            "agents": {"defaults": {"model": "acme/m"}},
            "models": {"providers": {"acme": provider}},
            "tools": {"allow": ["look", "group:sessions"]},
        }
        async with running(tmp_path, config=config, equip=add_tools) as gateway:
            for n in range(TURNS):
                await gateway.ask("main", f"Question {n}: " + ("look there" if n % 2 else "what was it?"), timeout_s=60)
        assert stub.refused == []
        for asked in stub.requests:
            cache.count(asked.body)
    assert len(stub.requests) >= TURNS * 3 // 2  # and a few for summaries
    share = cache.read / cache.sent
    assert share >= 0.9, f"{share:.1%} of {cache.sent} tokens"
