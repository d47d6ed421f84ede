"""The bridge between an MCP client on standard input and output and the running gateway.

Every request goes to the gateway's own MCP door. So the token, `--as` and the rules of a session decide as they do
there. While the gateway is away the bridge waits. It then repeats the request under the same key, so no call is made
twice.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from string import punctuation
from typing import Any, TypeAlias
from urllib.parse import quote

import anyio
import httpx2
import mcp_types as types
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from backchannel.cli.client import OPEN_S, RECONNECT, CallFailed, Payload
from backchannel.cli.finding import GatewayAddress, NoGateway, find_gateway
from backchannel.cli.naming import find_key
from backchannel.cli.options import EXIT_INTERRUPTED, Options
from backchannel.cli.output import say
from backchannel.errors import GatewayError
from backchannel.gateway.mcp.server import IDEMPOTENCY_KEY, build_server

_PATIENCE_S = 30.0
"""How long a call waits for a gateway that went away, before it fails."""
SILENCE_S = 60.0
"""The longest silence within an answer. The gateway sends a sign of life every 15 s."""

Incoming: TypeAlias = SessionMessage | Exception
Streams: TypeAlias = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]

_THIS_MACHINE = ("all://localhost", "all://127.0.0.1", "all://[::1]")


def serve(options: Options, session: str | None) -> None:
    """Speak MCP until standard input is closed.

    It waits for a gateway that is not there yet: the MCP client may start first.

    Raises:
        NoGateway: what answers is something else.
        SessionNotFound, CallFailed: it does not let this client in, or not as this session.
    """
    try:
        asyncio.run(_serve(options, session))
    except* BrokenPipeError:
        os._exit(0)


async def _serve(options: Options, session: str | None) -> None:
    # The SDK reads in a thread that nothing but the end of the input wakes, and there is nothing to put in order.
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, os._exit, EXIT_INTERRUPTED)
    if (gone := _watch_reader(sys.stdout.fileno())) is not None:
        loop.add_reader(gone, os._exit, 0)
    async with http_client() as http:
        toolbox = GatewayTools(options, session, http)
        await toolbox.check()
        server = build_server(toolbox)
        async with answered_stdio() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


def _watch_reader(output: int) -> select.epoll | None:
    """Give a file that becomes readable when nobody reads our output any more; None without one.

    Otherwise only the next answer would notice it, which may take as long as a call.
    """
    if not hasattr(select, "epoll"):
        return None
    watch = select.epoll()
    try:
        watch.register(output, 0)  # errors and hang-ups are told always
    except OSError:  # a file never hangs up
        watch.close()
        return None
    return watch


def http_client() -> httpx2.AsyncClient:
    """Make a client that reaches a gateway on this machine directly, whatever proxy the environment names."""
    directly = dict.fromkeys(_THIS_MACHINE)
    return httpx2.AsyncClient(timeout=httpx2.Timeout(OPEN_S, read=SILENCE_S), mounts=directly)


class GatewayRefusal(CallFailed):
    """The gateway's error answer, passed on as it came."""

    def __init__(self, error: Payload) -> None:
        super().__init__(error)
        self._error = error

    def wire(self) -> dict[str, Any]:
        return self._error


class GatewayLost(Exception):
    """The gateway cannot be reached, or went away before it had answered; `missing` says so to people."""

    def __init__(self, missing: NoGateway) -> None:
        super().__init__(missing.message)
        self.missing = missing


