"""What the runtime does as one of several gateways: it goes on with what others left, and hears what they did.

Where a database serves one gateway only, there is nobody else, and none of this does anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from backchannel.agents.registry import Agents
from backchannel.config.schema import Config
from backchannel.core.cluster.echoes import Topic, end_word, run_topic
from backchannel.core.cluster.members import TIMERS_DUTY, GatewaySeen, channel_duty
from backchannel.core.delivery.channels import Channel, Channels, has_connection
from backchannel.core.facts import (
    AccountHeld,
    ApprovalChanged,
    DeliveryChanged,
    Fact,
    GrowthWanted,
    GrowthWritten,
    LaneFree,
    RunChanged,
    SessionChanged,
    TimerSet,
    TokenEnded,
    TranscriptClosed,
)
from backchannel.core.keys import SessionKey
from backchannel.core.runs import NOBODY, RunState
from backchannel.core.sessions import WEBCHAT
from backchannel.errors import Unavailable
from backchannel.runtime.approvals import Approvals
from backchannel.runtime.cluster.echoing import EVERYBODY
from backchannel.runtime.cluster.growing import GrowingElsewhere, GrowingHere
from backchannel.runtime.cluster.lease import GatewayLease, member_of
from backchannel.runtime.drafts import Drafts
from backchannel.runtime.events import Hub
from backchannel.runtime.holds import AccountHolds
from backchannel.runtime.lanes import Lanes
from backchannel.runtime.outbox import Outbox
from backchannel.runtime.timers import Timers
from backchannel.runtime.waits import Waits
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

LOOKED_AT = 200
"""How much of what others left is looked at once."""
LEFT_AFTER_MS = 3000
"""How long a delivery stands in line before another process than the one that made it sends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberParts:
    """The parts of a runtime that have to do with other gateways."""

    config: Config
    store: Store
    agents: Agents
    channels: Channels
    hub: Hub
    lanes: Lanes
    waits: Waits
    approvals: Approvals
    outbox: Outbox
    drafts: Drafts
    timers: Timers
    holds: AccountHolds


