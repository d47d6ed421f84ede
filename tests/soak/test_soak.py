"""A short soak: real processes, killed with -9 while sessions exchange. `make soak` does it for longer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soak.soak import Soak

pytestmark = pytest.mark.anyio
SECONDS = 8.0
SESSIONS = 20


@pytest.mark.timeout(300)
async def test_twenty_sessions_exchange_while_the_gateway_is_killed_and_nothing_is_lost_or_doubled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(1 << 32)
    soak = Soak(tmp_path, seconds=SECONDS, sessions=SESSIONS, seed=seed)
    try:
        counts = await soak.run()
    except BaseException:
        with capsys.disabled():
            print(f"\n  the seed was {seed}")
        raise
    assert soak.kills
    assert counts.exchanges.total() and counts.taken and counts.work.total() and counts.phones.total()
