"""What the connections of a gateway share, and what a method is: its parameters, its handler, and what that works on.

To add a method: write its parameters and its handler in a file of `methods/`, add its line to that file's `METHODS`,
and run `python docs/build/reference.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Raw

from backchannel.core.cluster.echoes import token_word
from backchannel.core.facts import TokenEnded
from backchannel.core.incoming_json import TooMuchJson, check_parts
from backchannel.errors import Forbidden, InvalidRequest, ScopeMissing, ShuttingDown, Unavailable
from backchannel.gateway.auth import Access, TokenHolder
from backchannel.gateway.events.audiences import Subscriber
from backchannel.gateway.events.subscriptions import Subscriptions
from backchannel.gateway.openclaw.device_login import Devices
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.peers import Peer
from backchannel.gateway.ws.throttling import FailedAttempts
from backchannel.runtime.events import Event, Hub
from backchannel.wire.events import Shutdown, Tick
from backchannel.wire.frames import KEEP_ALIVE_S, Policy, TokenScope, show_event_head
from backchannel.wire.shapes import Params, SharedParams, bad_params

T = TypeVar("T")
P = TypeVar("P", bound=Params)

REFUSED, RESTARTING = 1008, 1012
CLOSE_S = 1.0
"""How long a close may take to get through."""


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
    tick_s: float = KEEP_ALIVE_S

    @property
    def policy(self) -> Policy:
        return Policy(
            max_payload=self.frame_bytes,
            max_buffered_bytes=self.buffered_bytes,
            tick_interval_ms=int(self.tick_s * 1000),
        )


class OpenConnection(Subscriber, Protocol):
    """One WebSocket client, as far as the gateway knows all of them."""

    @property
    def holder(self) -> TokenHolder | None:
        """Who has connected; None before that."""
        ...

    @property
    def held_bytes(self) -> int:
        """How much memory waits for the client to read."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Send what is queued, then close."""
        ...


class Connections:
    """All WebSocket connections of one gateway."""

    def __init__(
        self, parts: GatewayParts, access: Access, devices: Devices, subscriptions: Subscriptions, limits: Limits
    ) -> None:
        self.parts = parts
        self.access = access
        self.devices = devices
        self.subscriptions = subscriptions
        self.limits = limits
        self.failed_logins = 0
        self.wrong_codes = FailedAttempts(parts.clock, "pairing code")
        self._open: set[OpenConnection] = set()
        self._logged_in = 0
        self._is_empty = asyncio.Event()
        self._is_closing = False
        self._started_at = parts.clock.monotonic()

    @property
    def count(self) -> int:
        return len(self._open)

    @property
    def holders(self) -> list[TokenHolder]:
        """Those who have connected."""
        return [each.holder for each in self._open if each.holder is not None]

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
        return int((self.parts.clock.monotonic() - self._started_at) * 1000)

    def enter(self, connection: OpenConnection) -> None:
        """Count a connection that was accepted."""
        self._open.add(connection)

    def leave(self, connection: OpenConnection) -> None:
        """Forget a connection that has ended."""
        self._open.discard(connection)
        self._logged_in -= connection.holder is not None
        self.subscriptions.leave(connection)
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
        """Send an event to all clients that have connected."""
        head = show_event_head(event, payload)
        for connection in list(self._open):
            if connection.holder is not None:
                connection.send_event(head, droppable=False)

    async def tick(self) -> None:
        """Send clients a sign of life at a steady pace, and look whose token another gateway has ended unheard."""
        clock = self.parts.clock
        while True:
            await clock.sleep(self.limits.tick_s)
            self.broadcast("tick", Tick(ts=clock.now_ms()))
            with suppress(Unavailable):  # the next look is as good
                await self._look_for_ended()

    async def close(self, reason: str) -> None:
        """Announce to all clients that the gateway stops, and close their connections."""
        self._is_closing = True
        self.broadcast("shutdown", Shutdown(reason=reason))
        for connection in list(self._open):
            connection.close(RESTARTING, reason)
        if self._open:
            self._is_empty.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * CLOSE_S):
                    await self._is_empty.wait()

    def listen_to(self, hub: Hub) -> Callable[[], None]:
        """Close connections whose token ends, here or on another gateway; the function returned stops it."""
        return hub.listen(self._on_ended, TokenEnded, elsewhere=True)

    def _on_ended(self, event: Event) -> None:
        if isinstance(event, TokenEnded):
            self._close_token(event)

    def _close_token(self, ended: TokenEnded) -> None:
        for connection in list(self._open):
            holder = connection.holder
            if holder is not None and ended.id == (holder.device_token if ended.is_device else holder.token_id):
                connection.close(REFUSED, "the token was revoked")

    async def _look_for_ended(self) -> None:
        """Close connections whose token was ended by a gateway of which nothing was heard."""
        if not self.parts.runtime.duties.is_shared:
            return
        words = {token_word(holder.token_id, is_device=False) for holder in self.holders if not holder.is_issued}
        words |= {token_word(each.device_token, is_device=True) for each in self.holders if each.device_token}
        for ended in await self.parts.store.echoes(list(words)):
            self._on_ended(ended)


