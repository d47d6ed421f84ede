"""Connections: framing, the handshake, dispatch, and the limits that keep one client from harming the others.

A connection is served by two tasks. The reader takes frames, answers the handshake, and starts a task per request, so
that a waiting `agent.wait` holds up nothing. The writer sends what is queued (see `outgoing.py`). When a client is gone
its waits end; everything else that its requests began goes on to its end.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from starlette.types import Message, Receive, Send

from backchannel.core.keys import SessionKey
from backchannel.core.text import nearest
from backchannel.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    PayloadTooLarge,
    ProtocolMismatch,
    ScopeMissing,
    ShuttingDown,
    Unauthorized,
    Unavailable,
    UnknownMethod,
)
from backchannel.gateway.addressing import check_agent
from backchannel.gateway.auth import Access, Caller
from backchannel.gateway.call import Call, OpenWaits
from backchannel.gateway.events import Desk
from backchannel.gateway.methods import METHODS
from backchannel.gateway.outgoing import GOODBYE_S, REFUSED, Outgoing
from backchannel.gateway.peers import Peer
from backchannel.gateway.protocol import (
    EVENTS,
    NODE_EVENTS,
    PROTOCOL_VERSION,
    BadFrame,
    Cancel,
    Connect,
    Method,
    Policy,
    Request,
    Scope,
    read_connect,
    read_frame,
    show_answer,
    show_error,
    show_event_head,
)
from backchannel.tools.rows import Rows
from backchannel.triggers.nodes import choose_node
from backchannel.version import __version__

if TYPE_CHECKING:
    from backchannel.gateway.app import Gateway

log = structlog.get_logger(__name__)

PROTOCOL_ERROR, TOO_BIG, RESTARTING = 1002, 1009, 1012


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may cost."""

    frame_bytes: int = 4 * 1024 * 1024
    first_frame_bytes: int = 64 * 1024
    connections: int = 1000
    strangers: int = 256
    requests_at_once: int = 256
    buffered_bytes: int = 16 * 1024 * 1024
    handshake_s: float = 10.0
    """How long the headers of a request, or `connect`, may take to come."""
    request_s: float = 60.0
    """How long a whole HTTP request may take to come."""
    tick_s: float = 15.0

    @property
    def policy(self) -> Policy:
        return Policy(
            max_payload=self.frame_bytes,
            max_buffered_bytes=self.buffered_bytes,
            tick_interval_ms=int(self.tick_s * 1000),
        )


class Door:
    """All connections of one gateway."""

    def __init__(self, gateway: Gateway, access: Access, desk: Desk, limits: Limits) -> None:
        self.gateway = gateway
        self.access = access
        self.desk = desk
        self.limits = limits
        self.rows = Rows(gateway.parts)
        self.failed_logins = 0
        self._open: set[Connection] = set()
        self._logged_in = 0
        self._is_empty = asyncio.Event()
        self._is_closing = False
        self._started_at = gateway.clock.monotonic()

    @property
    def connections(self) -> int:
        return len(self._open)

    def check_open(self) -> None:
        """Refuse a connection that there is no place for.

        Raises:
            ShuttingDown, Unavailable
        """
        if self._is_closing:
            raise ShuttingDown("the gateway is stopping: connect again when it is back")
        if self._logged_in >= self.limits.connections:
            raise Unavailable(f"the gateway has its {self.limits.connections} connections: try again later")

    @property
    def uptime_ms(self) -> int:
        return int((self.gateway.clock.monotonic() - self._started_at) * 1000)

    async def serve(self, address: str, receive: Receive, send: Send, peer: Peer | None = None) -> None:
        """Serve one accepted connection until it ends."""
        connection = Connection(self, address, receive, send, peer)
        self._open.add(connection)
        try:
            await connection.serve()
        finally:
            self._open.discard(connection)
            self._logged_in -= connection.caller is not None
            self.desk.leave(connection)
            if not self._open:
                self._is_empty.set()

    def let_in(self, peer: Peer | None) -> None:
        """Give a connection that has logged in its place.

        Raises:
            ShuttingDown, Unavailable: there is none.
        """
        self.check_open()
        self._logged_in += 1
        if peer is not None:
            peer.let_in()

    def broadcast(self, event: str, payload: object) -> None:
        """Tell all clients that have connected."""
        head = show_event_head(event, payload)
        for connection in list(self._open):
            if connection.caller is not None:
                connection.send_event(head, droppable=False)

    async def tick(self) -> None:
        """Tell clients from time to time that the gateway is there."""
        clock = self.gateway.clock
        while True:
            await clock.sleep(self.limits.tick_s)
            self.broadcast("tick", {"ts": clock.now_ms()})

    async def close(self, reason: str) -> None:
        """Tell all clients that the gateway stops, and let them go."""
        self._is_closing = True
        self.broadcast("shutdown", {"reason": reason})
        for connection in list(self._open):
            connection.close(RESTARTING, reason)
        if self._open:
            self._is_empty.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * GOODBYE_S):
                    await self._is_empty.wait()

    def close_token(self, token_id: str) -> None:
        """Let go of the clients that came in by a token which is no longer valid."""
        for connection in list(self._open):
            if connection.caller is not None and connection.caller.token_id == token_id:
                connection.close(REFUSED, "the token was revoked")


