"""A gateway without doors, asked in its own process. Takes the state folder and the load, answers with `Done`."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable

import msgspec
import uvloop

from backchannel import Gateway
from bench.processes.load import TURNS, Done, Loop
from bench.processes.models import FREE, QUESTION


def asker(gateway: Gateway, name: str) -> Callable[[], Awaitable[object]]:
    """Ask sessions of this name, `TURNS` times each."""
    turns = itertools.count()
    return lambda: gateway.ask(f"agent:main:hook:{name}-{next(turns) // TURNS}", QUESTION)


async def work(state: str, sessions: int, seconds: float) -> Done:
    gateway = Gateway.open({"agents": {"list": [{"id": "main", "model": FREE.ref}]}}, state=state)
    gateway.add_model(FREE)
    async with gateway:
        calls = [asker(gateway, str(n)) for n in range(sessions)]
        await Loop(seconds / 6).run(calls)  # warm
        return await Loop(seconds).run(calls)


def main() -> None:
    given = msgspec.json.decode(sys.argv[1])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        done = runner.run(work(given["state"], given["sessions"], given["seconds"]))
    print(msgspec.json.encode(done).decode())


if __name__ == "__main__":
    main()
