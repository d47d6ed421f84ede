"""Streamable HTTP for MCP: a message in, JSON or a resumable stream out.

The SDK's own transport keeps sessions and events in one process, so after a crash a client finds nothing. Here only the
calls are kept, as rows. An event's id names its call. A client that comes back with the id gets the call carried out
again under its idempotency key, which finds the work of the first time. The SDK's types, checks and server are used as
they are. A request that is refused at once also gets a JSON-RPC error, in our own words, since clients show them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Container, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import anyio
import mcp_types as types
import msgspec
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.runner import modern_error_data, serve_one
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params, progress_token_from_params
from mcp.shared.message import MessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, is_version_at_least
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send

from backchannel.core.contracts import Clock
from backchannel.core.incoming_json import TooMuchJson, check_parts
from backchannel.core.records import McpCall
from backchannel.errors import NotFound, ShuttingDown
from backchannel.gateway.mcp.server import IDEMPOTENCY_KEY, read_call_id
from backchannel.wire.frames import KEEP_ALIVE_S

RETRY_MS = 5000
"""The pause before a client reconnects. The official ones try twice, so a restart may take twice as long."""
RESUMABLE_SINCE = "2025-11-25"
"""Clients of older versions cannot read an event without data."""

_SESSION, _LAST_EVENT = "mcp-session-id", "last-event-id"
_END = ".end"
"""The suffix of a stream's last event id. Some clients come back even after an error: there is nothing more."""
_EVENTS_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

Reply: TypeAlias = types.JSONRPCResponse | types.JSONRPCError
Client: TypeAlias = tuple[str, str | None]
"""The asker: the id of the token, and the calling session."""


class Calls(Protocol):
    """The store of calls."""

    def keep_mcp_call(self, call: McpCall) -> Awaitable[None]: ...

    def mcp_call(self, call_id: str) -> Awaitable[McpCall | None]: ...


