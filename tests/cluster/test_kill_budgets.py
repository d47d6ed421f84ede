"""Gateways of one database are killed while they spend one budget: its provider's bill never passes the limit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cluster.spenders import spend_and_die
from tests.support.postgres import new_database

pytestmark = pytest.mark.anyio


@pytest.mark.timeout(180)  # processes are started again and again, on a machine that may be busy
async def test_64_runs_on_three_gateways_that_are_killed_never_pass_a_limit_and_leave_less_than_one_call(
    tmp_path: Path,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    print(await spend_and_die(tmp_path, new_database(), {"usd": 1.0}, seconds=1, seed=seed, price=15.0))
