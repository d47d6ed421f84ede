"""The web application: WebSocket at `/ws` and `/`, and the HTTP routes.

Every request first passes the checks of `Host`, `Origin` and body size. WebSocket connections bypass the router, whose
cost every message would pay.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from backchannel.config.adapters import webhook_hosts
from backchannel.config.schema_doors import LimitSettings as Sizes
from backchannel.core.delivery.attached import MAX_FILE_BYTES
from backchannel.core.delivery.received import clean_file_name
from backchannel.errors import (
    BadSignature,
    GatewayError,
    InvalidRequest,
    NotFound,
    OriginNotAllowed,
    PayloadTooLarge,
    ScopeMissing,
    Unavailable,
)
from backchannel.gateway.addressing import look_at
from backchannel.gateway.auth import Access, InvokeParams, OriginCheck, hash_token, invoke_as
from backchannel.gateway.errors import show_error
from backchannel.gateway.events.subscriptions import Subscriptions
from backchannel.gateway.fields import read_posted
from backchannel.gateway.hooks import HOOKS_AT, HookDoor
from backchannel.gateway.mcp.door import McpDoor
from backchannel.gateway.metrics import CONTENT_TYPE, Metrics
from backchannel.gateway.oauth import Resource, issuer_of
from backchannel.gateway.openai.door import OpenAiDoor
from backchannel.gateway.openapi import build_document
from backchannel.gateway.openclaw.device_login import Devices
from backchannel.gateway.page import PageDoor
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws import peers
from backchannel.gateway.ws.connections import Connections, Limits, OpenWaits
from backchannel.gateway.ws.peers import Peers, let_in, peer_of, texts_of
from backchannel.gateway.ws.throttling import LOCAL, FailedAttempts, Proxies, address_of
from backchannel.gateway.ws.websocket import serve_connection
from backchannel.wire.frames import TokenScope

log = structlog.get_logger(__name__)

_CONNECTIONS_AT = ("/", "/ws")


class Web:
    """The gateway as an ASGI application."""

    def __init__(self, parts: GatewayParts, operator_token: str, limits: Limits | None = None) -> None:
        settings = parts.config.gateway
        self.limits = limits or Limits(
            frame_bytes=settings.limits.frame_bytes,
            first_frame_bytes=settings.limits.pre_auth_frame_bytes,
            connections=settings.limits.connections,
            strangers=settings.limits.pre_auth_connections,
        )
        self.limits, most = _within_descriptors(self.limits, peers.descriptor_limit())
        self.peers = Peers(strangers=self.limits.strangers, most=most)
        self.access = Access(parts.store, operator_token, parts.clock, issuer_of(settings, parts.clock))
        self._resource = Resource(settings)
        self.subscriptions = Subscriptions(
            parts.clock, parts.rows.key, partial(look_at, parts), parts.config.tools.approval_lives_ms
        )
        devices = Devices(parts.store, operator_token, parts.clock)
        self.connections = Connections(parts, self.access, devices, self.subscriptions, self.limits)
        self.metrics = Metrics(self.connections)
        self._parts = parts
        self._hooks = HookDoor(parts, operator_token)
        self._mcp = McpDoor(parts, self.access)
        self._waits = OpenWaits()
        self._forgeries = FailedAttempts(parts.clock, "signature")
        self._origins = OriginCheck(settings, webhook_hosts(parts.config.channels.values()))
        self._proxies = Proxies(settings.trusted_proxies)
        self.routes = self._routes()
        self._http = _limit_bodies(
            Starlette(
                routes=self.routes,
                exception_handlers={
                    GatewayError: _show_error,
                    HTTPException: _show_http_error,
                    Exception: _show_failure,
                },
                lifespan=lambda app: self.running(),
            ),
            settings.limits,
            self._waits,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._http(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["type"] == "http":
            send = self.metrics.tally.watch(scope, send)
        if not scope["path"].startswith(HOOKS_AT):  # they have a token of their own, which no issuer gives
            send = self._resource.challenging(scope, send)
        try:
            self._set_client_address(scope, headers)
            if len(headers.getlist("host")) > 1:
                raise InvalidRequest("Host: the header appears more than once")
            self._origins.check_host(headers.get("host"))
            foreign = self._origins.foreign(headers.get("host"), headers.get("origin"))
            if scope["type"] == "websocket":
                await self._connect(scope, receive, send, foreign)
            elif foreign is not None:
                raise foreign
            else:
                await self._http(scope, receive, send)
        except GatewayError as refused:
            path = scope["path"]
            log.debug("a request was refused", path=path[:80], reason=refused.code)
            await show_error(refused, path)(scope, receive, send)
        except (ClientDisconnect, ClientDisconnected):
            log.debug("a client went away in the middle", path=scope["path"][:80])  # no one is left to answer
        except Exception:  # the edge of a request, which keeps the server going
            # The client has been answered by now: the framework does that first and raises again.
            log.exception("request failed", path=scope["path"])

    def _set_client_address(self, scope: Scope, headers: Headers) -> None:
        """Put the client's own address into the scope, if a trusted proxy forwards it."""
        if (client := scope.get("client")) and (forwarded := headers.getlist("x-forwarded-for")):
            address = self._proxies.client(client[0], forwarded)
            scope["client"] = client if address == client[0] else (address, 0)

    @property
    def waiting(self) -> int:
        """The number of HTTP requests that wait for a run or for the rest of their body."""
        return self._waits.count

    async def close(self, reason: str) -> None:
        """Close all connections and end waiting requests before the server stops."""
        self._mcp.close()
        self._waits.end()
        await self.connections.close(reason)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Send events and ticks while the context is open."""
        return self._running()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        hub = self._parts.runtime.hub
        stops = [each.listen_to(hub) for each in (self.subscriptions, self.metrics, self.connections)]
        ticks = asyncio.create_task(self.connections.tick())
        try:
            yield
        finally:
            ticks.cancel()
            self.peers.close()
            for stop in stops:
                stop()
            await asyncio.gather(ticks, return_exceptions=True)

    async def _connect(self, scope: Scope, receive: Receive, send: Send, foreign: OriginNotAllowed | None) -> None:
        """Serve a connection. A foreign page gets its refusal over it, since a browser hides other answers."""
        if scope["path"] not in _CONNECTIONS_AT:
            raise NotFound("no WebSocket is served here (connect to /ws)")
        self.connections.check_open()
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        client = scope.get("client")
        address = client[0] if client else LOCAL
        origin = Headers(scope=scope).get("origin")
        ends = peer_of(scope), texts_of(scope)
        await serve_connection(self.connections, address, receive, send, *ends, origin=origin, refusal=foreign)

    def _routes(self) -> list[Route]:
        is_open = self._parts.config.gateway.http.chat_completions
        return [
            *PageDoor().routes(),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
            Route("/media/{file}/{name}", self._media),
            Route("/tools/invoke", self._invoke, methods=["POST"]),
            Route("/channels/{name}/inbound", self._inbound, methods=["POST"]),
            *self._resource.routes(),
            *self._hooks.routes(),
            *self._mcp.routes(),
            *(OpenAiDoor(self._parts, self.access, self._waits).routes() if is_open else ()),
        ]

    async def _healthz(self, request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def _readyz(self, request: Request) -> Response:
        try:
            await self._parts.store.check_writable()
        except Unavailable as error:
            shown: dict[str, Any] = {"ok": False}
            if await self._is_reader(request):
                shown |= {"error": error.wire()}
            return JSONResponse(shown, status_code=503)
        return JSONResponse({"ok": True})

    async def _metrics(self, request: Request) -> Response:
        await self.check_reader(request)
        return Response(await self.metrics.show(), media_type=CONTENT_TYPE)

    async def _media(self, request: Request) -> Response:
        """Give a file that an agent sent, to a reader: always to be saved, never to be shown as a page."""
        await self.check_reader(request)
        content = await self._parts.runtime.media.load(request.path_params["file"], MAX_FILE_BYTES)
        if content is None:
            raise NotFound("no such file is kept here")
        name = quote(clean_file_name(request.path_params["name"]) or "file", safe="")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}", "X-Content-Type-Options": "nosniff"}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def _openapi(self, request: Request) -> Response:
        await self.check_reader(request)
        return Response(msgspec.json.encode(build_document(self._parts)), media_type="application/json")

    async def _invoke(self, request: Request) -> Response:
        holder = await self.access.admit(request)
        params = read_posted("/tools/invoke", await request.body(), InvokeParams)
        self._waits.check_open()
        # Only its wait is broken off when the gateway stops: a change that is being committed is reported.
        result = await invoke_as(self._parts, holder, params, self._waits.until)
        return Response(msgspec.json.encode({"ok": True, "result": result}), media_type="application/json")

    async def _inbound(self, request: Request) -> Response:
        """Pass a post on to its channel, which checks the sender itself; it needs no token."""
        name, body = request.path_params["name"], await request.body()
        try:
            answer = await self._parts.inbound.post(name, body, request.headers)
        except BadSignature as forged:
            self._forgeries.add(address_of(request), hash_token(forged.signature))
            raise
        let_in(request.scope)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def check_reader(self, request: Request) -> None:
        """Refuse a request without a token that may read.

        Raises:
            Unauthorized, SlowDown, ScopeMissing
        """
        caller = await self.access.admit(request)
        if TokenScope.READ not in caller.scopes:
            raise ScopeMissing(f"this needs the scope {TokenScope.READ.value}", scope=TokenScope.READ.value)

    async def _is_reader(self, request: Request) -> bool:
        if "authorization" not in request.headers:
            return False
        try:
            await self.check_reader(request)
        except GatewayError:
            return False
        return True


def _within_descriptors(limits: Limits, of_process: int) -> tuple[Limits, int]:
    """Limit connections by the file descriptors of the process; also returns the number of all."""
    most = peers.descriptors_for_connections(of_process)
    strangers = min(limits.strangers, max(1, most // 3))
    connections = min(limits.connections, max(1, most - 2 * strangers))
    if connections < limits.connections:
        log.warning(
            "fewer connections are served than configured: this process may open too few files",
            connections=connections,
            configured=limits.connections,
            files=of_process,
        )
    return replace(limits, strangers=strangers, connections=connections), most


async def _show_error(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, GatewayError) else GatewayError("something went wrong")
    return show_error(known, request.url.path)


async def _show_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    found = NotFound("nothing is served here") if status == 404 else InvalidRequest("this method is not served here")
    headers = error.headers if isinstance(error, HTTPException) else None  # such as Allow
    return show_error(found, request.url.path, status, headers or {})


async def _show_failure(request: Request, error: Exception) -> Response:
    return show_error(GatewayError("something went wrong; the log says what"), request.url.path)


def _limit_bodies(app: ASGIApp, limits: Sizes, waits: OpenWaits) -> ASGIApp:
    """Refuse bodies over the limit, by their header or, without one, as they come.

    A stopping gateway does not wait for the rest of a body.
    """

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        limit = limits.hook_body_bytes if scope["path"].startswith(HOOKS_AT) else limits.body_bytes
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdecimal() or int(declared) > limit:
            raise PayloadTooLarge(f"a body has at most {limit} bytes")
        size, is_whole = 0, False

        async def counting() -> Message:
            nonlocal size, is_whole
            if is_whole:  # what comes now says only that the client is gone
                return await receive()
            message = await waits.until(receive())
            is_whole = not message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > limit:
                raise PayloadTooLarge(f"a body has at most {limit} bytes")
            return message

        await app(scope, counting, send)

    return limited
