"""A member of a cluster: it takes over others' work, and hears of their commits.

A database that serves one gateway has no members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from backchannel.agents.registry import Agents
from backchannel.config.schema import Config
from backchannel.core.cluster.echoes import Topic, end_word, run_topic
from backchannel.core.contracts import Clock
from backchannel.core.delivery.channel_list import Channels
from backchannel.core.delivery.channels import has_connection
from backchannel.core.facts import (
    AccountHeld,
    ApprovalChanged,
    CheckDue,
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
from backchannel.runtime.cluster.duties import Duties
from backchannel.runtime.cluster.echoing import EVERYBODY, EchoService
from backchannel.runtime.cluster.growing import GrowingElsewhere, GrowingHere
from backchannel.runtime.cluster.lease import GatewayLease, member_of
from backchannel.runtime.cluster.offering import RunOffers
from backchannel.runtime.drafts import Drafts
from backchannel.runtime.events import Hub
from backchannel.runtime.lanes import Lanes
from backchannel.runtime.outbox import Outbox
from backchannel.runtime.recovery import Recovery
from backchannel.runtime.supervisor import DatabaseWait, Tasks
from backchannel.runtime.timers import LONGEST_SLEEP_S, Timers
from backchannel.runtime.waits import Waits
from backchannel.service import Reactions, Service
from backchannel.storage.store import Store

LOOKED_AT = 200
"""How much of what others left is looked at once."""
LEFT_AFTER_MS = 3000
"""How long a delivery stands in line before another process than the one that made it sends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberParts:
    """The parts of a runtime that deal with other gateways."""

    config: Config
    store: Store
    agents: Agents
    channels: Channels
    hub: Hub
    clock: Clock
    duties: Duties
    lanes: Lanes
    waits: Waits
    approvals: Approvals
    outbox: Outbox
    drafts: Drafts
    timers: Timers
    recovery: Recovery
    wait: DatabaseWait