class GatewayTools:
    """The tools that a running gateway offers to the operator, or to one session."""

    def __init__(
        self, options: Options, session: str | None, http: httpx2.AsyncClient, patience_s: float = _PATIENCE_S
    ) -> None:
        self._options = options
        self._name = session
        self._session: str | None = None
        self._http = http
        self._patience_s = patience_s
        self._on_return: str | None = None
        """What to say when a gateway answers; None while there is one."""

    async def check(self) -> None:
        """Check that the gateway lets this client in. Without a gateway, say that this waits for one.

        Raises:
            NoGateway, SessionNotFound, CallFailed
        """
        try:
            await self._post("tools/list", {})
        except GatewayLost as lost:
            say(f"{lost.missing.message}\nWaiting for it ...", err=True)
            self._on_return = "It is there."

    async def tools(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (await self._ask("tools/list", {}))["tools"]
        return listed

    async def call(self, name: str, arguments: dict[str, Any], call_id: str | None) -> dict[str, Any]:
        meta = {IDEMPOTENCY_KEY: call_id or uuid.uuid4().hex}
        answer = await self._ask("tools/call", {"name": name, "arguments": arguments, "_meta": meta})
        result: dict[str, Any] = answer["structuredContent"]
        if answer.get("isError"):
            raise GatewayRefusal(result["error"])
        return result

    async def _ask(self, method: str, params: Payload) -> Payload:
        """Make a request, and repeat it while there is no gateway.

        Raises:
            NoGateway: there was none for too long.
            CallFailed: it refused.
        """
        deadline, tries = time.monotonic() + self._patience_s, 0
        while True:
            try:
                answer = await self._post(method, params)
            except GatewayLost as lost:
                if time.monotonic() > deadline:
                    raise lost.missing from None
                self._went_away()
                tries += 1
                await asyncio.sleep(RECONNECT.pause_s(tries))
                continue
            self._came_back()
            return answer

    def _went_away(self) -> None:
        if self._on_return is None:
            say("The gateway went away. Waiting for it to come back ...", err=True)
            self._on_return = "It is back."

    def _came_back(self) -> None:
        if self._on_return is not None:
            say(self._on_return, err=True)
            self._on_return = None

    async def _post(self, method: str, params: Payload) -> Payload:
        """Make a request to the gateway at its current address.

        Raises:
            GatewayLost: no answer came.
            NoGateway: what answers is something else.
            CallFailed: it refused.
        """
        address = await self._find()
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        sending = self._http.stream("POST", _door_of(address), json=body, headers=self._headers(address))
        try:
            async with sending as response:
                if response.status_code != 200:
                    raise _refused(address, response.status_code, await response.aread())
                if response.headers["content-type"] == "application/json":
                    return _result(msgspec.json.decode(await response.aread()))
                async for event in httpx2.EventSource(response, max_event_size=None):
                    if event.data and "id" in (message := msgspec.json.decode(event.data)):
                        return _result(message)
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
            raise address.malformed from None
        except httpx2.TransportError as error:
            raise GatewayLost(address.missing) from error
        raise GatewayLost(address.missing)

    async def _find(self) -> GatewayAddress:
        """Find the gateway, and with the first one that answers, which session is meant."""
        try:
            address = find_gateway(self._options)
            if self._session is None and self._name is not None:
                self._session = await asyncio.to_thread(find_key, self._options, self._name)
        except NoGateway as missing:
            raise GatewayLost(missing) from None
        return address

    def _headers(self, address: GatewayAddress) -> dict[str, str]:
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": LATEST_HANDSHAKE_VERSION}
        if address.token is not None:
            headers["authorization"] = f"Bearer {address.token}"
        if self._session is not None:
            headers["x-backchannel-session"] = quote(self._session, safe=punctuation + " ")  # keys may be escaped so
        return headers


def _door_of(address: GatewayAddress) -> str:
    return address.url.replace("ws", "http", 1).removesuffix("/ws") + "/mcp"


def _refused(address: GatewayAddress, status: int, body: bytes) -> GatewayError:
    try:
        return GatewayRefusal(msgspec.json.decode(body)["error"]["data"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return NoGateway(f"What answers at {address.url} is no gateway, or is of another version (HTTP {status}).")


def _result(message: Payload) -> Payload:
    if "error" in message:
        data = message["error"].get("data")
        raise GatewayRefusal(data if isinstance(data, dict) and "message" in data else message["error"])
    result: Payload = message["result"]
    return result


@asynccontextmanager
async def answered_stdio() -> AsyncIterator[Streams]:
    """Open standard input and output for an MCP server; the input ends when all that came by it is answered.

    A client that is a pipe writes all it has and closes its end at once. The SDK cancels what is under way when its
    input ends, so the end is withheld until the last answer is written.
    """
    to_server, incoming = anyio.create_memory_object_stream[Incoming]()
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage]()
    open_requests = _OpenRequests()

    async def read() -> None:
        async with to_server:
            async for item in wire_in:
                open_requests.asked(item)
                await to_server.send(item)
            await open_requests.wait_for_none()

    async def write() -> None:
        async with wire_out:
            async for message in from_server:
                await wire_out.send(message)
                open_requests.answered(message)

    async with stdio_server() as (wire_in, wire_out), asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        tasks.create_task(write())
        yield incoming, outgoing


class _OpenRequests:
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
