"""The lease of this gateway among those that work on one database.

The lease is renewed every third of its length. This process lets its lease end a little before the others see it end.
Then, or when the others have ended this process, it drops all work without another commit. It enters again under a new
number. The lease is checked before each model call, tool and send.
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

import structlog

from backchannel.agents.registry import Agents
from backchannel.config.schema import Config
from backchannel.core.cluster.members import GatewayInfo, GatewaySeen, LeaseRenewed
from backchannel.core.contracts import Clock
from backchannel.core.supervision import Backoff
from backchannel.errors import Unavailable
from backchannel.runtime.cluster.duties import Duties
from backchannel.runtime.cluster.echoing import EchoService
from backchannel.service import Service, SupervisedLoop
from backchannel.storage.store import Store
from backchannel.version import __version__

log = structlog.get_logger(__name__)

SOONER = 0.2
"""The part of a lease by which a process ends it before the others do."""
_PAUSE_S = 1.0


class GatewayLease(Service):
    """Keeps this gateway among the others."""

    name = "lease"

    def __init__(
        self,
        store: Store,
        duties: Duties,
        echoing: EchoService,
        called: asyncio.Event,
        work: Service,
        member: Callable[[], GatewayInfo],
        clock: Clock,
        lease_s: float,
    ) -> None:
        """Make a lease. `called` asks for a renewal at once. After a lost lease, `work` is halted and started again.

        `member` describes this gateway to the others.
        """
        self._store = store
        self._duties = duties
        self._echoing = echoing
        self._called = called
        self._work = work
        self._member = member
        self._lease_s = lease_s
        self._is_outcast = False
        self._kept = SupervisedLoop(self.name, clock, Backoff(_PAUSE_S, _PAUSE_S))
        self.kept = (self._kept, *echoing.kept)
        self._keeping: asyncio.Task[None] | None = None
        self._taking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take the duties that no gateway has, and begin to listen. Later calls do nothing."""
        if self._keeping is not None:
            return  # it starts the others again after a lost lease
        self._store.driver.listen_for_end(self._cast_out)
        self._echoing.listen()
        await self._renew()
        if self._taking is not None:
            await self._taking
        self._echoing.start()
        self._keeping = asyncio.create_task(self._kept.keep(self._keep), name="lease")

    async def close(self) -> None:
        tasks = [task for task in (self._keeping, self._taking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._echoing.close()

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
            await self._renew()
            self._kept.recovered()

    async def _renew(self) -> None:
        began, ends, lease_ms = monotonic(), self._store.lease_ends, round(self._lease_s * 1000)
        if not self._is_outcast and began < ends:
            try:
                async with asyncio.timeout(max(0.05, min(ends - began, self._lease_s / 3))):
                    agents, duties = self._member().agents, self._duties.wanted()
                    standing = await self._store.renew_lease(agents, duties, lease_ms)
                if monotonic() < ends:
                    self._renewed(began, standing.peers)
                    self._stand(standing)
                    return
            except (Unavailable, TimeoutError):
                if monotonic() < ends and not self._is_outcast:
                    self._called.set()  # at once: there is time left
                    await asyncio.sleep(min(0.2, self._lease_s / 10))
                    return
        # Work that saw the lease expire has been dropped. Under the old number nobody would continue it.
        await self._begin_anew()

    def _renewed(self, began: float, peers: Sequence[GatewaySeen]) -> None:
        """Move the end of the lease. A gateway that is alone needs no end: nobody could take over."""
        self._store.set_lease_end(began + self._lease_s * (1 - SOONER) if len(peers) > 1 else inf)

    async def _begin_anew(self) -> None:
        log.warning("this gateway could not renew its lease, or was taken for dead: it stops its work and begins anew")
        self._kept.fell("the lease was lost")
        self._duties.set(frozenset())
        self._store.set_lease_end(0.0)
        await self._work.halt()
        while (began := await self._entered()) is None:  # noqa: ASYNC110 - nothing tells when the database is back
            await asyncio.sleep(min(0.5, self._lease_s / 10))
        self._is_outcast = False
        self._renewed(began, self._duties.peers)
        self._echoing.entered_again()
        log.info("this gateway is among the others again", number=self._store.number)
        try:
            await self._work.start()
        except Exception:
            self._cast_out()  # halts what has started; then everything starts again
            raise
        self._called.set()  # duties are taken by the next renewal

    async def _entered(self) -> float | None:
        """Enter again; returns the time when that began, or None if it must be retried.

        The wait for the database may have used up half of the lease. Then no work is begun with it.
        """
        began = monotonic()
        try:
            await self._store.enter(self._member(), self._lease_s)
        except Unavailable:
            return None
        return began if monotonic() < began + self._lease_s / 2 else None

    def _stand(self, standing: LeaseRenewed) -> None:
        """Note which gateways are alive. Reactions run in a task, so that they do not delay the next renewal."""
        before = self._duties.peers
        self._duties.set_peers(standing.peers)
        self._echoing.set_peers(standing.peers)
        self._duties.set(standing.duties)
        if standing.is_any_left and (self._taking is None or self._taking.done()):
            self._taking = asyncio.create_task(self._take_over(), name="takeover")
        numbers = {peer.number for peer in before}
        if numbers != {peer.number for peer in standing.peers}:
            self._compare([peer for peer in standing.peers if peer.number not in numbers])
            self._echoing.look_soon()

    async def _take_over(self) -> None:
        """Take over from dead gateways. If that is refused, the next renewal finds them again."""
        number = self._store.number
        with suppress(Unavailable):
            taken = await self._store.take_over(self._duties.wanted())
            if number == self._store.number and not self._is_outcast:
                self._duties.set(taken.duties)
                if taken.is_any_dead:
                    self._called.set()  # asks who is left
                    self._echoing.look_soon()

    def _compare(self, new: Sequence[GatewaySeen]) -> None:
        own = self._member()
        for peer in new:
            if peer.number != self._store.number:
                log.info("another gateway works on this database", gateway=peer.member.name, number=peer.number)
                for what in differences(own, peer.member):
                    log.warning(f"another gateway has another {what}", gateway=peer.member.name)


def member_of(config: Config, agents: Agents) -> GatewayInfo:
    """Describe this gateway to the others."""
    alike = (config.session, config.messages, config.agents, config.tools, config.channels, config.bindings)
    return GatewayInfo(
        name=f"{socket.gethostname()}:{os.getpid()}",
        version=__version__,
        config=hashlib.sha256(repr((*alike, config.cron, config.hooks)).encode()).hexdigest()[:12],
        agents=tuple(id for id in agents.ids() if not agents.is_awaited(id)),
        jobs=tuple(job.id for job in config.cron.jobs),
    )


def differences(one: GatewayInfo, other: GatewayInfo) -> list[str]:
    """List the differences between gateways that should be alike."""
    pairs = (("version", one.version, other.version), ("configuration", one.config, other.config))
    return [what for what, left, right in pairs if left != right]