class ClusterMember(Service):
    """One of the gateways on a database. It reacts to the others' commits, and takes over their work."""

    name = "streams"

    def __init__(self, parts: MemberParts, work: Service) -> None:
        """Make a member. After a lost lease, `work` is halted and started again."""
        self._parts = parts
        self._is_halted = True
        self._tasks = Tasks()
        settings, called = parts.config.cluster, asyncio.Event()
        polls = settings.wakeups == "poll"
        self.echoing = EchoService(parts.store, self, called.set, parts.clock, parts.wait, polls=polls)
        """What is told to the others, and heard of them."""
        self.lease = GatewayLease(
            parts.store,
            parts.duties,
            self.echoing,
            called,
            work,
            lambda: member_of(parts.config, parts.agents),
            parts.clock,
            settings.lease_seconds,
        )
        self._here = GrowingHere(parts.store, parts.hub, parts.wait, parts.clock)
        self._elsewhere = GrowingElsewhere(parts.store, parts.hub, parts.wait, parts.clock, self._hear_of_ends)
        self._offers = RunOffers(parts.lanes, self._others, self.echoing.send)
        self._loops = {self._here.kept: self._here.write, self._elsewhere.kept: self._elsewhere.ask}
        self.kept = tuple(self._loops)
        parts.hub.listen_for_wants(self._on_want)
        parts.duties.listen(self._on_duties)
        self._reactions: Mapping[type, Sequence[Callable[[Any], None]]] = {
            RunChanged: (self._on_run, self._elsewhere.on_run),
            LaneFree: (self._on_free,),
            DeliveryChanged: (self._on_delivery,),
            AccountHeld: (parts.outbox.on_held,),
            ApprovalChanged: (parts.approvals.on_change,),
            TimerSet: (parts.timers.on_timer,),
            TranscriptClosed: (parts.store.closed_elsewhere,),
            GrowthWanted: (self._here.on_wanted,),
            GrowthWritten: (self._elsewhere.on_written,),
        }
        """Reactions to the facts of other gateways."""

    def reactions(self) -> Reactions:
        return {RunChanged: self._offers.on_run, LaneFree: self._offers.on_free}

    def _others(self) -> list[int]:
        return sorted({peer.number for peer in self._parts.duties.peers} - {self._parts.store.number})

    async def start(self) -> None:
        """Watch for work that others leave from now on. Earlier leftovers are taken over already."""
        if self._is_halted:
            self._is_halted = False
            for kept, loop in self._loops.items():
                self._tasks.spawn(kept.keep(loop), kept.name)

    async def halt(self) -> None:
        await self.close()
        self._here.drop()

    async def close(self) -> None:
        self._is_halted = True
        await self._tasks.cancel()

    def _on_duties(self) -> None:
        self._tasks.spawn(self._wake_chats())

    async def _wake_chats(self) -> None:
        with suppress(Unavailable):
            for lane in await self._parts.store.lanes_in_line():
                self._parts.outbox.wake(lane)

    # Facts for other gateways, and facts from them

    def who_acts(self, fact: Fact) -> Set[int] | None:
        """Return the gateways that must act on a fact, or `EVERYBODY`; None if no other gateway must.

        A queued run needs no other gateway if its agent is here. It starts when a slot is free, here or where it is
        offered to (`RunOffers`), and when the run before it has ended, on any gateway.
        """
        match fact:
            case RunChanged(run) if run.abort_requested and run.state is RunState.RUNNING:
                return None if run.fence in (self._parts.store.number, NOBODY) else frozenset((run.fence,))
            case RunChanged(run) if run.state is RunState.QUEUED and run.resume_at is None:
                return self._unless(self._is_here(run.session_key))
            case LaneFree(key):
                return self._unless(self._is_here(key))
            case DeliveryChanged(delivery):
                return self._unless(self._parts.duties.sends_over(delivery.channel or WEBCHAT.channel))
            case TimerSet(due_at):
                is_far = due_at - self._parts.clock.now_ms() > 2000 * LONGEST_SLEEP_S
                return self._unless(self._parts.duties.has_timers or is_far)
            case SessionChanged(reason="delete"):
                return EVERYBODY
        return EVERYBODY if isinstance(fact, _FOR_EVERYBODY) else None

    def _unless(self, is_done_here: bool) -> Set[int] | None:
        return None if is_done_here else EVERYBODY

    def _is_here(self, key: str) -> bool:
        return SessionKey.stored(key).agent in self._parts.agents.ids_here()

    def wanted_topics(self) -> Set[Topic]:
        """Return the topics that clients here wait for, without the runs of this gateway."""
        lanes = self._parts.lanes
        return {
            (kind, id) for kind, id in self._topics() if kind != "run" or not (lanes.works_on(id) or lanes.expects(id))
        }

    def is_expecting(self) -> bool:
        """Whether clients here wait for a run that is queued and will probably start here."""
        return any(kind == "run" and self._parts.lanes.expects(id) for kind, id in self._topics())

    def _topics(self) -> Set[Topic]:
        return self._parts.hub.wanted_topics() | {run_topic(run_id) for run_id in self._parts.waits.waited_for()}

    def _on_want(self, run_id: str | None, streams: bool) -> None:
        if run_id is None or not self._parts.lanes.works_on(run_id):
            if streams:
                self._elsewhere.look_soon()
            self.echoing.want()

    def happened_elsewhere(self, facts: Sequence[Fact]) -> None:
        """Handle the facts of another gateway: wake those who wait, and tell those who watch."""
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
        if not self._is_halted and self._is_here(fact.key) and self._parts.lanes.has_room(fact.key):
            self._parts.lanes.wake(fact.key)

    def _on_delivery(self, fact: DeliveryChanged) -> None:
        """Send a delivery that the gateway which made it cannot send. All others are being sent already."""
        channel = self._parts.channels.get(fact.delivery.channel or "")
        if channel is not None and has_connection(channel):
            self._parts.outbox.on_delivery(fact)

    # Taking over work that others left

    async def look_again(self) -> None:
        """Look for work without a gateway, and for awaited outcomes whose echo was lost."""
        if self._is_halted:
            return
        parts = self._parts
        left = await parts.store.leftovers(LEFT_AFTER_MS)
        parts.agents.remember(left.functions)
        if left.has_drafts:
            await parts.drafts.take_over()
        if left.has_runs:
            await parts.recovery.resume_interrupted(parts.agents.ids_here())
        if left.has_queue and parts.lanes.has_any_room():
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
        for key in await self._parts.store.startable(LOOKED_AT):
            self._on_free(LaneFree(key))

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
        """Look up whether runs of other gateways have ended, for clients that follow them. An echo may be lost."""
        if run_ids:
            self.echoing.hear([end_word(id) for id in run_ids])


_FOR_EVERYBODY = (AccountHeld, ApprovalChanged, CheckDue, GrowthWanted, GrowthWritten, TokenEnded, TranscriptClosed)
"""Facts that are rare, or whose interested gateway is not known here."""
