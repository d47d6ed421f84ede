"""Kills and pauses gateways of one database for a minute: `python -m tests.cluster.soak [--seconds 60] [--seed 1]`."""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from pathlib import Path

from tests.cluster.lives import live_and_die
from tests.support.postgres import new_database


def main() -> None:
    reader = argparse.ArgumentParser()
    reader.add_argument("--seconds", type=float, default=60)
    reader.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = reader.parse_args()
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live_and_die(Path(folder), new_database(), seconds=given.seconds, lease_s=2.0, seed=given.seed))
    print("everything that was accepted was done, and done once")


if __name__ == "__main__":
    main()
