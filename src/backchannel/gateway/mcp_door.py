"""The MCP door: the session tools over streamable HTTP at `/mcp`.

Every request brings its token, and the token decides who calls: the operator, the session that the operator names in
the header `x-backchannel-session`, or the session that an agent's token is bound to. No argument of a tool can.
Nothing is kept between requests, so there is no stream to open (GET) and no session to end (DELETE).
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from backchannel.errors import GatewayError
from backchannel.gateway.auth import Access
from backchannel.gateway.auth import Caller as TokenHolder
from backchannel.gateway.callers import InvokeParams, caller_of, has_tool, invoke_as
from backchannel.gateway.messages import read_idempotency_key
from backchannel.gateway.openai_api import SESSION_HEADER
from backchannel.gateway.protocol import Scope as TokenScope
from backchannel.tools.base import SessionTool
from backchannel.tools.inputs import plain
from backchannel.tools.parts import Caller
from backchannel.tools.registry import SESSION_TOOLS, find_tool

if TYPE_CHECKING:
    from backchannel.gateway.app import Gateway

_INVALID_REQUEST = -32600


class McpDoor:
    """Serves the route."""

    def __init__(self, gateway: Gateway, access: Access) -> None:
        self._gateway = gateway
        self._access = access
        self._is_loaded = False

    def routes(self) -> list[Route]:
        return [Route("/mcp", self, methods=["POST"])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            toolbox = await self._toolbox(request)
            body = await request.body()
        except GatewayError as error:
            await _refusal(error)(scope, receive, send)
            return
        await self._load()
        from backchannel.gateway.mcp_server import build_server, serve_http

        limit = self._gateway.config.gateway.limits.body_bytes
        await serve_http(build_server(toolbox), scope, _again(body, receive), send, body_bytes=limit)

    async def _toolbox(self, request: Request) -> CallerTools:
        """Find out who calls, the same way as for `/tools/invoke`."""
        holder = await self._access.admit(request)
        session = request.headers.get(SESSION_HEADER)
        return CallerTools(self._gateway, holder, await caller_of(self._gateway, holder, session))

    async def _load(self) -> None:
        """Import what speaks MCP, once, in a thread: it takes most of a second, and the others are served meanwhile."""
        if not self._is_loaded:
            await asyncio.to_thread(import_module, "backchannel.gateway.mcp_server")
            self._is_loaded = True


class CallerTools:
    """The session tools, as far as a token's holder may use them for a caller."""

    def __init__(self, gateway: Gateway, holder: TokenHolder, caller: Caller) -> None:
        self._gateway = gateway
        self._holder = holder
        self._caller = caller

    async def tools(self) -> list[dict[str, Any]]:
        return [_shown(tool) for tool in SESSION_TOOLS if self._has_scope(tool) and self._has(tool)]

    async def call(self, name: str, arguments: dict[str, Any], call_id: str | None) -> dict[str, Any]:
        tool = find_tool(name)
        session = None if self._caller.key is None else str(self._caller.key)
        key = read_idempotency_key(call_id, "idempotencyKey")
        params = InvokeParams(tool=tool.name, args=arguments, session_key=session, idempotency_key=key)
        return plain(await invoke_as(self._gateway, self._holder, params))

    def _has_scope(self, tool: type[SessionTool]) -> bool:
        return self._holder.is_agent or TokenScope(f"operator.{tool.scope}") in self._holder.scopes

    def _has(self, tool: type[SessionTool]) -> bool:
        return has_tool(self._gateway, self._caller, tool.name)


def _shown(tool: type[SessionTool]) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.schema(),
        "annotations": {"readOnlyHint": tool.scope == "read", "openWorldHint": False},
    }


def _refusal(error: GatewayError) -> Response:
    """Show an error in the form that these clients read, with the headers that it has at every other route."""
    from backchannel.gateway.http import show_error  # which has this door among its routes

    plain = show_error(error)
    headers = {name: plain.headers[name] for name in ("www-authenticate", "retry-after") if name in plain.headers}
    shown = {"code": _INVALID_REQUEST, "message": error.message, "data": error.wire()}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": shown}, plain.status_code, headers)


def _again(body: bytes, receive: Receive) -> Receive:
    """Let a body that was read be read once more."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return left.pop() if left else await receive()

    return read
