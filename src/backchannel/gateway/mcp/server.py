"""The MCP server of one caller: its tools, and its calls.

A `Toolbox` decides the tools. At `/mcp` it has the tools of the token's holder; behind `backchannel mcp` it has those
that a running gateway offers there. The SDK takes most of a second to import, so this module is imported with the first
MCP request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import mcp_types as types
import msgspec
import structlog
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from backchannel.errors import GatewayError, ShuttingDown, UnknownTool
from backchannel.version import __version__

log = structlog.get_logger(__name__)
logging.getLogger("mcp").setLevel(logging.WARNING)  # at its own info level it logs every request

REPORT_EVERY_S = 1.0
IDEMPOTENCY_KEY = "backchannel/idempotencyKey"
"""The field of `_meta` with a client's idempotency key."""

_INSTRUCTIONS = (
    "The sessions of a Backchannel gateway: the conversations of its agents, with people and with each other. "
    "Begin with sessions_list; what it returns as `key` is what the other tools take as `sessionKey`."
)


class Toolbox(Protocol):
    """The tools of one caller."""

    async def tools(self) -> list[dict[str, Any]]:
        """List them in the form of `tools/list`."""

    async def call(self, name: str, arguments: dict[str, Any], call_id: str | None) -> dict[str, Any]:
        """Call one and return its result; `call_id` is its idempotency key.

        Raises:
            GatewayError: it was not carried out.
        """


def build_server(toolbox: Toolbox, *, report_every_s: float = REPORT_EVERY_S) -> Server[dict[str, Any]]:
    """Make an MCP server from a caller's tools."""

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
                call_id = read_call_id(params.model_dump(by_alias=True, include={"meta"}))
                return _result(await toolbox.call(params.name, params.arguments or {}, call_id))
        except ShuttingDown:
            raise  # no outcome of the call: it is the transport's to say how to come back for that
        except GatewayError as error:
            if error.wire()["details"]["code"] == UnknownTool.code:
                raise MCPError(types.INVALID_PARAMS, error.message, error.wire()) from error
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


Report = Callable[[float, float | None, str | None], Awaitable[None]]


@asynccontextmanager
async def reporting(report: Report, name: str, every_s: float) -> AsyncIterator[None]:
    """Report the seconds of a call at a steady pace until the context ends."""
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


def read_call_id(params: Mapping[str, Any]) -> str | None:
    """Read the idempotency key of a call, if its client gave one."""
    match params:
        case {"_meta": Mapping() as meta} if isinstance(call_id := meta.get(IDEMPOTENCY_KEY), str):
            return call_id
    return None


def _result(value: dict[str, Any]) -> types.CallToolResult:
    """Show a result as text for models, and as data for programs."""
    text = types.TextContent(text=msgspec.json.encode(value).decode())
    return types.CallToolResult(content=[text], structured_content=value)


def _failure(error: GatewayError) -> types.CallToolResult:
    text = types.TextContent(text=error.message)
    return types.CallToolResult(content=[text], structured_content={"error": error.wire()}, is_error=True)
