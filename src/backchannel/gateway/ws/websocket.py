"""WebSocket connections: frames, the handshake, dispatch, and the send queue.

A connection has two tasks. The reader takes frames, answers the handshake, and starts a task for each request, so that
`agent.wait` blocks nothing. The writer sends the queue. When a client is gone its waits end; all other work of its
requests goes on.

Sending only queues, so events never wait for a slow client. When the queue is too large, deltas are dropped first (the
gap in `seq` shows it), and then the connection is closed. A client that reads is not closed for a burst. The limit is
memory: the queue, and the bytes that the transport has not sent.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from sys import getsizeof
from typing import Any

import msgspec
import structlog
from starlette.types import Message, Receive, Send

from backchannel.core.keys import SessionKey
from backchannel.core.text import nearest, quoted
from backchannel.errors import (
    DeviceTokenRefused,
    Forbidden,
    GatewayError,
    InvalidRequest,
    PayloadTooLarge,
    ProtocolMismatch,
    ScopeMissing,
    Unauthorized,
    Unavailable,
    UnknownMethod,
)
from backchannel.gateway.addressing import check_agent
from backchannel.gateway.auth import NodeSays, TokenHolder
from backchannel.gateway.calls import Call, check_allowed
from backchannel.gateway.openclaw.device_login import DeviceTokenIssued, ProvenDevice, prove
from backchannel.gateway.openclaw.lines import OPENCLAW
from backchannel.gateway.table import CAPABILITIES, EVENTS, METHODS, NODE_EVENTS
from backchannel.gateway.ws.connections import CLOSE_S, REFUSED, Connections, OpenWaits
from backchannel.gateway.ws.peers import Peer, TextPort
from backchannel.openclaw.words import NAMED_PER_AGENT
from backchannel.triggers.nodes import choose_node
from backchannel.version import PROTOCOL_VERSION, __version__
from backchannel.wire.answers import SessionDefaults
from backchannel.wire.events import Challenge
from backchannel.wire.frames import (
    BadFrame,
    Cancel,
    Connect,
    Request,
    TokenScope,
    number_event,
    read_connect,
    read_frame,
    show_answer,
    show_error,
    show_event_head,
)

log = structlog.get_logger(__name__)

PROTOCOL_ERROR, TOO_BIG = 1002, 1009
_ENTRY_BYTES = 80
"""The memory of a frame's place in the queue."""


async def serve_connection(
    connections: Connections,
    address: str,
    receive: Receive,
    send: Send,
    peer: Peer | None = None,
    texts: TextPort | None = None,
    *,
    origin: str | None = None,
    refusal: GatewayError | None = None,
) -> None:
    """Serve one accepted connection until it ends; a `refusal` is the answer to its first request.

    A connection with an `origin` is a page's.
    """
    connection = WebSocketConnection(connections, address, receive, send, peer, texts, origin, refusal)
    connections.enter(connection)
    try:
        await connection.serve()
    finally:
        connections.leave(connection)


