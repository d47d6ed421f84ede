"""A node: a thermometer that connects under a name of its own, says what it measures and hears the answer.
It has its own session and nothing else, and reads there what it missed while it was away.

Prints:

    the kitchen hears: 31 degrees, so open a window.
    missed while away: 18 degrees, so all is well.
    refused: a node may not call sessions.list (it may call …)
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from backchannel import FunctionContext, Gateway
from backchannel.gateway.server import listening

TOKEN = "the-operators-token"  # for a real device: `backchannel tokens create --session agent:main:node-kitchen`


class Node:
    """A connection, and what came over it that was no answer."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **params: Any) -> Any:
        await self.socket.send(json.dumps({"type": "req", "id": method, "method": method, "params": params}))
        while True:
            frame = json.loads(await self.socket.recv())
            if frame["type"] == "event":
                self.events.append(frame)
            elif not frame["ok"]:
                raise RuntimeError(frame["error"]["message"])
            else:
                return frame["payload"]

    async def reply(self, run_id: str) -> str:
        """Wait for the reply; it may have come before the answer that says which run it is of."""
        while True:
            for event in self.events:
                chat = event["payload"]
                if event["event"] == "chat" and chat["runId"] == run_id and chat["state"] == "final":
                    return str(chat["message"]["content"][0]["text"])
            self.events.append(json.loads(await self.socket.recv()))


@asynccontextmanager
async def connected(url: str, node_id: str) -> AsyncIterator[Node]:
    async with connect(url, proxy=None) as socket:
        node = Node(socket)
        await node.call("connect", minProtocol=4, maxProtocol=4, role="node", nodeId=node_id, auth={"token": TOKEN})
        yield node


async def main() -> None:
    gateway = Gateway.open({"gateway": {"port": 0}})
    is_away = asyncio.Event()

    @gateway.agent("main")
    async def butler(run: FunctionContext) -> str:
        if run.text == "18":
            await is_away.wait()
        return f"{run.text} degrees, so {'open a window' if int(run.text) > 28 else 'all is well'}."

    async with gateway, listening(gateway, TOKEN) as place:
        async with connected(place.websocket_url, "kitchen") as node:
            sent = await node.call("node.message", text="31", idempotencyKey="reading-1")
            print("the kitchen hears:", await node.reply(sent["runId"]))
            last_seen = (await node.call("node.history"))["messages"][-1]["id"]
            cold = await node.call("node.message", text="18", idempotencyKey="reading-2")
        is_away.set()
        await gateway.runtime.wait(cold["runId"], 10)

        async with connected(place.websocket_url, "kitchen") as node:
            missed = (await node.call("node.history", after=last_seen))["messages"]
            print("missed while away:", missed[-1]["content"][0]["text"])
            try:
                await node.call("sessions.list")
            except RuntimeError as refused:
                print("refused:", refused)


asyncio.run(main())
