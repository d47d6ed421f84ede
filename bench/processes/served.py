"""A gateway as `backchannel up` serves it, with the models of the bench. Says where it is in one line of JSON."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import msgspec
import uvloop

from backchannel.gateway.app import Gateway
from backchannel.gateway.auth import OperatorToken
from backchannel.gateway.logs import configure_logs
from backchannel.gateway.server import ListeningServer, serve
from bench.processes.holds import LoopHolds
from bench.processes.models import ASKS, ASKS_SECOND, CALLS, FREE, SECOND


def main() -> None:
    given = msgspec.json.decode(sys.argv[1])
    if (files := given.get("files")) is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    configure_logs("info", sys.stderr, as_json=True)
    gateway = Gateway.open(given["config"], state=Path(given["state"]))
    for model in (FREE, SECOND, ASKS, ASKS_SECOND, CALLS):
        gateway.add_model(model)

    def ready(place: ListeningServer, token: OperatorToken) -> None:
        if (holds := given.get("holds")) is not None:
            LoopHolds(Path(holds))
        print(msgspec.json.encode({"url": place.websocket_url, "token": token.token}).decode(), flush=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(gateway, ready))


if __name__ == "__main__":
    main()
