"""Each gateway more costs the database little: what one commits, another looks at only if somebody there waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.measures import FULL
from bench.transactions import KINDS, MOST_TIMES_ONE, gateways
from bench.world import BenchWorld

from tests.support.postgres import Cluster

pytestmark = pytest.mark.anyio

RUNS = 20
EACH_SECOND = 2.0
"""How many transactions a gateway may make in a second in which nothing happens."""


@pytest.mark.timeout(180)  # four gateways are started, on a machine that may be busy
async def test_a_run_takes_hardly_more_transactions_on_three_gateways_than_on_one(tmp_path: Path) -> None:
    needed: dict[int, dict[str, float]] = {}
    cluster = Cluster()
    try:
        for count in (1, 3):
            folder = tmp_path / str(count)
            folder.mkdir()
            async with gateways(BenchWorld(FULL, folder), cluster, count) as nodes:
                assert nodes.idle.transactions < EACH_SECOND * count
                needed[count] = {kind: (await nodes.cost(kind, RUNS))[0].transactions for kind in KINDS}
    finally:
        cluster.remove()
    print(needed)
    assert not [kind for kind in KINDS if needed[3][kind] > MOST_TIMES_ONE * needed[1][kind]], needed
