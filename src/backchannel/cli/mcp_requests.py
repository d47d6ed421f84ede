"""The requests of an MCP client that are under way, each of which is answered before the program ends.

A client that is a pipe writes all it has and closes its end at once. The SDK breaks off what is under way when its
input ends, so the end is kept from it until the last answer is out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

Incoming: TypeAlias = SessionMessage | Exception
Streams: TypeAlias = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def answered_stdio() -> AsyncIterator[Streams]:
    """Open standard input and output for an MCP server; the input ends when all that came by it is answered."""
    to_server, incoming = anyio.create_memory_object_stream[Incoming]()
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage]()
    under_way = _UnderWay()

    async def read() -> None:
        async with to_server:
            async for item in wire_in:
                under_way.asked(item)
                await to_server.send(item)
            await under_way.wait_for_none()

    async def write() -> None:
        async with wire_out:
            async for message in from_server:
                await wire_out.send(message)
                under_way.answered(message)

    async with stdio_server() as (wire_in, wire_out), asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        tasks.create_task(write())
        yield incoming, outgoing


class _UnderWay:
    """The ids of the requests that have no answer yet."""

    def __init__(self) -> None:
        self._ids: set[types.RequestId] = set()
        self._none = asyncio.Event()
        self._none.set()

    def asked(self, item: Incoming) -> None:
        """Take what the client sent. What it no longer wants need not be answered."""
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, types.JSONRPCRequest):
            self._ids.add(message.id)
            self._none.clear()
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._end((message.params or {}).get("requestId"))

    def answered(self, sent: SessionMessage) -> None:
        """Take what the server sent."""
        if isinstance(sent.message, types.JSONRPCResponse | types.JSONRPCError):
            self._end(sent.message.id)

    def _end(self, request: types.RequestId | None) -> None:
        if request is not None:
            self._ids.discard(request)
        if not self._ids:
            self._none.set()

    async def wait_for_none(self) -> None:
        await self._none.wait()
