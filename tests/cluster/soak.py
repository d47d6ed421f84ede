"""Races gateways of one database, then kills and pauses them, also while they spend: see `make soak-cluster`."""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

from tests.cluster.lives import live_and_die
from tests.cluster.races import racers
from tests.cluster.spenders import spend_and_die
from tests.support.postgres import new_database

BUDGETS: tuple[dict[str, Any], ...] = ({"usd": 1.0}, {"tokens": 2_000_000}, {"runs": 600})
BUDGET_S = 15.0


def main() -> None:
    reader = argparse.ArgumentParser()
    reader.add_argument("--seconds", type=float, default=60)
    reader.add_argument("--races", type=int, default=1000)
    reader.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = reader.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run_races(Path(folder), given.races))
        living = live_and_die(Path(folder), new_database(), seconds=given.seconds, lease_s=2.0, seed=given.seed)
        asyncio.run(living)
    print("everything that was accepted was done, and done once")
    asyncio.run(run_budgets(given.seed))


async def run_races(folder: Path, times: int) -> None:
    """Ask two gateways at the same moment, so many times each."""
    async with racers(folder, new_database()) as pair:
        races: list[Callable[[int], Awaitable[None]]] = [pair.circles, pair.labels, pair.children, pair.keys]
        for race in races:
            began = monotonic()
            await race(times)
            print(
                f"{times} times {race.__name__}: one side refused each time ({monotonic() - began:.0f} s)", flush=True
            )


async def run_budgets(seed: int) -> None:
    """Let gateways spend a budget of each kind while they are killed."""
    for budget in BUDGETS:
        with tempfile.TemporaryDirectory() as folder:
            told = await spend_and_die(Path(folder), new_database(), budget, seconds=BUDGET_S, seed=seed)
        print(told, flush=True)


if __name__ == "__main__":
    main()