class McpHttp:
    """Answers requests, and knows the running ones, so that a client can cancel one."""

    def __init__(self, calls: Calls, clock: Clock, resumable: frozenset[str]) -> None:
        self._calls = calls
        self._clock = clock
        self._resumable = resumable
        """The tools whose calls a client can resume; they are carried out even if nobody waits."""
        self._under_way: dict[tuple[object, ...], list[asyncio.Task[Reply | None]]] = {}
        self._is_open = True

    def close(self) -> None:
        """End all streams, which their clients can resume, so that they do not delay the stop."""
        self._is_open = False
        for work in [work for working in self._under_way.values() for work in working]:
            work.cancel()

    async def post(self, server: Server[dict[str, Any]], client: Client, request: Request, send: Send) -> None:
        """Answer a posted message."""
        try:
            posted = read_posted(await request.body(), request)
        except McpRefusal as refused:
            await _send_json(refused.error, refused.status, request, send)
            return
        if isinstance(posted, McpRequest):
            await self._answer(server, client, await self._kept(posted, client), request, send)
            return
        if posted is not None and posted.method == "notifications/cancelled":
            self._cancel(self._name(client, request, cancelled_request_id_from_params(posted.params)))
        await Response(status_code=202)(request.scope, request.receive, send)

    async def resume(self, server: Server[dict[str, Any]], client: Client, request: Request, send: Send) -> None:
        """Resume a stream that broke, by the id of its last event."""
        last = request.headers[_LAST_EVENT]
        if last.endswith(_END):
            await Response(status_code=204)(request.scope, request.receive, send)
            return
        call = await self._calls.mcp_call(last)
        if call is None or (call.token_id, call.session_key) != client:
            raise NotFound("there is no such stream (its call was made more than a day ago, or with another token)")
        message = types.JSONRPCRequest.model_validate_json(call.message)
        await self._answer(server, client, McpRequest(message, call.version, stream=call.id), request, send)

    async def _kept(self, asked: McpRequest, client: Client) -> McpRequest:
        """Store a resumable call before it begins."""
        if not (asked.calls(self._resumable) and is_version_at_least(asked.version, RESUMABLE_SINCE)):
            return asked
        kept = asked.named(uuid.uuid4().hex)
        call = McpCall(
            id=str(kept.stream),
            token_id=client[0],
            session_key=client[1],
            version=kept.version,
            message=kept.message.model_dump_json(by_alias=True, exclude_unset=True),
            created_at=self._clock.now_ms(),
        )
        await self._calls.keep_mcp_call(call)
        return kept

    async def _answer(
        self, server: Server[dict[str, Any]], client: Client, asked: McpRequest, request: Request, send: Send
    ) -> None:
        """Carry out a request and send its answer, unless its client disconnects or cancels it first."""
        if not self._is_open:
            raise ShuttingDown("the gateway is stopping: ask again when it is back")
        answer = HttpReply(request, send, asked)
        if asked.stream is not None:
            await answer.open()
        work = asyncio.create_task(_carry_out(server, asked, answer))
        try:
            with self._naming(self._name(client, request, asked.message.id), work):
                async with _running(answer.keep_alive()), _running(_cancel_when_gone(request.receive, work)):
                    await asyncio.wait([work])
            await self._end(answer, work, asked)
        finally:
            work.cancel()

    async def _end(self, answer: HttpReply, work: asyncio.Task[Reply | None], asked: McpRequest) -> None:
        if not work.cancelled():
            await answer.end(work.result())
        elif self._is_open:
            await answer.drop()
        else:
            stopping = ShuttingDown("the gateway is stopping: ask again when it is back")
            await answer.end(_interrupted(asked, stopping))

    def _name(self, client: Client, request: Request, asked: types.RequestId | None) -> tuple[object, ...]:
        return client, request.headers.get(_SESSION), type(asked), asked

    @contextmanager
    def _naming(self, name: tuple[object, ...], work: asyncio.Task[Reply | None]) -> Iterator[None]:
        working = self._under_way.setdefault(name, [])
        working.append(work)
        try:
            yield
        finally:
            working.remove(work)
            if not working:
                self._under_way.pop(name, None)

    def _cancel(self, name: tuple[object, ...]) -> None:
        """Stop the request with this name. Clients without a session may share one; then nothing is stopped."""
        working = self._under_way.get(name, [])
        if len(working) == 1:
            working[0].cancel()


class HttpReply:
    """The answer to one request: JSON if nothing is sent before the end, else a stream of events."""

    def __init__(self, request: Request, send: Send, asked: McpRequest) -> None:
        self._request = request
        self._send = send
        self._asked = asked
        self._is_open = False
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Begin a stream. Its first event has no data, only the id to resume by and the retry delay."""
        self._is_open = True
        await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS_HEADERS})
        if self._asked.stream is not None:
            await self._write(f"id: {self._asked.stream}\r\nretry: {RETRY_MS}\r\ndata: \r\n\r\n".encode())

    async def notify(self, notice: types.JSONRPCNotification) -> None:
        """Send a message before the end."""
        await self._event(_encode(notice))

    async def keep_alive(self) -> None:
        """Send pings, so that no proxy takes a long wait for a dead connection."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            await self._event(None)

    async def end(self, reply: Reply | None) -> None:
        """Send the end of the answer; None ends the stream so that it can be resumed."""
        if reply is None:
            await self._write(b"", is_last=True)
        elif self._is_open:
            await self._write(self._last_id() + _event(_encode(reply)), is_last=True)
        else:
            await _send_json(reply, _status(reply, self._asked), self._request, self._send, self._headers())

    async def drop(self) -> None:
        """End without an answer, as the protocol wants for a cancelled request."""
        if self._is_open:
            name = self._last_id()
            await self._write(name and name + b"data: \r\n\r\n", is_last=True)
        else:
            await Response(status_code=202)(self._request.scope, self._request.receive, self._send)

    def _last_id(self) -> bytes:
        """Name a stream's last event, so that no client resumes it."""
        return f"id: {self._asked.stream}{_END}\r\n".encode() if self._asked.stream else b""

    async def _event(self, data: bytes | None) -> None:
        async with self._turn:
            if not self._is_open:
                await self.open()
            await self._write(b": ping\r\n\r\n" if data is None else _event(data))

    async def _write(self, body: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})

    def _headers(self) -> dict[str, str]:
        """Give a client a session id for its requests. Nothing is stored under it."""
        return {_SESSION: uuid.uuid4().hex} if self._asked.message.method == "initialize" else {}