class OpenWaits:
    """Requests that only wait. They are ended when their client is gone, or when the gateway stops.

    Everything else that a handler does runs to its end, so that no change is left half reported.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_over = asyncio.Event()

    def check_open(self) -> None:
        """Refuse what comes when the waits are over.

        Raises:
            ShuttingDown: nothing of it was begun.
        """
        if self._is_over.is_set():
            raise _stopping()

    async def until(self, awaitable: Awaitable[T]) -> T:
        """Await something in the current task.

        Raises:
            ShuttingDown: the waits were ended first; what the request has started goes on.
        """
        task = asyncio.current_task()
        if self._is_over.is_set():
            asyncio.ensure_future(awaitable).cancel()
            raise _stopping()
        assert task is not None
        self._tasks.add(task)
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self._is_over.is_set() and task.uncancel() == 0:
                raise _stopping() from None
            raise
        finally:
            self._tasks.discard(task)

    @property
    def count(self) -> int:
        return len(self._tasks)

    def end(self) -> list[asyncio.Task[object]]:
        """Stop waiting; returns the tasks that were waiting."""
        self._is_over.set()
        stopped = list(self._tasks)
        for task in stopped:
            task.cancel()
        return stopped


def _stopping() -> ShuttingDown:
    return ShuttingDown("the gateway is stopping: ask again when it is back, what was accepted goes on then")


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as its handler sees it."""

    parts: GatewayParts
    connections: Connections
    holder: TokenHolder
    subscriber: Subscriber
    waits: OpenWaits
    answer_first: Callable[[object], None]
    """Sends an answer before the last one, with the same id."""

    @property
    def subscriptions(self) -> Subscriptions:
        return self.connections.subscriptions


class Method(Generic[P]):
    """One line of the method table."""

    def __init__(
        self,
        name: str,
        params: type[P],
        scope: TokenScope,
        handler: Callable[[Call, P], Awaitable[Any]],
        answer: str,
        *,
        for_agents: bool = False,
        for_nodes: bool = False,
        is_open: bool = False,
        part: str | None = None,
    ) -> None:
        self.name = name
        self.params = params
        self.scope = scope
        self.handler = handler
        self.answer = answer
        self.for_agents = for_agents
        """Whether an agent's token may call it; the handler keeps it to the token's own session."""
        self.for_nodes = for_nodes
        """Whether only nodes may call it; the handler keeps it to the node's own sessions."""
        self.is_open = is_open
        """Whether an operator needs no scope for it: it tells everybody the same, which is nothing."""
        self.part = part
        """The part of the scope admin that is enough for it: OpenClaw's clients then ask for no other scope."""
        self._decode = msgspec.json.Decoder(params).decode

    @property
    def is_shared(self) -> bool:
        """Whether OpenClaw's gateway has it too: then parameters that are not known are ignored."""
        return issubclass(self.params, SharedParams)

    @property
    def doc(self) -> str:
        """What it does, in a sentence: the first line of its handler's docstring."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]

    def read_params(self, raw: Raw) -> P:
        """Read a request's parameters.

        Raises:
            InvalidRequest: one is missing, of the wrong type, or unknown where that is not ignored; the message
                names it.
        """
        body = bytes(raw) if raw else b"{}"
        try:
            check_parts(body)
            return self._decode(b"{}" if body == b"null" else body)
        except TooMuchJson as error:
            raise InvalidRequest(f"{self.name}: {error}") from None
        except msgspec.ValidationError as error:
            raise bad_params(self.name, error, self.params) from None


def check_allowed(holder: TokenHolder, method: Method[Any], methods: Mapping[str, Method[Any]]) -> None:
    """Refuse a method that the token does not permit.

    Raises:
        Forbidden: an agent's token or a node may not call it, or only a node may.
        ScopeMissing: the method needs a scope that was not granted.
    """
    if holder.node is not None:
        if not method.for_nodes:
            open_to_it = ", ".join(sorted(name for name, each in methods.items() if each.for_nodes))
            raise Forbidden(f"a node may not call {method.name} (it may call {open_to_it})")
    elif method.for_nodes:
        raise Forbidden(f"{method.name} is for nodes (connect with the role node and a nodeId)")
    elif holder.is_agent:
        if not method.for_agents:
            raise Forbidden(f"an agent's token may not call {method.name}")
    elif not (method.scope in holder.scopes or method.is_open or method.part in holder.parts):
        raise ScopeMissing(
            f"{method.name} needs the scope {method.scope.value} (granted: {', '.join(holder.shown_scopes) or 'none'})",
            scope=method.scope.value,
        )
