"""A move in a process of its own, made to be killed: `python -m tests.support.mover <state> <url>`.

It says a line for each part that is on the other side, and goes on when it is told to.
"""

from __future__ import annotations

import sys
from pathlib import Path

from backchannel.storage.databases import database_at
from backchannel.storage.moves import move_state


def step(table: str, rows: int) -> None:
    print(f"{table} {rows}", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    move_state(database_at(f"sqlite:///{Path(sys.argv[1]) / 'backchannel.db'}"), sys.argv[2], step)
    print("done", flush=True)
