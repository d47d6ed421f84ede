"""MCP for one caller: which tools it has, and what becomes of a call.

Nothing here decides anything: a `Toolbox` does, and there are two. At `/mcp` it is what the token's holder may use;
behind `backchannel mcp` it is what a running gateway offers there. The SDK takes most of a second to import, so this
module is imported when MCP is first spoken, not when the gateway starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import mcp_types as types
import msgspec
import structlog
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import Receive, Scope, Send

from backchannel.errors import GatewayError
from backchannel.version import __version__

log = structlog.get_logger(__name__)
logging.getLogger("mcp").setLevel(logging.WARNING)  # at its own info level it tells every request

REPORT_EVERY_S = 1.0
IDEMPOTENCY_KEY = "backchannel/idempotencyKey"
"""Where in `_meta` a client says what makes a repeated call the same call."""

_INSTRUCTIONS = (
    "The sessions of a Backchannel gateway: the conversations of its agents, with people and with each other. "
    "Begin with sessions_list; what it returns as `key` is what the other tools take as `sessionKey`."
)


class Toolbox(Protocol):
    """The tools that one caller has."""

    async def tools(self) -> list[dict[str, Any]]:
        """List them, each as it stands in an answer to `tools/list`."""

    async def call(self, name: str, arguments: dict[str, Any], call_id: str | None) -> dict[str, Any]:
        """Call one and return its result; `call_id` makes a repeated call the same call.

        Raises:
            GatewayError: it was not carried out.
        """


def build_server(toolbox: Toolbox, *, report_every_s: float = REPORT_EVERY_S) -> Server[dict[str, Any]]:
    """Make an MCP server of a caller's tools."""

    async def list_tools(
        context: ServerRequestContext[dict[str, Any]], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        try:
            return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in await toolbox.tools()])
        except GatewayError as error:
            raise MCPError(types.INTERNAL_ERROR, error.message, error.wire()) from error

    async def call_tool(
        context: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            async with reporting(context.session.report_progress, params.name, report_every_s):
                return _result(await toolbox.call(params.name, params.arguments or {}, _call_id(params)))
        except GatewayError as error:
            return _failure(error)
        except Exception:  # the edge of a request: it is answered, and the connection goes on
            log.exception("a tool failed", tool=params.name)
            return _failure(GatewayError("something went wrong; the log says what"))

    return Server(
        "backchannel",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_http(
    server: Server[dict[str, Any]], scope: Scope, receive: Receive, send: Send, *, body_bytes: int
) -> None:
    """Answer one HTTP request. Nothing is remembered from one to the next, so each has a transport of its own.

    `Host` and `Origin` were checked before, for this as for every request.
    """
    manager = StreamableHTTPSessionManager(
        server,
        stateless=True,
        json_response=False,  # an answer in JSON has no room for progress
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        max_request_body_size=body_bytes,
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)


Report = Callable[[float, float | None, str | None], Awaitable[None]]


@asynccontextmanager
async def reporting(report: Report, name: str, every_s: float) -> AsyncIterator[None]:
    """Report how many seconds a call has taken, again and again until the context ends."""
    reporter = asyncio.create_task(_report(report, name, every_s))
    try:
        yield
    finally:
        reporter.cancel()


async def _report(report: Report, name: str, every_s: float) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        await asyncio.sleep(every_s)
        taken_s = loop.time() - began
        await report(taken_s, None, f"{name} has taken {taken_s:.0f} s so far")


def _call_id(params: types.CallToolRequestParams) -> str | None:
    given: dict[str, Any] = {**(params.meta or {})}
    call_id = given.get(IDEMPOTENCY_KEY)
    return call_id if isinstance(call_id, str) else None


def _result(value: dict[str, Any]) -> types.CallToolResult:
    """Show a result twice: as text for models, and as it is for programs."""
    text = types.TextContent(text=msgspec.json.encode(value).decode())
    return types.CallToolResult(content=[text], structured_content=value)


def _failure(error: GatewayError) -> types.CallToolResult:
    text = types.TextContent(text=error.message)
    return types.CallToolResult(content=[text], structured_content={"error": error.wire()}, is_error=True)
