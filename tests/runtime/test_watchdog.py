"""The watchdog: what holds the event loop is counted, and named where it can be."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from backchannel.core.sessions import Session
from backchannel.runtime.watchdog import BOUND_S, WARN_USED_S
from tests.support.gateways import MAIN, ended, request, running
from tests.support.logs import captured_logs

pytestmark = pytest.mark.anyio


def hold(session: Session) -> None:
    """Hold the loop, as a unit does that has too much to do."""
    ends = time.thread_time() + WARN_USED_S + BOUND_S
    while time.thread_time() < ends:
        pass


async def test_a_unit_that_holds_the_loop_is_counted_and_named(tmp_path: Path) -> None:
    with captured_logs() as logs:
        async with running(tmp_path, ScriptedModel(replies=["done"])) as gateway:
            before = gateway.runtime.watchdog.stalls
            await gateway.runtime.submit(request(MAIN, "go", id="r"), hold)
            await ended(gateway, "r")
            async with asyncio.timeout(20):
                while gateway.runtime.watchdog.stalls == before:
                    await gateway.store.run_counts()
            assert gateway.runtime.watchdog.longest_s > BOUND_S
    [line] = [line for line in logs if line.get("unit") == "runs.accept"]
    assert (line["log_level"], line["event"]) == ("warning", "the event loop was held")
    assert line["unit_ms"] >= WARN_USED_S * 1000 and line["processor_ms"] > 0
