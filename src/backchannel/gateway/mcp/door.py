"""The MCP door: the session tools over streamable HTTP at `/mcp`.

Every request has a token, and the token decides who calls: the operator, the session in the operator's header
`x-backchannel-session`, or the session of an agent's token. An argument never does. Between requests only the calls
that a client may resume are kept. A GET resumes the stream of one. There is no session to end (DELETE).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from backchannel.agents.loading import load
from backchannel.errors import GatewayError, InvalidRequest
from backchannel.gateway.auth import Access, InvokeParams, TokenHolder, caller_of, has_tool, invoke_as
from backchannel.gateway.errors import MCP_AT, show_error
from backchannel.gateway.fields import read_idempotency_key
from backchannel.gateway.openai.door import SESSION_HEADER
from backchannel.gateway.parts import GatewayParts
from backchannel.tools.base import Caller, SessionTool
from backchannel.tools.registry import SESSION_TOOLS, find_tool
from backchannel.wire.frames import TokenScope
from backchannel.wire.shapes import plain

if TYPE_CHECKING:
    from backchannel.gateway.mcp.http import McpHttp


_RESUMABLE = frozenset(tool.name for tool in SESSION_TOOLS if tool.scope == "write")


class McpDoor:
    """Serves the route."""

    def __init__(self, parts: GatewayParts, access: Access) -> None:
        self._parts = parts
        self._access = access
        self._http: McpHttp | None = None

    def routes(self) -> list[Route]:
        return [Route(MCP_AT, self)]

    def close(self) -> None:
        """End the waiting calls, since the gateway stops."""
        if self._http is not None:
            self._http.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            await self._serve(request, send)
        except GatewayError as error:
            await show_error(error, MCP_AT)(scope, receive, send)

    async def _serve(self, request: Request, send: Send) -> None:
        toolbox = await self._toolbox(request)
        resumes = request.method == "GET" and "last-event-id" in request.headers
        if request.method != "POST" and not resumes:
            await _not_served()(request.scope, request.receive, send)
            return
        http = await self._load()
        from backchannel.gateway.mcp.server import build_server

        serve = http.resume if resumes else http.post
        await serve(build_server(toolbox), toolbox.client, request, send)

    async def _toolbox(self, request: Request) -> CallerTools:
        """Find the caller, as `/tools/invoke` does."""
        holder = await self._access.admit(request)
        session = request.headers.get(SESSION_HEADER)
        return CallerTools(self._parts, holder, await caller_of(self._parts, holder, session))

    async def _load(self) -> McpHttp:
        """Import the MCP library once, in a thread, since it takes most of a second."""
        if self._http is None:
            await load(lambda: import_module("backchannel.gateway.mcp.http"))
        if self._http is None:  # another request may have come first
            from backchannel.gateway.mcp.http import McpHttp

            self._http = McpHttp(self._parts.store, self._parts.clock, _RESUMABLE)
        return self._http


class CallerTools:
    """The session tools that a token's holder may use for a caller."""

    def __init__(self, parts: GatewayParts, holder: TokenHolder, caller: Caller) -> None:
        self._parts = parts
        self._holder = holder
        self._caller = caller

    @property
    def client(self) -> tuple[str, str | None]:
        """The owner of a call, who alone can resume it: its token and its session."""
        return self._holder.token_id, None if self._caller.key is None else str(self._caller.key)

    async def tools(self) -> list[dict[str, Any]]:
        return [_shown(tool) for tool in SESSION_TOOLS if self._has_scope(tool) and self._has(tool)]

    async def call(self, name: str, arguments: dict[str, Any], call_id: str | None) -> dict[str, Any]:
        tool = find_tool(name)
        session = None if self._caller.key is None else str(self._caller.key)
        key = read_idempotency_key(call_id, "idempotencyKey")
        params = InvokeParams(tool=tool.name, args=arguments, session_key=session, idempotency_key=key)
        return plain(await invoke_as(self._parts, self._holder, params))

    def _has_scope(self, tool: type[SessionTool]) -> bool:
        return self._holder.is_agent or TokenScope(f"operator.{tool.scope}") in self._holder.scopes

    def _has(self, tool: type[SessionTool]) -> bool:
        return has_tool(self._parts, self._caller, tool.name)


def _shown(tool: type[SessionTool]) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.schema(),
        "annotations": {"readOnlyHint": tool.scope == "read", "openWorldHint": False},
    }


def _not_served() -> Response:
    served = "messages are posted here (GET takes up a stream by its Last-Event-ID)"
    refused = show_error(InvalidRequest(served), MCP_AT)
    return Response(refused.body, 405, {"allow": "POST, GET"}, "application/json")
