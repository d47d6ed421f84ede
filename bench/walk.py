"""Counts what one run passes through: the functions and files of the package that are called for it.

`python -m bench.walk` serves a gateway in this process, has one run to warm it up, and then counts the calls of an
`agent` and an `agent.wait` over a real socket. Fewer files are fewer to read for whoever follows a run.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from backchannel.gateway.app import Gateway
from backchannel.gateway.auth import OperatorToken
from backchannel.gateway.server import ListeningServer, serve
from bench.client import connected
from bench.processes.models import FREE


async def walk(state: Path) -> Counter[CodeType]:
    """Serve a gateway, and count the calls of one run by function."""
    gateway = Gateway.open({"agents": {"defaults": {"model": FREE.ref}}, "gateway": {"port": 0}}, state=state)
    gateway.add_model(FREE)
    ready: asyncio.Future[tuple[ListeningServer, OperatorToken]] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(gateway, lambda place, token: ready.set_result((place, token))))
    place, token = await ready
    calls: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and "/src/backchannel/" in frame.f_code.co_filename:
            calls[frame.f_code] += 1

    async with connected(place.websocket_url, token.token) as client:
        for text in ("warm up", "counted"):
            if text == "counted":
                threading.setprofile(count)
                sys.setprofile(count)
            accepted, ended = client.agent("main", text)
            run_id = json.loads(await accepted)["runId"]
            await client.ask("agent.wait", {"runId": run_id})
            await ended
        sys.setprofile(None)
        threading.setprofile(None)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return calls


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        calls = asyncio.run(walk(Path(folder)))
    files = Counter[str]()
    for code, count in calls.items():
        files[code.co_filename.partition("/src/backchannel/")[2]] += count
    for name, count in files.most_common():
        print(f"{count:5} {name}")
    print(f"{len(calls)} functions in {len(files)} files, {calls.total()} calls")


if __name__ == "__main__":
    main()
