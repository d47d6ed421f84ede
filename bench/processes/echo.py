"""The bare server that floors are measured on: the gateway's web server and way to write, with nothing behind."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import msgspec
import uvicorn
import uvloop
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from backchannel.gateway.ws.transport import JoinedWrites


class JoinedProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's protocol, with the gateway's way to write."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]  # each is one by its methods


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Send back each text; one that begins with a number is answered with so many bytes. HTTP is told ok."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        text = message["text"]
        await send({"type": "websocket.send", "text": "x" * int(text) if text.isdecimal() else text})


async def serve(port: int) -> None:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.listen(128)
    config = uvicorn.Config(
        echo,
        lifespan="off",
        ws=JoinedProtocol,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
    )
    print(msgspec.json.encode({"url": f"ws://127.0.0.1:{bound.getsockname()[1]}/", "token": ""}).decode(), flush=True)
    await uvicorn.Server(config).serve(sockets=[bound])


def main() -> None:
    given = msgspec.json.decode(sys.argv[1])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(given.get("port", 0)))


if __name__ == "__main__":
    main()
