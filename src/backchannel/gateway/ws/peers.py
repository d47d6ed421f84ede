"""TCP connections, limited by file descriptors, and whether each has logged in.

A connection is a stranger's until it has shown a valid token. Strangers have few places. When these are taken, the
oldest stranger is closed, after a moment in which it could have shown its token. So strangers cannot keep anyone out: a
new client always finds a place, and a client that has logged in keeps its own.

Connections never take the descriptors that runs need for providers, deliveries and transcripts. Otherwise accepted runs
would fail with "too many open files". Further connections wait in the system's backlog. An asyncio server would accept
them all, and close those without a descriptor.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

import structlog
from starlette.types import Scope

log = structlog.get_logger(__name__)

_MOMENT_S = 0.25
"""The shortest stay of a stranger: enough for a few round trips."""
_CLOSED_AT_ONCE = 16
"""The connections that one turn of the loop closes; others wait meanwhile."""
_BETWEEN_S = 0.005


class Peer:
    """One TCP connection."""

    __slots__ = ("_peers", "came_at", "transport")

    def __init__(self, transport: asyncio.Transport, came_at: float, peers: Peers) -> None:
        self.transport = transport
        self.came_at = came_at
        self._peers = peers

    def unsent_bytes(self) -> int:
        """The bytes that were written and not yet taken by the other side."""
        return 0 if self.transport.is_closing() else self.transport.get_write_buffer_size()

    def let_in(self) -> None:
        """Count it as logged in: it has shown a valid token or signature."""
        self._peers.let_in(self)


class TextPort:
    """The text frames of one WebSocket, past the server's queue.

    `write` writes a frame at once; False if the client does not read, or if nothing can be written now.
    """

    __slots__ = ("_take", "write")

    def __init__(self, write: Callable[[str], bool]) -> None:
        self.write = write
        self._take: Callable[[str], None] | None = None

    def listen(self, take: Callable[[str], None]) -> None:
        """Take frames from now on."""
        self._take = take

    def hear(self, text: str) -> bool:
        """Hand a frame over; False if nobody listens."""
        if self._take is None:
            return False
        self._take(text)
        return True


class Peers:
    """All TCP connections of one gateway.

    `most` limits all connections, `strangers` those that have not logged in.
    """

    def __init__(self, *, strangers: int, most: int) -> None:
        self._strangers_kept = strangers
        self._most = most
        self._all: dict[asyncio.BaseTransport, Peer] = {}
        self._strangers: OrderedDict[Peer, None] = OrderedDict()
        self._opening = 0
        self._left = asyncio.Event()
        self._trimming: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        return len(self._all)

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    def enter(self, transport: asyncio.Transport) -> Peer:
        """Give a new connection a stranger's place."""
        peer = Peer(transport, asyncio.get_running_loop().time(), self)
        self._all[transport] = peer
        self._strangers[peer] = None
        self._trim_soon()
        return peer

    def of(self, transport: asyncio.BaseTransport) -> Peer:
        return self._all[transport]

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection that has ended."""
        peer = self._all.pop(transport, None)
        if peer is not None:
            self._strangers.pop(peer, None)
            self._left.set()

    def let_in(self, peer: Peer) -> None:
        self._strangers.pop(peer, None)

    async def wait_for_room(self) -> None:
        """Wait until there is a place for one more."""
        while len(self._all) + self._opening >= self._most:
            self._left.clear()
            await self._left.wait()

    def expect(self) -> None:
        """Reserve a place for a connection that is being opened, until `opened`."""
        self._opening += 1

    def opened(self) -> None:
        self._opening -= 1
        self._left.set()

    def close(self) -> None:
        if self._trimming is not None:
            self._trimming.cancel()

    def _trim_soon(self) -> None:
        """Schedule the close of strangers over the limit, oldest first, each after its moment."""
        if self._trimming is None and len(self._strangers) > self._strangers_kept:
            loop = asyncio.get_running_loop()
            wait_s = next(iter(self._strangers)).came_at + _MOMENT_S - loop.time()
            self._trimming = loop.call_later(max(_BETWEEN_S, wait_s), self._trim)

    def _trim(self) -> None:
        self._trimming = None
        moment_ago = asyncio.get_running_loop().time() - _MOMENT_S
        for _ in range(min(_CLOSED_AT_ONCE, len(self._strangers) - self._strangers_kept)):
            oldest = next(iter(self._strangers))
            if oldest.came_at > moment_ago:
                break
            del self._strangers[oldest]
            log.debug("a stranger was let go to make room", kept=self._strangers_kept)
            oldest.transport.abort()
        self._trim_soon()


def peer_of(scope: Scope) -> Peer | None:
    """Find the connection of a request; None under another server than ours."""
    peer = scope.get("state", {}).get("peer")
    return peer if isinstance(peer, Peer) else None


def texts_of(scope: Scope) -> TextPort | None:
    """Find the port for the text frames of a WebSocket; None under another server than ours."""
    port = scope.get("state", {}).get("texts")
    return port if isinstance(port, TextPort) else None


def let_in(scope: Scope) -> None:
    """Count the connection of a request as logged in: the request has shown a valid token or signature."""
    if (peer := peer_of(scope)) is not None:
        peer.let_in()


_RESERVE = 256
_MAC_LIMIT = 10_240
"""The real limit on macOS when it reports none."""


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as the system permits; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, _MAC_LIMIT):
        if wanted == soft:
            break
        with suppress(ValueError, OSError):  # not permitted after all: it stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
    return descriptor_limit()


def descriptor_limit() -> int:
    """The number of files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def descriptors_for_connections(descriptors: int) -> int:
    """The descriptors for connections; the rest, at most half, is a reserve."""
    return max(1, descriptors - min(max(_RESERVE, descriptors // 8), descriptors // 2))


_ACCEPTED_AT_ONCE = 16
"""The connections that one turn of the loop accepts."""
_PAUSE_S = 0.25


class Acceptor:
    """Takes connections until it is cancelled."""

    def __init__(self, bound: socket.socket, peers: Peers, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        bound.setblocking(False)
        self._bound = bound
        self._peers = peers
        self._make_protocol = make_protocol
        self._opening: set[asyncio.Task[None]] = set()
        self._is_short = False

    async def run(self) -> None:
        taken = 0
        while True:
            await self._peers.wait_for_room()
            accepted = await self._accept()
            if accepted is not None:
                self._peers.expect()
                task = asyncio.create_task(self._open(accepted))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            taken += 1
            if taken % _ACCEPTED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _accept(self) -> socket.socket | None:
        try:
            accepted, _ = await asyncio.get_running_loop().sock_accept(self._bound)
        except ConnectionError:
            return None  # it went away while it waited in line
        except OSError as error:  # no descriptors or memory left: something else has taken the reserve
            if not self._is_short:
                log.warning("no connections are taken for now", error=str(error))
            self._is_short = True
            await asyncio.sleep(_PAUSE_S)
            return None
        self._is_short = False
        return accepted

    async def _open(self, accepted: socket.socket) -> None:
        try:
            # Small answers would wait up to 40 ms for the client's acknowledgements.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, accepted)
        except OSError as error:  # it went away at once
            log.debug("a connection ended at once", error=str(error))
            accepted.close()
        finally:
            self._peers.opened()