class Connection:
    """One client, from its challenge to its end."""

    def __init__(self, door: Door, address: str, receive: Receive, send: Send, peer: Peer | None) -> None:
        self.id = secrets.token_hex(8)
        self.caller: Caller | None = None
        self._door = door
        self._address = address
        self._receive = receive
        self._peer = peer
        unsent = (lambda: 0) if peer is None else (lambda: peer.unsent_bytes)
        self._out = Outgoing(send, door.limits.buffered_bytes, unsent)
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits = OpenWaits()

    async def serve(self) -> None:
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._out.write())
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._out.stop()
            reader.cancel()
            writer.cancel()
            ended = await asyncio.gather(reader, writer, *self._waits.end(), return_exceptions=True)
            await self._out.say_goodbye()
        for result in ended:
            if isinstance(result, Exception) and not isinstance(result, OSError):  # OSError: the client is gone
                log.error("connection failed", connection=self.id, exc_info=result)

    @property
    def held_bytes(self) -> int:
        """How much memory waits for the client to read."""
        return self._out.held_bytes

    def send_event(self, head: str, *, droppable: bool) -> None:
        self._out.send_event(head, droppable=droppable)

    def close(self, code: int, reason: str) -> None:
        """Send what is queued, then close."""
        self._out.close(code, reason)

    # Reading

    async def _read(self) -> None:
        nonce = {"nonce": secrets.token_urlsafe(24), "ts": self._door.gateway.clock.now_ms()}
        self.send_event(show_event_head("connect.challenge", nonce), droppable=False)
        try:
            async with asyncio.timeout(self._door.limits.handshake_s):
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    return
                self.caller = await self._greet(message)
        except TimeoutError:
            self.close(REFUSED, "no connect request came in time")
        if self.caller is None:
            await self._out.done.wait()  # the writer says goodbye first
            return
        while (message := await self._receive())["type"] == "websocket.receive":
            self._take(message)

    def _take(self, message: Message) -> None:
        """Take a frame of a client that has connected."""
        try:
            frame = self._read_frame(message, self._door.limits.frame_bytes)
        except BadFrame as bad:
            self._out.send(show_error(bad.id, bad.error.wire()))
            return
        except PayloadTooLarge as error:
            self.close(TOO_BIG, error.message)
            return
        if isinstance(frame, Cancel):
            return
        if len(self._tasks) >= self._door.limits.requests_at_once:
            limit = self._door.limits.requests_at_once
            busy = Unavailable(f"{limit} requests of this connection are under way: wait for answers")
            self._out.send(show_error(frame.id, busy.wire()))
            return
        task = asyncio.create_task(self._answer(frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _read_frame(message: Message, limit: int) -> Request | Cancel:
        text = message.get("text")
        if text is None:
            raise BadFrame(None, InvalidRequest("frames are JSON text; a binary one came"))
        if len(text) > limit or (len(text) * 4 > limit and len(text.encode()) > limit):
            raise PayloadTooLarge(f"a frame has at most {limit} bytes")
        return read_frame(text)

    # The handshake

    async def _greet(self, message: Message) -> Caller | None:
        """Answer the first frame; None means that the client was turned away."""
        id, code = None, REFUSED
        try:
            frame = self._read_frame(message, self._door.limits.first_frame_bytes)
            id = frame.id
            if not isinstance(frame, Request) or frame.method != "connect":
                raise InvalidRequest("the first request must be connect")
            asked = _read_connect(frame)
            caller = await self._log_in(asked)
            self._door.let_in(self._peer)
        except BadFrame as bad:
            id, error = bad.id, bad.error.wire()
        except PayloadTooLarge as refused:
            code, error = TOO_BIG, refused.wire()
        except ProtocolMismatch as refused:
            code, error = PROTOCOL_ERROR, refused.wire()
        except GatewayError as refused:
            error = refused.wire()
        else:
            self._out.send(show_answer(frame.id, self._hello(caller)))
            if caller.node is not None:
                self._door.desk.watch_chat(self, str(caller.node))
            return caller
        self._out.send(show_error(id, error))
        self.close(code, error["message"])
        return None

    async def _log_in(self, asked: Connect) -> Caller:
        if not asked.min_protocol <= PROTOCOL_VERSION <= asked.max_protocol:
            raise ProtocolMismatch(
                f"this gateway speaks protocol {PROTOCOL_VERSION}, the client {asked.min_protocol} "
                f"to {asked.max_protocol}",
                expectedProtocol=PROTOCOL_VERSION,
            )
        if asked.role not in ("operator", "node"):
            raise InvalidRequest(f"unknown role {asked.role[:64]!r} (expected operator or node)", param="role")
        token = asked.auth.token if asked.auth else None
        try:
            caller = await self._door.access.login(token, self._address)
        except Unauthorized:
            self._door.failed_logins += 1
            raise
        caller = caller.with_scopes(asked.scopes)
        return self._as_node(caller, asked.node_id) if asked.role == "node" else caller

    def _as_node(self, caller: Caller, node_id: str | None) -> Caller:
        """Let a node in: by a token that is bound to its session, or by an operator's that may write."""
        scheme = self._door.gateway.scheme
        bound = None if caller.session_key is None else SessionKey.parse(caller.session_key)
        if bound is None and Scope.WRITE not in caller.scopes:
            raise ScopeMissing(
                f"a node needs the scope {Scope.WRITE.value}, or a token of its own", scope=Scope.WRITE.value
            )
        node = choose_node(node_id, bound, scheme)
        check_agent(self._door.gateway, node.agent)
        return caller.as_node(node)

    def _hello(self, caller: Caller) -> dict[str, Any]:
        gateway, is_node = self._door.gateway, caller.node is not None
        main = gateway.scheme.main(gateway.scheme.default_agent)
        return {
            "type": "hello-ok",
            "protocol": PROTOCOL_VERSION,
            "server": {"version": __version__, "connId": self.id},
            "features": {
                "methods": sorted(name for name, method in METHODS.items() if method.for_nodes is is_node),
                "events": NODE_EVENTS if is_node else EVENTS,
            },
            "snapshot": {
                "presence": [],
                "health": {},
                "stateVersion": {"presence": 0, "health": 0},
                "uptimeMs": self._door.uptime_ms,
                "sessionDefaults": {
                    "defaultAgentId": gateway.scheme.default_agent,
                    "mainKey": gateway.scheme.main_key,
                    "mainSessionKey": str(main),
                    "scope": "global" if gateway.scheme.global_scope else "per-sender",
                },
            },
            "auth": {
                "role": caller.role,
                "scopes": caller.shown_scopes,
            },
            "policy": self._door.limits.policy,
        }

    # Requests

    async def _answer(self, request: Request) -> None:
        try:
            payload = await self._call(request)
        except GatewayError as error:
            self._out.send(show_error(request.id, error.wire()))
        except asyncio.CancelledError:
            raise
        except Exception:  # the edge of a request: it is answered, and the connection goes on
            log.exception("request failed", method=request.method[:64], connection=self.id)
            self._out.send(show_error(request.id, GatewayError("something went wrong; the log says what").wire()))
        else:
            self._out.send(show_answer(request.id, payload))

    async def _call(self, request: Request) -> object:
        method = METHODS.get(request.method)
        if method is None:
            raise _unknown_method(request.method)
        if self.caller is None:
            raise Forbidden("connect first")
        check_allowed(self.caller, method)
        call = Call(
            gateway=self._door.gateway,
            door=self._door,
            caller=self.caller,
            subscriber=self,
            answer_first=lambda payload: self._out.send(show_answer(request.id, payload)),
            waits=self._waits,
        )
        return await method.handler(call, method.read_params(request.params))


def check_allowed(caller: Caller, method: Method[Any]) -> None:
    """Refuse a method that the caller's token does not permit.

    Raises:
        Forbidden: an agent's token or a node may not call it, or nobody but a node may.
        ScopeMissing: the method needs a scope that was not granted.
    """
    if caller.node is not None:
        if not method.for_nodes:
            open_to_it = ", ".join(sorted(name for name, each in METHODS.items() if each.for_nodes))
            raise Forbidden(f"a node may not call {method.name} (it may call {open_to_it})")
    elif method.for_nodes:
        raise Forbidden(f"{method.name} is for nodes (connect with the role node and a nodeId)")
    elif caller.is_agent:
        if not method.for_agents:
            raise Forbidden(f"an agent's token may not call {method.name}")
    elif method.scope not in caller.scopes:
        raise ScopeMissing(
            f"{method.name} needs the scope {method.scope.value} (granted: {', '.join(caller.shown_scopes) or 'none'})",
            scope=method.scope.value,
        )


def _read_connect(request: Request) -> Connect:
    try:
        return read_connect(bytes(request.params) or b"{}")
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"connect: {error}") from None


def _unknown_method(name: str) -> UnknownMethod:
    if name == "connect":
        return UnknownMethod("this connection has connected already", method="connect")
    close = nearest(name[:64], METHODS)
    hint = f"did you mean {close}?" if close else "hello-ok lists those there are"
    return UnknownMethod(f"unknown method {name[:64]!r} ({hint})", method=name[:64])