@dataclass
class _Dispatch:
    """The client of a request for the SDK: it takes notifications and progress, and answers no requests."""

    transport: TransportContext
    request_id: types.RequestId
    progress_token: types.ProgressToken | None
    answer: HttpReply
    message_metadata: MessageMetadata = None
    cancel_requested: anyio.Event = field(default_factory=anyio.Event)
    can_send_request: bool = False

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        body = None if params is None else dict(params)
        await self.answer.notify(types.JSONRPCNotification(jsonrpc="2.0", method=method, params=body))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self.progress_token is None:
            return
        fields = {"progressToken": self.progress_token, "progress": progress, "total": total, "message": message}
        await self.notify(
            "notifications/progress", {name: value for name, value in fields.items() if value is not None}
        )


async def _carry_out(server: Server[dict[str, Any]], asked: McpRequest, answer: HttpReply) -> Reply | None:
    """Let the server carry out a request; None if the gateway stops first and the client can resume it."""
    message = asked.message
    dispatch = _Dispatch(
        TransportContext(kind="streamable-http", can_send_request=False),
        message.id,
        progress_token_from_params(message.params),
        answer,
    )
    connection = Connection.from_envelope(asked.version, asked.client_info, asked.capabilities)
    try:
        result = await serve_one(
            server, dispatch, message.method, message.params, connection=connection, lifespan_state={}
        )
    except ShuttingDown as stopping:
        return _interrupted(asked, stopping)
    except Exception as error:  # noqa: BLE001 - the edge of a request; the SDK logs what is unexpected
        return _failure(asked, modern_error_data(error))
    return types.JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result)


def _interrupted(asked: McpRequest, stopping: ShuttingDown) -> Reply | None:
    """Answer a request that the gateway's stop interrupts; None if its client can resume it."""
    if asked.stream is not None:
        return None
    return _failure(asked, types.ErrorData(code=types.INTERNAL_ERROR, message=stopping.message, data=stopping.wire()))


def _failure(asked: McpRequest, error: types.ErrorData) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=asked.message.id, error=error)


