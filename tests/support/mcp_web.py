"""An MCP server at an address that behaves as a test says, well or badly."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class McpAddress:
    """Its state; what it answers is decided by the tool that is called, and by `status`."""

    def __init__(self) -> None:
        self.status: int | None = None
        """If set, what every request is refused with."""
        self.sessions: set[str] = set()
        self.headers: list[dict[str, str]] = []
        self.called: list[str] = []
        self.cancelled = asyncio.Event()

    async def post(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        if self.status is not None:
            return Response("no", self.status)
        message = json.loads(await request.body())
        match message["method"]:
            case "initialize":
                self.sessions.add(session := f"s{len(self.headers)}")
                info = {"serverInfo": {"name": "t", "version": "1"}, "capabilities": {"tools": {}}}
                result = {"protocolVersion": message["params"]["protocolVersion"], **info}
                return _answer(message, result, {"mcp-session-id": session})
            case "server/discover":
                error = {"code": -32601, "message": "Method not found"}
                return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error}, 400)
            case "notifications/cancelled":
                self.cancelled.set()
        if request.headers.get("mcp-session-id") not in self.sessions:
            return Response("unknown session", 404)
        if "id" not in message:
            return Response(status_code=202)
        if message["method"] == "tools/list":
            names = ("echo", "endless", "crowd", "hang", "page", *BAD)
            return _answer(message, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
        return await self._call(message)

    async def _call(self, message: dict[str, Any]) -> Response:
        self.called.append(name := message["params"]["name"])
        match name:
            case "endless":
                return StreamingResponse(_endless(), media_type="application/json")
            case "crowd":
                return _answer(message, {"content": [{"type": "text", "text": "x"}] * 200_000})
            case "hang":
                await self.cancelled.wait()
            case "page":
                return Response("<html>", media_type="text/html")
            case name if name in BAD:
                return BAD[name](message["id"])
        return _answer(message, {"content": [{"type": "text", "text": "heard"}]})

    async def other(self, request: Request) -> Response:
        return Response(status_code=405)


def _answer(message: dict[str, Any], result: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)


def _body(id: int, value: bytes, text: bytes = b"") -> bytes:
    result = b'{"content":[{"type":"text","text":"%b"}],"structuredContent":{"a":%b}}' % (text, value)
    return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (id, result)


def _json(body: bytes, **headers: str) -> Response:
    return Response(body, media_type="application/json", headers={k.replace("_", "-"): v for k, v in headers.items()})


def _event(body: bytes, end: bytes = b"\n") -> Response:
    return Response(end.join((b"data: " + body, b"", b"")), media_type="text/event-stream")


HALVES = b"a\\ud800 b\\ud83d\\ud83d\\ude00 c\xff \\\\ud800"
LISTS = b"[" + b"[]," * 100 + b"1],"
CROWD = b"[" + LISTS * 10_000 + b"1]"
BAD: dict[str, Callable[[int], Response]] = {
    "crowd_of_lines": lambda id: _event(_body(id, CROWD.replace(LISTS, LISTS + b"\ndata: "))),
    "crowd_hidden": lambda id: _event(_body(id, CROWD.replace(LISTS, LISTS + b'\nevent: "\ndata: '))),
    "crowd_returns": lambda id: _event(_body(id, CROWD.replace(LISTS, LISTS + b"\r\ndata: ")), b"\r\n"),
    "wide": lambda id: _json(_body(id, b"1", "漢".encode() * 5_000_000)),
    "compressed": lambda id: _json(gzip.compress(_body(id, CROWD)), content_encoding="gzip"),
    "halves": lambda id: _json(_body(id, b"1", HALVES)),
    "halves_in_an_event": lambda id: _event(_body(id, b"1", HALVES)),
}
"""Answers that no SDK would give."""


async def _endless() -> AsyncIterator[bytes]:
    yield b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "'
    while True:
        yield b"x" * 65536
        await asyncio.sleep(0)  # when nobody reads any more, this is where it is stopped


@asynccontextmanager
async def served(app: Starlette | McpAddress, port: int = 0) -> AsyncIterator[str]:
    """Serve it on a real socket; gives its address."""
    if isinstance(app, McpAddress):
        routes = [Route("/mcp", app.post, methods=["POST"]), Route("/mcp", app.other, methods=["GET", "DELETE"])]
        app = Starlette(routes=routes)
    with socket.create_server(("127.0.0.1", port)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            await serving
