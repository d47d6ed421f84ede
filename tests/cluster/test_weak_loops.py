"""Loops of a gateway among others: each is up again after a fault, also while no other gateway is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from backchannel.agents.scripted import ScriptedModel
from tests.cluster.gateways import gateways
from tests.support.gateways import echo
from tests.support.weak import make_loops_weak, see_loops_recover

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", [1, 2])
async def test_every_loop_of_a_gateway_on_a_shared_database_is_up_again_after_one_fault(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    failed = make_loops_weak(monkeypatch)
    own = {"recovery", "timers", "search", "lease", "echoes", "leftovers", "interests", "streams", "stream readers"}
    async with gateways(tmp_path, url, ScriptedModel(replies=echo), count=count, lease_s=6.0) as opened:
        assert await see_loops_recover(opened, failed) == own
