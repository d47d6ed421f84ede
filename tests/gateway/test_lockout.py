"""Strangers at the door: idle ones and wrong tokens, from another process, keep nobody out who comes with a right one.

The bench has the same in its row `lockout`, with more logins and a goal for the slowest.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench.client import connected
from bench.lockout import DOORS, OPEN, besieged, log_in
from bench.measures import QUICK
from bench.processes.load import check_ok
from bench.world import BenchWorld

pytestmark = pytest.mark.anyio

LOGINS = 15
IDLE = 1_100
MANY_MORE_THAN_FILES = 1_400
FILES = 1_024


async def test_every_right_login_is_let_in_at_every_door(tmp_path: Path) -> None:
    world = BenchWorld(QUICK, tmp_path)
    async with world.gateway(settings=OPEN) as gateway:
        assert all(None not in took for took in (await log_in(gateway, 1)).values())
        async with besieged(world, gateway, IDLE):
            took = await log_in(gateway, LOGINS)
    failed = {door: times.count(None) for door, times in took.items()}
    assert failed == dict.fromkeys(DOORS, 0)
    print({door: f"at most {max(filter(None, times)):.0f} ms" for door, times in took.items()})


async def test_accepted_runs_end_well_while_strangers_want_more_files_than_there_are(tmp_path: Path) -> None:
    world = BenchWorld(QUICK, tmp_path)
    async with (
        world.gateway(settings=OPEN, files=FILES) as gateway,
        besieged(world, gateway, MANY_MORE_THAN_FILES),
        connected(gateway.url, gateway.token) as client,
    ):
        for number in range(20):
            accepted, ended = client.agent(f"agent:main:hook:{number}", "hello")
            assert msgspec.json.decode(await accepted)["status"] == "accepted"
            check_ok(await ended)
        assert all(None not in took for took in (await log_in(gateway, 2)).values())
