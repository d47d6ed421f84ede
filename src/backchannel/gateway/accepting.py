"""Taking connections from a listening socket, as many as there is room for.

The others wait in the system's own line until there is. A server of asyncio would take them all, and close those that
it has no descriptors for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import structlog

from backchannel.gateway.peers import Peers

log = structlog.get_logger(__name__)

_AT_ONCE = 16
"""How many are taken before others have their turn on the loop."""
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
            if taken % _AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _accept(self) -> socket.socket | None:
        try:
            accepted, _ = await asyncio.get_running_loop().sock_accept(self._bound)
        except ConnectionError:
            return None  # it went away while it waited in line
        except OSError as error:  # no descriptors or memory left: somebody else has taken the reserve
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