async def _cancel_when_gone(receive: Receive, work: asyncio.Task[Reply | None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    work.cancel()


@asynccontextmanager
async def _running(work: Any) -> AsyncIterator[None]:
    """Run something in a task of its own until the context ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _status(reply: Reply, asked: McpRequest) -> int:
    """Set the HTTP status by the result, if the protocol's version asks for that."""
    if isinstance(reply, types.JSONRPCResponse) or not asked.is_modern:
        return 200
    return ERROR_CODE_HTTP_STATUS.get(reply.error.code, 200)


def _encode(message: Reply | types.JSONRPCNotification) -> bytes:
    shown = message.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(message, types.JSONRPCError):
        shown["id"] = message.id  # null where it could not be read
    return msgspec.json.encode(shown)


def _event(data: bytes) -> bytes:
    return b"event: message\r\ndata: " + data + b"\r\n\r\n"


async def _send_json(
    reply: Reply, status: int, request: Request, send: Send, headers: dict[str, str] | None = None
) -> None:
    await Response(_encode(reply), status, headers, "application/json")(request.scope, request.receive, send)


_VERSION = "mcp-protocol-version"


class McpRefusal(Exception):
    """A request that is refused with a JSON-RPC error before it begins."""

    def __init__(self, status: int, code: int, message: str, data: Any = None, request: types.RequestId | None = None):
        super().__init__(message)
        self.status = status
        self.error = types.JSONRPCError(
            jsonrpc="2.0", id=request, error=types.ErrorData(code=code, message=message, data=data)
        )


@dataclass(frozen=True, slots=True)
class McpRequest:
    """One request, and the name of its stream if its client can resume it."""

    message: types.JSONRPCRequest
    version: str
    client_info: Any = None
    capabilities: Any = None
    stream: str | None = None

    @property
    def is_modern(self) -> bool:
        """Whether the protocol's version has no sessions: each request then describes its client."""
        return self.version not in HANDSHAKE_PROTOCOL_VERSIONS

    def calls(self, tools: Container[str]) -> bool:
        """Whether it is a resumable call of one of these tools."""
        match self.message.params:
            case {"name": str() as name, **rest} if self.message.method == "tools/call":
                return name in tools and isinstance(rest.get("_meta") or {}, dict)
        return False

    def named(self, stream: str) -> McpRequest:
        """Name the stream and give the call an idempotency key, unless its client has done so."""
        params = self.message.params or {}
        if read_call_id(params) is not None:
            return replace(self, stream=stream)
        meta = {**(params.get("_meta") or {}), IDEMPOTENCY_KEY: stream}
        message = self.message.model_copy(update={"params": {**params, "_meta": meta}})
        return replace(self, message=message, stream=stream)


def read_posted(body: bytes, request: Request) -> McpRequest | types.JSONRPCNotification | None:
    """Read a posted message: a request, a notification, or None for an unasked answer.

    Raises:
        McpRefusal
    """
    message = _read_object(body)
    version = request.headers.get(_VERSION, types.DEFAULT_NEGOTIATED_VERSION)
    is_modern = version not in HANDSHAKE_PROTOCOL_VERSIONS
    try:
        if "id" not in message:
            return _read_notification(message, version if is_modern else None)
        if "method" not in message and not is_modern and ("result" in message or "error" in message):
            return None
        asked = types.JSONRPCRequest.model_validate(message)
    except ValueError:  # what the SDK's types raise; their words are not for people
        raise _bad_message() from None
    if not all(check_accept_headers(request)):
        said = "the answer may be JSON or a stream (expected Accept: application/json, text/event-stream)"
        raise McpRefusal(406, types.INVALID_REQUEST, said, request=asked.id)
    return _read_modern(asked, message, request) if is_modern else McpRequest(asked, version)


def _read_notification(message: dict[str, Any], modern: str | None) -> types.JSONRPCNotification:
    notice = types.JSONRPCNotification.model_validate(message)
    if modern is not None and (rejected := unsupported_protocol_version_rejection(modern)) is not None:
        raise _rejected(rejected)
    return notice


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        check_parts(body)
        message = msgspec.json.decode(body)
    except TooMuchJson as error:
        raise McpRefusal(400, types.INVALID_REQUEST, f"the body cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise McpRefusal(400, types.PARSE_ERROR, f"the body is not JSON: {error}") from None
    if isinstance(message, list):
        raise McpRefusal(
            400, types.INVALID_REQUEST, "batches are not served: post each message in a request of its own"
        )
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise _bad_message()
    return message


def _bad_message() -> McpRefusal:
    return McpRefusal(
        400,
        types.INVALID_REQUEST,
        'the body is not a JSON-RPC message (expected {"jsonrpc": "2.0", "method": …, "params"?: {…}, "id"?: …})',
    )


def _read_modern(asked: types.JSONRPCRequest, message: dict[str, Any], request: Request) -> McpRequest:
    if (doubled := find_duplicated_routing_header(request.headers.items())) is not None:
        raise McpRefusal(400, types.HEADER_MISMATCH, f"{doubled} header appears more than once", request=asked.id)
    route = classify_inbound_request(message, headers=dict(request.headers))
    if isinstance(route, InboundLadderRejection):
        raise _rejected(route, asked.id)
    return McpRequest(asked, route.protocol_version, route.client_info, route.client_capabilities)


def _rejected(rejection: InboundLadderRejection, request: types.RequestId | None = None) -> McpRefusal:
    status = ERROR_CODE_HTTP_STATUS.get(rejection.code, 400)
    return McpRefusal(status, rejection.code, rejection.message, rejection.data, request)