class WebSocketConnection:
    """One client, from its challenge to its end."""

    def __init__(
        self,
        connections: Connections,
        address: str,
        receive: Receive,
        send: Send,
        peer: Peer | None,
        texts: TextPort | None,
        origin: str | None,
        refusal: GatewayError | None,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.holder: TokenHolder | None = None
        self.is_for_people = False
        self._connections = connections
        self._address = address
        self._receive = receive
        self._peer = peer
        self._origin = origin
        self._refusal = refusal
        self._nonce = secrets.token_urlsafe(24)
        self._issued: DeviceTokenIssued | None = None
        self._texts = texts
        self._out = OutgoingFrames(
            send,
            connections.limits.buffered_bytes,
            (lambda: 0) if peer is None else peer.unsent_bytes,
            (lambda frame: False) if texts is None else texts.write,
        )
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
            await self._out.send_close()
        for result in ended:
            if isinstance(result, Exception) and not isinstance(result, OSError):  # OSError: the client is gone
                log.error("connection failed", connection=self.id, exc_info=result)

    @property
    def held_bytes(self) -> int:
        """The bytes that wait for the client to read."""
        return self._out.held_bytes

    def send_event(self, head: str, *, droppable: bool) -> None:
        self._out.send_event(head, droppable=droppable)

    def close(self, code: int, reason: str) -> None:
        """Send what is queued, then close."""
        self._out.close(code, reason)

    # Reading

    async def _read(self) -> None:
        challenge = Challenge(nonce=self._nonce, ts=self._connections.parts.clock.now_ms())
        self.send_event(show_event_head("connect.challenge", challenge), droppable=False)
        try:
            async with asyncio.timeout(self._connections.limits.handshake_s):
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    return
                self.holder = await self._greet(message)
        except TimeoutError:
            self.close(REFUSED, "no connect request came in time")
        if self.holder is None:
            await self._out.done.wait()  # the writer sends the close first
            return
        if self._texts is not None:
            self._texts.listen(self._take)
        while (message := await self._receive())["type"] == "websocket.receive":
            self._take(message.get("text"))

    def _take(self, text: str | None) -> None:
        """Take a frame of a client that has connected; None for one that is not text."""
        try:
            frame = self._read_frame(text, self._connections.limits.frame_bytes)
        except BadFrame as bad:
            self._out.send(show_error(bad.id, bad.error.wire()))
            return
        except PayloadTooLarge as error:
            self.close(TOO_BIG, error.message)
            return
        if isinstance(frame, Cancel):
            return
        if len(self._tasks) >= self._connections.limits.requests_at_once:
            limit = self._connections.limits.requests_at_once
            busy = Unavailable(f"{limit} requests of this connection are under way: wait for answers")
            self._out.send(show_error(frame.id, busy.wire()))
            return
        task = asyncio.create_task(self._answer(frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _read_frame(text: str | None, limit: int) -> Request | Cancel:
        if text is None:
            raise BadFrame(None, InvalidRequest("expected a frame of JSON text, got a binary frame"))
        if len(text) > limit or (len(text) * 4 > limit and len(text.encode()) > limit):
            raise PayloadTooLarge(f"a frame has at most {limit} bytes")
        return read_frame(text)

    # The handshake

    async def _greet(self, message: Message) -> TokenHolder | None:
        """Answer the first frame; None if the client was refused."""
        id, code = None, REFUSED
        try:
            frame = self._read_frame(message.get("text"), self._connections.limits.first_frame_bytes)
            id = frame.id
            if self._refusal is not None:  # before anything of the request is looked at, its token above all
                raise self._refusal
            if not isinstance(frame, Request) or frame.method != "connect":
                raise InvalidRequest("the first request must be connect")
            asked = _read_connect(frame)
            holder = await self._log_in(asked)
            self.is_for_people = asked.client.id.startswith(OPENCLAW)
            self._connections.let_in(self._peer)
        except BadFrame as bad:
            id, error = bad.id, bad.error.wire()
        except PayloadTooLarge as refused:
            code, error = TOO_BIG, refused.wire()
        except ProtocolMismatch as refused:
            code, error = PROTOCOL_ERROR, refused.wire()
        except GatewayError as refused:
            error = refused.wire()
        else:
            self._out.send(show_answer(frame.id, self._hello(holder)))
            if holder.node is not None:
                self._connections.subscriptions.watch_chat(self, str(holder.node))
            return holder
        self._out.send(show_error(id, error))
        self.close(code, error["message"])
        return None

    async def _log_in(self, asked: Connect) -> TokenHolder:
        if not asked.min_protocol <= PROTOCOL_VERSION <= asked.max_protocol:
            raise ProtocolMismatch(
                f"this gateway speaks protocol {PROTOCOL_VERSION}, the client {asked.min_protocol} "
                f"to {asked.max_protocol}",
                expectedProtocol=PROTOCOL_VERSION,
            )
        if asked.role not in ("operator", "node"):
            raise InvalidRequest(f"unknown role {quoted(asked.role, 64)} (expected operator or node)", param="role")
        try:
            holder = await self._admit(asked)
        except Unauthorized as error:
            self._connections.failed_logins += 1
            raise (DeviceTokenRefused(error.message) if asked.brought.device_token else error) from None
        return self._as_node(holder, asked) if asked.role == "node" else holder

    async def _admit(self, asked: Connect) -> TokenHolder:
        """Log a client in by its device token or another, with the scopes that it asks for."""
        devices, brought = self._connections.devices, asked.brought
        proven = self._prove(asked)
        if brought.device_token and (known := await devices.find(brought.device_token, proven)) is not None:
            return known.with_scopes(asked.scopes)
        holder = await self._connections.access.login(brought.signed_token, self._address)
        holder = holder.with_scopes(asked.scopes)
        # Programs keep their token themselves, and shall cost no write.
        if proven and self._origin and holder.scopes and not holder.is_issued:
            self._issued = await devices.issue(holder, brought.signed_token, proven, self._origin)
        # Who logs the device out logs out this page too.
        return holder if self._issued is None else replace(holder, device_token=self._issued.id)

    def _prove(self, asked: Connect) -> ProvenDevice | None:
        """Check the signature of a device, if it matters."""
        if asked.role != "operator" or not (self._origin or asked.brought.device_token):
            return None
        return prove(asked, self._nonce, self._connections.parts.clock.now_ms())

    def _as_node(self, holder: TokenHolder, asked: Connect) -> TokenHolder:
        """Authenticate a node by a token bound to its session, or by an operator's token that may write."""
        scheme = self._connections.parts.scheme
        bound = None if holder.session_key is None else SessionKey.parse(holder.session_key)
        if bound is None and TokenScope.WRITE not in holder.scopes:
            raise ScopeMissing(
                f"a node needs the scope {TokenScope.WRITE.value}, or a token of its own", scope=TokenScope.WRITE.value
            )
        node = choose_node(asked.node_name, bound, scheme)
        check_agent(self._connections.parts, node.agent)
        return holder.as_node(node, NodeSays.read(asked))

    def _hello(self, holder: TokenHolder) -> dict[str, Any]:
        parts, is_node = self._connections.parts, holder.node is not None
        main = parts.scheme.main(parts.scheme.default_agent)
        return {
            "type": "hello-ok",
            "protocol": PROTOCOL_VERSION,
            # OpenClaw's Control UI comes from elsewhere: it need not be loaded anew for having another version.
            "server": {"version": __version__, "connId": self.id, "controlUiBuildSource": "configured"},
            "features": {
                "methods": sorted(name for name, method in METHODS.items() if method.for_nodes is is_node),
                "events": NODE_EVENTS if is_node else tuple(EVENTS),
                "capabilities": () if is_node else CAPABILITIES,
            },
            "snapshot": {
                "presence": [],
                "health": {},
                "stateVersion": {"presence": 0, "health": 0},
                "uptimeMs": self._connections.uptime_ms,
                "sessionDefaults": SessionDefaults(
                    default_agent_id=parts.scheme.default_agent,
                    main_key=parts.scheme.main_key,
                    main_session_key=parts.scheme.shown(str(main)),
                    scope=NAMED_PER_AGENT,
                ),
            },
            "auth": {
                "role": holder.role,
                "scopes": holder.shown_scopes,
                **({"deviceToken": self._issued.token, "issuedAtMs": self._issued.at} if self._issued else {}),
            },
            "policy": self._connections.limits.policy,
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
        if self.holder is None:
            raise Forbidden("connect first")
        check_allowed(self.holder, method, METHODS)
        call = Call(
            parts=self._connections.parts,
            connections=self._connections,
            holder=self.holder,
            subscriber=self,
            answer_first=lambda payload: self._out.send(show_answer(request.id, payload)),
            waits=self._waits,
        )
        return await method(call, method.read_params(request.params))


def _read_connect(request: Request) -> Connect:
    try:
        return read_connect(bytes(request.params) or b"{}")
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"connect: {error}") from None


def _unknown_method(name: str) -> UnknownMethod:
    if name == "connect":
        return UnknownMethod("this connection has connected already", method="connect")
    close = nearest(name[:64], METHODS)
    hint = f"did you mean {close}?" if close else "hello-ok lists the methods"
    return UnknownMethod(f"unknown method {quoted(name, 64)} ({hint})", method=name[:64])


class OutgoingFrames:
    """The send queue of one client, within a limit.

    `unsent` gives the bytes that were written and not yet taken by the client. `write_now` writes a frame at once if
    it can: a frame waits only behind others, or for a client that does not read.
    """

    def __init__(
        self,
        send: Send,
        limit: int,
        unsent: Callable[[], int] = lambda: 0,
        write_now: Callable[[str], bool] = lambda frame: False,
    ) -> None:
        self.done = asyncio.Event()
        self._send = send
        self._limit = limit
        self._unsent = unsent
        self._write_now = write_now
        self._frames: deque[tuple[str, int, bool]] = deque()
        """Frames with their size, and whether each may be dropped."""
        self._size = 0
        self._seq = 0
        self._wake = asyncio.Event()
        self._closing: tuple[int, str] | None = None
        self._is_stopped = False
        self._is_blocked = False
        self._writer: asyncio.Task[Any] | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes that wait for the client."""
        return self._size + self._unsent()

    def send(self, frame: str) -> None:
        """Queue an answer."""
        self._queue(frame, droppable=False)

    def send_event(self, head: str, *, droppable: bool) -> None:
        """Queue an event under its own number; a dropped one keeps its number, so that the gap shows."""
        self._seq += 1
        self._queue(number_event(head, self._seq), droppable=droppable)

    def close(self, code: int, reason: str) -> None:
        """Close after sending the queue."""
        if self._closing is None:
            self._closing = (code, reason)
            self._wake.set()

    def stop(self) -> None:
        """Accept nothing more: the connection has ended."""
        self._is_stopped = True
        self._frames.clear()
        self._size = 0

    async def write(self) -> None:
        """Send the queue until the connection closes."""
        self._writer = asyncio.current_task()
        try:
            while True:
                while self._frames:
                    frame, size, _ = self._frames.popleft()
                    self._is_blocked = True  # seen by others only while the send waits for the client
                    await self._send({"type": "websocket.send", "text": frame})
                    self._is_blocked = False
                    self._size -= size
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
        finally:
            self.stop()
            self.done.set()

    async def send_close(self) -> None:
        """Send the close frame, if asked for, without waiting for a client that does not read."""
        if self._closing:
            code, reason = self._closing
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(CLOSE_S):
                    await self._send({"type": "websocket.close", "code": code, "reason": _short(reason)})

    def _queue(self, frame: str, *, droppable: bool) -> None:
        if self._is_stopped or self._closing:
            return
        if not self._frames and not self._is_blocked and self._write_now(frame):
            return
        # One with a single emoji takes four bytes for each character.
        size, held = getsizeof(frame) + _ENTRY_BYTES, self._size + self._unsent()
        if held and held + size > self._limit:
            if droppable:
                return
            self._drop_deltas()
            if self._is_blocked and self.held_bytes + size > self._limit:
                self._give_up()
                return
        self._frames.append((frame, size, droppable))
        self._size += size
        self._wake.set()

    def _drop_deltas(self) -> None:
        self._size -= sum(size for _, size, droppable in self._frames if droppable)
        self._frames = deque(entry for entry in self._frames if not entry[2])

    def _give_up(self) -> None:
        log.info("closing a connection that does not read", held=self.held_bytes)
        self.stop()
        self._closing = (REFUSED, "the client reads too slowly")
        if self._writer is not None:
            self._writer.cancel()  # it may be waiting for this client to read


def _short(reason: str) -> str:
    """Cut a close reason to the size of a close frame."""
    return reason.encode()[:120].decode(errors="ignore")
