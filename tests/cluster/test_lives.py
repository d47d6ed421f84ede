"""Gateways of one database are killed and paused: what they acknowledged is done, and done once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cluster.lives import live_and_die
from tests.support.postgres import new_database

pytestmark = pytest.mark.anyio
LEAST = 51


@pytest.mark.timeout(180)  # processes are started again and again, on a machine that may be busy
async def test_whatever_was_acknowledged_is_done_once_while_gateways_die_and_pause(tmp_path: Path) -> None:
    url = new_database()  # of its own: triggers are put into it
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    nodes = await live_and_die(tmp_path, url, seconds=8, lease_s=2.0, seed=seed, least=LEAST)
    assert nodes.kills + nodes.pauses > 0
    assert len(nodes.accepted) >= LEAST
