"""Races gateways of one database, then kills and pauses them: see `make soak-cluster`."""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

from tests.cluster.lives import live_and_die
from tests.cluster.races import racers
from tests.support.postgres import new_database


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


if __name__ == "__main__":
    main()
