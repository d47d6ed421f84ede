"""The lease of this gateway among those that work on one database.

The lease is renewed every third of its length. By this process's own clock it ends a little sooner than the others see
it end. Then, or when the others have ended this process, all work is dropped without another commit. The process enters
once more under a new number. The lease is checked before each model call, tool and send.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Protocol

import structlog

from backchannel.agents.registry import Agents
from backchannel.config.schema import Config
from backchannel.core.cluster.members import TIMERS_DUTY, GatewayInfo, GatewaySeen, LeaseRenewed
from backchannel.errors import Unavailable
from backchannel.runtime.cluster.echoing import EchoHearing, EchoService
from backchannel.storage.store import Store
from backchannel.version import __version__

log = structlog.get_logger(__name__)

SOONER = 0.2
"""The part of a lease by which a process ends it before the others do."""


class Work(EchoHearing, Protocol):
    """What the runtime does when its place among the gateways changes."""

    async def halt(self) -> None:
        """Drop all work, at once and without a commit."""
        ...

    async def go_on(self) -> None:
        """Take up work again, under a new number."""
        ...


class GatewayLease:
    """Keeps this gateway among the others."""

    def __init__(
        self,
        store: Store,
        work: Work,
        member: Callable[[], GatewayInfo],
        *,
        lease_s: float,
        polls: bool,
    ) -> None:
        """Make it; `member` is what the others are told of this gateway, `polls` whether the database has no NOTIFY."""
        self.peers: tuple[GatewaySeen, ...] = ()
        self.duties: frozenset[str] = frozenset()
        self.wanted: Callable[[], Sequence[str]] = lambda: ()
        """The duties that this gateway can do besides the timers."""
        self.on_duties: Callable[[], None] = lambda: None
        self._store = store
        self._work = work
        self._member = member
        self._lease_s = lease_s
        self._called = asyncio.Event()
        self._is_outcast = False
        self._keeping: asyncio.Task[None] | None = None
        self._taking: asyncio.Task[None] | None = None
        self.echoing = EchoService(store, work, polls=polls)
        """What is told to the others, and heard of them."""
        self.echoing.on_joined = self._called.set

    async def start(self) -> None:
        """Take the duties that nobody has, and begin to listen."""
        self._store.driver.on_ended = self._cast_out
        self.echoing.listen()
        await self._renew()
        if self._taking is not None:
            await self._taking
        self.echoing.start()
        self._keeping = asyncio.create_task(self._keep(), name="cluster")

    async def close(self) -> None:
        tasks = [task for task in (self._keeping, self._taking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.echoing.close()

    @property
    def is_alone(self) -> bool:
        return len(self.peers) < 2

    def agents_elsewhere(self) -> set[str]:
        """Name the agents that other gateways can run."""
        own = self._store.number
        return {agent_id for peer in self.peers if peer.number != own for agent_id in peer.member.agents}

    # The lease

    def _cast_out(self) -> None:
        self._is_outcast = True
        self._called.set()

    async def _keep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease_s / 3):
                    await self._called.wait()
            self._called.clear()
            try:
                await self._renew()
            except Exception:  # the edge that keeps the lease: what failed is logged, and tried again
                log.exception("the lease could not be renewed")
                await asyncio.sleep(1)

    async def _renew(self) -> None:
        began, ends, lease_ms = monotonic(), self._store.lease_ends, round(self._lease_s * 1000)
        if not self._is_outcast and began < ends:
            try:
                async with asyncio.timeout(max(0.05, min(ends - began, self._lease_s / 3))):
                    duties = [TIMERS_DUTY, *self.wanted()]
                    standing = await self._store.renew_lease(self._member().agents, duties, lease_ms)
                if monotonic() < ends:
                    self._renewed(began, standing.peers)
                    self._stand(standing)
                    return
            except (Unavailable, TimeoutError):
                if monotonic() < ends and not self._is_outcast:
                    self._called.set()  # at once: there is time left
                    await asyncio.sleep(min(0.2, self._lease_s / 10))
                    return
        # Work that found the lease over has been dropped by now, and would be taken up by nobody under this number.
        await self._begin_anew()

    def _renewed(self, began: float, peers: Sequence[GatewaySeen]) -> None:
        """Move the end of the lease; one that is alone goes on until it is told otherwise: nobody could take over."""
        self._store.lease_ends = began + self._lease_s * (1 - SOONER) if len(peers) > 1 else inf

    async def _begin_anew(self) -> None:
        log.warning("this gateway could not renew its lease, or was taken for dead: it stops its work and begins anew")
        self._set_duties(frozenset())
        self._store.lease_ends = 0.0
        await self._work.halt()
        while (began := await self._entered()) is None:  # noqa: ASYNC110 - nothing tells when the database is back
            await asyncio.sleep(min(0.5, self._lease_s / 10))
        self._is_outcast = False
        self._renewed(began, self.peers)
        self.echoing.entered_again()
        log.info("this gateway is among the others again", number=self._store.number)
        await self._work.go_on()
        self._called.set()  # duties are taken by the next renewal

    async def _entered(self) -> float | None:
        """Enter once more; returns when that began, or None if it has to be tried again.

        It may have waited for the database for so long that the lease is over by now: with that no work is begun.
        """
        began = monotonic()
        try:
            await self._store.enter(self._member(), self._lease_s)
        except Unavailable:
            return None
        return began if monotonic() < began + self._lease_s / 2 else None

    def _stand(self, standing: LeaseRenewed) -> None:
        """Take note of who is at work. What there is to do about it must not hold up the next renewal."""
        before, self.peers = self.peers, standing.peers
        self.echoing.set_peers(standing.peers)
        self._set_duties(standing.duties)
        if standing.is_any_left and (self._taking is None or self._taking.done()):
            self._taking = asyncio.create_task(self._take_over(), name="takeover")
        numbers = {peer.number for peer in before}
        if numbers != {peer.number for peer in standing.peers}:
            self._compare([peer for peer in standing.peers if peer.number not in numbers])
            self.echoing.look_soon()

    async def _take_over(self) -> None:
        """Take over from the dead; if that is refused, the next renewal finds them again."""
        number = self._store.number
        with suppress(Unavailable):
            taken = await self._store.take_over([TIMERS_DUTY, *self.wanted()])
            if number == self._store.number and not self._is_outcast:
                self._set_duties(taken.duties)
                if taken.is_any_dead:
                    self._called.set()  # asks who is left
                    self.echoing.look_soon()

    def _set_duties(self, duties: frozenset[str]) -> None:
        if duties != self.duties:
            self.duties = duties
            self.on_duties()

    def _compare(self, new: Sequence[GatewaySeen]) -> None:
        own = self._member()
        for peer in new:
            if peer.number != self._store.number:
                log.info("another gateway works on this database", gateway=peer.member.name, number=peer.number)
                for what in differences(own, peer.member):
                    log.warning(f"another gateway has another {what}", gateway=peer.member.name)


def member_of(config: Config, agents: Agents) -> GatewayInfo:
    """Say what the others are told of this gateway."""
    alike = (config.session, config.messages, config.agents, config.tools, config.channels, config.bindings)
    return GatewayInfo(
        name=f"{socket.gethostname()}:{os.getpid()}",
        version=__version__,
        config=hashlib.sha256(repr((*alike, config.cron, config.hooks)).encode()).hexdigest()[:12],
        agents=tuple(id for id in agents.ids() if not agents.is_awaited(id)),
        jobs=tuple(job.id for job in config.cron.jobs),
    )


def differences(one: GatewayInfo, other: GatewayInfo) -> list[str]:
    """Say in which ways gateways on one database differ that should be alike."""
    pairs = (("version", one.version, other.version), ("configuration", one.config, other.config))
    return [what for what, left, right in pairs if left != right]