class ClusterMember:
    """One gateway among those on a database."""

    def __init__(
        self,
        parts: MemberParts,
        *,
        resume: Callable[[set[str]], Awaitable[None]],
        recover: Callable[[set[str]], Awaitable[None]],
        open_or_close: Callable[[bool], None],
    ) -> None:
        """Make it; `resume` goes on with interrupted runs of agents, `recover` with queued ones too."""
        self._parts = parts
        self._resume = resume
        self._recover = recover
        self._open_or_close = open_or_close
        self._is_halted = True
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_duties: Callable[[], None] = lambda: None
        """Called when the connection of a channel is to be kept by this process, or no longer."""
        self.cluster: GatewayLease | None = None
        """Set where other gateways may work on the same database."""
        if parts.store.database.is_shared:
            self._join()
        self._here = GrowingHere(parts.store)
        self._elsewhere = GrowingElsewhere(parts.store, parts.hub)
        self._elsewhere.on_gone = self._hear_of_ends
        if parts.store.database.is_shared:
            parts.hub.listen(self._elsewhere.on_own, RunChanged)
        self._reactions: Mapping[type, Sequence[Callable[[Any], None]]] = {
            RunChanged: (self._on_run, self._elsewhere.on_run),
            LaneFree: (self._on_free,),
            DeliveryChanged: (self._on_delivery,),
            AccountHeld: (parts.holds.on_held,),
            ApprovalChanged: (parts.approvals.on_change,),
            TimerSet: (parts.timers.on_timer,),
            TranscriptClosed: (parts.store.closed_elsewhere,),
            GrowthWanted: (self._here.on_wanted,),
            GrowthWritten: (self._elsewhere.on_written,),
        }
        """Who does something about what another gateway did."""

    def _join(self) -> None:
        parts, settings = self._parts, self._parts.config.cluster
        self.cluster = GatewayLease(
            parts.store,
            self,
            lambda: member_of(parts.config, parts.agents),
            lease_s=settings.lease_seconds,
            polls=settings.wakeups == "poll",
        )
        self.cluster.on_duties = self._duties_changed
        parts.hub.on_wants, parts.waits.on_wait = self._on_wants, self._on_wait
        parts.lanes.is_awaited = self._is_left_to_others
        parts.agents.elsewhere = self.cluster.agents_elsewhere
        parts.timers.is_on_duty = False
        parts.outbox.sends_over = parts.drafts.sends_over = self._sends_over

    async def start(self) -> None:
        """Take a place among the others; what they left is gone on with from `begin` on."""
        if self.cluster is not None:
            self._here.listen_to(self._parts.hub)
            await self.cluster.start()
            for loop in (self._here.write, self._elsewhere.ask):
                self._spawn(_kept_going(loop))

    def begin(self) -> None:
        """Go on with what others leave from now on: what was left at the start is seen to."""
        self._is_halted = False

    async def close(self) -> None:
        if self.cluster is not None:
            await self.cluster.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def tell(self, facts: Sequence[Fact]) -> None:
        """Tell the others of a commit."""
        if self.cluster is not None:
            self.cluster.echoing.tell(facts)

    @property
    def peers(self) -> Sequence[GatewaySeen]:
        """The gateways on this database; none where there is only one at a time."""
        return () if self.cluster is None else self.cluster.peers

    @property
    def is_alone(self) -> bool:
        return self.cluster is None or self.cluster.is_alone

    def own_agents(self) -> set[str]:
        """Name the agents whose runs this process can carry out."""
        agents = self._parts.agents
        return {id for id in agents.ids() if not agents.is_awaited(id)}

    def _is_left_to_others(self, agent_id: str) -> bool:
        """Whether runs of an agent do not start here: they wait for a gateway that has it."""
        return agent_id not in self.own_agents()

    # Duties

    def has_duty(self, channel: Channel) -> bool:
        """Whether this process keeps the connection of a channel, if it has one."""
        return not has_connection(channel) or self.cluster is None or channel_duty(channel.name) in self.cluster.duties

    def want(self, channels: Callable[[], Sequence[str]]) -> None:
        """Say which channels keep a connection that this process can have."""
        if self.cluster is not None:
            self.cluster.wanted = lambda: [channel_duty(name) for name in channels()]

    def _duties_changed(self) -> None:
        if self.cluster is not None:
            self._parts.timers.set_duty(TIMERS_DUTY in self.cluster.duties)
            self.on_duties()
            self._spawn(self._wake_chats())

    async def _wake_chats(self) -> None:
        with suppress(Unavailable):
            for lane in await self._parts.store.lanes_in_line():
                self._parts.outbox.wake(lane)

    def _sends_over(self, name: str) -> bool:
        channel = self._parts.channels.get(name)
        if channel is None:  # webchat, or one that only others have
            return name == WEBCHAT.channel or self.is_alone
        return self.has_duty(channel)

    # What others have to hear, and what is heard of them

    def who_acts(self, fact: Fact) -> Set[int] | None:
        """Name the gateways that have to do something about a fact, or everybody; None if it is nobody.

        A queued run needs nobody else: it starts here, or when the run before it ends, wherever that is.
        """
        match fact:
            case RunChanged(run) if run.abort_requested and run.state is RunState.RUNNING:
                return None if run.fence in (self._parts.store.number, NOBODY) else frozenset((run.fence,))
            case RunChanged(run) if run.state is RunState.QUEUED and run.resume_at is None:
                return self._unless(self._parts.lanes.has_room(run.session_key))
            case LaneFree(key):
                return self._unless(self._parts.lanes.has_room(key))
            case DeliveryChanged(delivery):
                return self._unless(self._sends_over(delivery.channel or WEBCHAT.channel))
            case TimerSet():
                return self._unless(self._parts.timers.is_on_duty)
            case SessionChanged(reason="delete"):
                return EVERYBODY
        return EVERYBODY if isinstance(fact, _FOR_EVERYBODY) else None

    def _unless(self, is_done_here: bool) -> Set[int] | None:
        return None if is_done_here else EVERYBODY

    def wanted_topics(self) -> Set[Topic]:
        """Name what somebody here waits for that other gateways may commit: not runs that this one works on."""
        waited = {run_topic(run_id) for run_id in self._parts.waits.waited_for()}
        topics = self._parts.hub.wanted_topics() | waited
        return {topic for topic in topics if not (topic[0] == "run" and self._parts.lanes.works_on(topic[1]))}

    def _on_wants(self, run_id: str | None) -> None:
        if run_id is None or not self._parts.lanes.works_on(run_id):
            self._elsewhere.look_soon()
            self._on_wait(run_id)

    def _on_wait(self, run_id: str | None) -> None:
        if self.cluster is not None and not (run_id and self._parts.lanes.works_on(run_id)):
            self.cluster.echoing.want()

    def happened_elsewhere(self, facts: Sequence[Fact]) -> None:
        """Take what another gateway did: whoever waits is woken, and whoever watches is told."""
        for fact in facts:
            for react in self._reactions.get(type(fact), ()):
                react(fact)
            if not (isinstance(fact, RunChanged) and fact.run.fence == self._parts.store.number):
                self._parts.hub.publish_elsewhere(fact)

    def _on_run(self, fact: RunChanged) -> None:
        run = fact.run
        if run.is_finished:
            self._parts.waits.on_run(fact)
        elif run.state is RunState.QUEUED:
            self._on_free(LaneFree(run.session_key))
        elif run.abort_requested and run.fence == self._parts.store.number:
            self._parts.lanes.on_run(fact)

    def _on_free(self, fact: LaneFree) -> None:
        """Start a run that another gateway cannot start, if this one can."""
        lanes = self._parts.lanes
        if not self._is_halted and SessionKey.stored(fact.key).agent in self.own_agents() and lanes.has_room(fact.key):
            lanes.wake(fact.key)

    def _on_delivery(self, fact: DeliveryChanged) -> None:
        """Send what the process that made it may not; any other has begun already."""
        channel = self._parts.channels.get(fact.delivery.channel or "")
        if channel is not None and has_connection(channel):
            self._parts.outbox.on_delivery(fact)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Going on with what others left

    async def look_again(self) -> None:
        """Look for work that nobody does, and for what was waited for and not heard."""
        if self._is_halted:
            return
        parts = self._parts
        left = await parts.store.leftovers(LEFT_AFTER_MS)
        parts.agents.remember(left.functions)
        if left.has_drafts:
            await parts.drafts.take_over()
        if left.has_runs:
            await self._resume(self.own_agents())
        if left.has_queue:
            await self._start_left()
        if left.has_parts:
            await parts.outbox.recover()
        if left.has_lanes:
            for lane in await parts.store.lanes_left(LEFT_AFTER_MS):
                parts.outbox.wake(lane)
        if left.has_due:
            parts.timers.on_timer(TimerSet(0))
        await self._look_for_answers()
        if left.has_readers:
            await self._here.look()
        if self.wanted_topics():
            await self._elsewhere.look()

    async def _start_left(self) -> None:
        agents = self.own_agents()
        for key in await self._parts.store.startable(LOOKED_AT):
            if SessionKey.stored(key).agent in agents:
                self._parts.lanes.wake(key)

    async def _look_for_answers(self) -> None:
        lanes = self._parts.lanes
        self._hear_of_ends(
            [id for kind, id in self._parts.hub.wanted_topics() if kind == "run" and not lanes.works_on(id)]
        )
        words = [("run", id) for id in self._parts.waits.waited_for() if not lanes.works_on(id)]
        words += [("approval", id) for id in self._parts.approvals.waited_for()]
        for start in range(0, len(words), LOOKED_AT):
            for fact in await self._parts.store.echoes(words[start : start + LOOKED_AT]):
                if isinstance(fact, RunChanged):
                    self._parts.waits.on_run(fact)
                elif isinstance(fact, ApprovalChanged):
                    self._parts.approvals.on_change(fact)

    def _hear_of_ends(self, run_ids: Sequence[str]) -> None:
        """Tell those who follow runs of other gateways how these have ended, if no word of it came."""
        if self.cluster is not None and run_ids:
            self.cluster.echoing.hear([end_word(id) for id in run_ids])

    async def halt(self) -> None:
        """Drop all work at once: others may have taken it over."""
        self._is_halted = True
        self._open_or_close(False)
        parts = self._parts
        await asyncio.gather(parts.lanes.close(), parts.outbox.close(limit_s=0), parts.drafts.close())
        parts.waits.look_first()
        self._here.drop()

    async def go_on(self) -> None:
        """Take up work again under a new number."""
        self._parts.lanes.reopen()
        self._open_or_close(True)
        await self._parts.drafts.start()
        await self._parts.outbox.start()
        await self._recover(self.own_agents())
        self.begin()


_FOR_EVERYBODY = (AccountHeld, ApprovalChanged, GrowthWanted, GrowthWritten, TokenEnded, TranscriptClosed)
"""What is rare, or was asked for by whom it is not known here."""


async def _kept_going(loop: Callable[[], Awaitable[None]]) -> None:
    """Do something for as long as the process lives; what fails in it stops nothing else."""
    while True:
        try:
            await loop()
        except Exception:  # the edge that keeps the loop going: what one look finds wrong must not end all later ones
            log.exception("what is streamed is not shared with other gateways for a moment")
            await asyncio.sleep(1)
