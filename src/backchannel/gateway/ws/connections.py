"""The open WebSocket connections of a gateway, and the requests that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from backchannel.core.cluster.echoes import token_word
from backchannel.core.facts import TokenEnded
from backchannel.errors import ShuttingDown, Unavailable
from backchannel.gateway.auth import Access, TokenHolder
from backchannel.gateway.events.audiences import Subscriber
from backchannel.gateway.events.subscriptions import Subscriptions
from backchannel.gateway.openclaw.device_login import Devices
from backchannel.gateway.parts import GatewayParts
from backchannel.gateway.ws.peers import Peer
from backchannel.gateway.ws.throttling import FailedAttempts
from backchannel.runtime.events import Event, Hub
from backchannel.wire.events import Shutdown, Tick
from backchannel.wire.frames import KEEP_ALIVE_S, Policy, show_event_head

T = TypeVar("T")

REFUSED, RESTARTING = 1008, 1012
CLOSE_S = 1.0
"""The time limit of a close."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of connections."""

    frame_bytes: int = 4 * 1024 * 1024
    first_frame_bytes: int = 64 * 1024
    connections: int = 1000
    strangers: int = 256
    requests_at_once: int = 256
    buffered_bytes: int = 16 * 1024 * 1024
    handshake_s: float = 10.0
    """The time limit for the headers of a request, or for `connect`."""
    request_s: float = 60.0
    """The time limit for a whole HTTP request to arrive."""
    tick_s: float = KEEP_ALIVE_S

    @property
    def policy(self) -> Policy:
        return Policy(
            max_payload=self.frame_bytes,
            max_buffered_bytes=self.buffered_bytes,
            tick_interval_ms=int(self.tick_s * 1000),
        )


class OpenConnection(Subscriber, Protocol):
    """One WebSocket client."""

    @property
    def holder(self) -> TokenHolder | None:
        """The holder of its token; None before `connect`."""
        ...

    @property
    def held_bytes(self) -> int:
        """The bytes that wait for the client to read."""
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
        """The holders of all connected tokens."""
        return [each.holder for each in self._open if each.holder is not None]

    def check_open(self) -> None:
        """Refuse a connection if there is no place.

        Raises:
            ShuttingDown, Unavailable
        """
        if self._is_closing:
            raise ShuttingDown("the gateway is stopping: connect again when it is back")
        if self._logged_in >= self.limits.connections:
            raise Unavailable(
                f"the gateway has reached its limit of {self.limits.connections} connections: try again later"
            )

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
        """Send `tick` at a steady pace, and look for tokens that another gateway revoked."""
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
        """Close connections whose token ends, here or on another gateway; the returned function stops it."""
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
        """Close connections whose token another gateway revoked without being heard."""
        if not self.parts.runtime.duties.is_shared:
            return
        words = {token_word(holder.token_id, is_device=False) for holder in self.holders if not holder.is_issued}
        words |= {token_word(each.device_token, is_device=True) for each in self.holders if each.device_token}
        for ended in await self.parts.store.echoes(list(words)):
            self._on_ended(ended)


class OpenWaits:
    """Requests that only wait. They end when their client is gone or the gateway stops.

    All other work of a handler runs to its end, so that no change is half reported.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_over = asyncio.Event()

    def check_open(self) -> None:
        """Refuse a request after the end of the waits.

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
