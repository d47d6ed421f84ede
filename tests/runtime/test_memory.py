"""Memory of a gateway: what is kept between requests is counted as what it takes, so its bound holds."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backchannel.core.contracts import ModelEvent, ModelReply, ModelRequest, Price
from backchannel.core.messages import TextBlock, Usage
from backchannel.runtime import kept
from tests.support.gateways import running

pytestmark = pytest.mark.anyio

SESSIONS, TURNS = 200, 300


class Forgetful:
    """A model that keeps nothing of what it is asked."""

    ref, context_window = "scripted/test", 200_000
    price: Price | None = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        text = TextBlock(text="All quiet: the three ships that were due have come in.")
        yield ModelReply(content=(text,), usage=Usage(), model=self.ref)


@pytest.mark.parametrize("keys", [[f"agent:main:hook:{n}" for n in range(SESSIONS)], ["main"] * TURNS])
async def test_kept_conversations_take_no_more_memory_than_is_counted(tmp_path: Path, keys: list[str]) -> None:
    async with running(tmp_path, Forgetful()) as gateway:
        await gateway.ask("agent:main:hook:warm", "hello")
        cache = gateway.runtime._conversations._cache
        tracemalloc.start()
        try:
            for key in keys:
                await gateway.ask(key, "What is the state of the harbour, and has anyone asked for the pilot?")
            gc.collect()
            counted, before = cache._size, tracemalloc.get_traced_memory()[0]
            cache.clear()
            gc.collect()
            taken = before - tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert taken < counted * 1.3


async def test_what_is_kept_of_many_sessions_stays_below_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST_KEPT_BYTES", 100_000)
    async with running(tmp_path, Forgetful()) as gateway:
        cache = gateway.runtime._conversations._cache
        for n in range(60):
            await gateway.ask(f"agent:main:hook:{n}", "hello " * 200)
            assert cache._size <= 100_000
        assert 5 < len(cache._kept) < 60
