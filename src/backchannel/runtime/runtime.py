"""The runtime: one list of services, and what doors need of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from backchannel.agents.gates import MODEL, Gates
from backchannel.agents.models import Models
from backchannel.agents.registry import Agents
from backchannel.config.schema import Config
from backchannel.core.contracts import Check, Clock, ToolSet
from backchannel.core.delivery.channel_list import Channels
from backchannel.core.facts import (
    DeliveryChanged,
    Fact,
    PairingChanged,
    PolicyShadowed,
    QueueFilled,
    RunChanged,
    SessionBegunAnew,
    SessionChanged,
)
from backchannel.core.keys import SessionKey, normalise_agent_id
from backchannel.core.messages import Message, Provenance, ProvenanceKind, Role, text_content
from backchannel.core.policy.inbound import Arrival, InboundTaken
from backchannel.core.policy.send_policy import SendDecision
from backchannel.core.runs import RunAccepted, RunKind, RunRequest
from backchannel.core.sessions import Session
from backchannel.core.supervision import ServiceHealth
from backchannel.errors import ShuttingDown, Unavailable
from backchannel.runtime.approvals import Approvals
from backchannel.runtime.cluster.duties import Duties
from backchannel.runtime.cluster.media import Media
from backchannel.runtime.cluster.member import ClusterMember, MemberParts
from backchannel.runtime.compaction import Compaction
from backchannel.runtime.conversations import Conversations
from backchannel.runtime.drafts import Drafts
from backchannel.runtime.events import Event, Hub, Retries, log_failures, log_pairings, log_sessions
from backchannel.runtime.guard import SendGuard
from backchannel.runtime.holding import Holding
from backchannel.runtime.holds import AccountHolds
from backchannel.runtime.indexing import Indexing
from backchannel.runtime.lanes import RUN, Lanes
from backchannel.runtime.model_calls import ModelCalls, Releases
from backchannel.runtime.outbox import Outbox
from backchannel.runtime.pictures import Pictures
from backchannel.runtime.recovery import Functions, Recovery
from backchannel.runtime.runner import Runner
from backchannel.runtime.slots import RunSlots
from backchannel.runtime.spending import Spending
from backchannel.runtime.supervisor import DatabaseWait, Supervisor
from backchannel.runtime.timers import ClockCheck, Timers
from backchannel.runtime.waits import Exchanges, Waits
from backchannel.runtime.watchdog import Watchdog
from backchannel.service import Service
from backchannel.storage.ids import new_id
from backchannel.storage.store import Store

AWAY_MS = 1000


class Runtime(Service):
    """Everything that happens between a door and the store."""

    name = "runtime"

    def __init__(
        self,
        config: Config,
        store: Store,
        agents: Agents,
        models: Models,
        tools: ToolSet,
        clock: Clock,
        channels: Channels,
        gates: Gates,
        guard: SendGuard,
    ) -> None:
        self._store, self._agents, self._clock = store, agents, clock
        self.hub = Hub()
        self.hub.listen(log_failures, RunChanged, DeliveryChanged)
        self.hub.listen(log_pairings, PairingChanged)
        self.hub.listen(log_sessions, SessionBegunAnew, QueueFilled)
        self.retries = Retries(self.hub)
        self.guard = guard
        self.hub.listen(self.guard.on_shadowed, PolicyShadowed)
        self.duties = Duties(store, channels, agents)
        """What this gateway does for all on the same database."""
        self.media = Media(store)
        self._wait = DatabaseWait(store, clock)
        defaults = config.agents.defaults
        slots = RunSlots(gates.shares(defaults.max_concurrent), gates.shares(defaults.subagents.max_concurrent))
        rules, lives_ms = config.tools.approval, config.tools.approval_lives_ms
        self._approvals = Approvals(store, rules, lives_ms, self.hub, slots)
        gate = gates.gate(MODEL, defaults.max_concurrent, grows=False)
        self._releases = Releases(store, clock, self.duties)
        self.model_calls = ModelCalls(store, models, gate, clock, self._releases.answered)
        holding = Holding(store, self._wait, keeps_an_hour=config.models.cache == "1h")
        self.compaction = Compaction(store, agents, models, self.model_calls, holding, self.hub, clock, self._wait)
        self._conversations = Conversations(store, Pictures(self.media), self.compaction, clock, self._wait)
        self._spending = Spending(store, holding, self._approvals, clock, self._wait)
        self._lanes = self._make_lanes(tools, gates, slots)
        self._waits = Waits(store, self.hub)
        holds = AccountHolds(clock)
        self._drafts = Drafts(store, channels, clock, holds, self.hub, self._wait, self.duties)
        self.outbox = Outbox(store, channels, clock, holds, self._drafts.settled, self._wait, self.duties, self.media)
        self._timers = Timers(store, clock, self.outbox.wake, self._wait, self.duties)
        self.exchanges = Exchanges(store, slots, self._waits, self.hub, clock)
        self.watchdog = Watchdog(store)
        self.indexing = Indexing(store, clock, self._wait, self.duties)
        self._functions = Functions(store, agents)
        self._recovery = Recovery(store, agents, self._lanes, self.hub, clock)
        self.member = self._join(config, channels) if self.duties.is_shared else None
        """This gateway among others on the same database."""
        self.supervisor = Supervisor(self._services(), clock)
        self._reactions = self.supervisor.reactions()
        self.wait = self._waits.ended
        self.attachments = store.attachments
        self.durably = self._wait.durably
        """Commits or reads for a part outside, and waits while the database is away."""
        store.listen_for_facts(self._on_facts)

    def _make_lanes(self, tools: ToolSet, gates: Gates, slots: RunSlots) -> Lanes:
        store, agents = self._store, self._agents
        runner = Runner(
            store,
            agents,
            tools,
            self._approvals,
            self.hub,
            self._clock,
            self._conversations,
            self._spending,
            self.model_calls,
            self._wait,
            self.media,
        )
        # On a shared database, runs of an agent that this gateway does not know wait for one that does.
        is_left = (lambda agent_id: not agents.is_here(agent_id)) if self.duties.is_shared else agents.is_awaited
        lanes = Lanes(store, runner.work, slots, is_left, self._wait)
        gates.add(RUN, lanes)
        return lanes

    def _join(self, config: Config, channels: Channels) -> ClusterMember:
        parts = MemberParts(
            config=config,
            store=self._store,
            agents=self._agents,
            channels=channels,
            hub=self.hub,
            clock=self._clock,
            duties=self.duties,
            lanes=self._lanes,
            waits=self._waits,
            approvals=self._approvals,
            outbox=self.outbox,
            drafts=self._drafts,
            timers=self._timers,
            recovery=self._recovery,
            wait=self._wait,
        )
        return ClusterMember(parts, self)

    def _services(self) -> list[Service]:
        """List all services in the order of their start; they close in reverse."""
        member = self.member
        return [
            # Waits come before the lanes: a run that returns from a wait comes before queued ones.
            self._waits,
            self._approvals,
            self._wait,
            self._functions,  # before the lease, which tells the others which agents are here
            *([member.lease] if member is not None else ()),
            ClockCheck(self._store, self.duties),  # before anything reads a time out of a row
            self._drafts,  # before the outbox: what an earlier process left in a chat is decided before more is sent
            self.outbox,
            self._releases,
            self.compaction,
            self._conversations,  # before the lanes: a halted run's conversation is read anew
            self._spending,
            self._lanes,
            self._recovery,
            *([member] if member is not None else ()),  # goes on with what others leave, once its own work goes on
            self._timers,
            self.indexing,  # last: nobody waits for it
            self.watchdog,
        ]

    def _on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            for react in self._reactions.get(type(fact), ()):
                react(fact)
            self.hub.publish(fact)
        if self.member is not None:
            self.member.echoing.tell(facts)

    async def start(self) -> None:
        """Go on with everything that was accepted; also after the lease was lost."""
        await self.supervisor.start()

    async def halt(self) -> None:
        await self.supervisor.halt()

    async def close(self) -> None:
        await self.supervisor.close()

    def health(self) -> Mapping[str, ServiceHealth]:
        return self.supervisor.health()

    def agent_added(self, agent_id: str) -> None:
        """Go on with what was accepted for an agent that was registered after the start."""
        if self.supervisor.is_open:
            self._recovery.add(normalise_agent_id(agent_id))

    async def forget_agent(self, agent_id: str) -> None:
        """Stop waiting for an agent's function: the agent is what the configuration says from now on.

        Raises:
            UnknownAgent, InvalidRequest: as `Functions.forget`.
        """
        await self._recovery.recover({await self._functions.forget(agent_id)})

    @property
    def clock_set_back_at(self) -> float | None:
        """When the clock was last seen to be set back, on the monotonic clock."""
        return self._timers.set_back_at

    @property
    def running(self) -> int:
        """How many runs are at work in this process."""
        return self._lanes.running

    async def submit(self, request: RunRequest, check: Check | None = None) -> RunAccepted:
        """Accept a message; it is durable when this returns. `check` may refuse it, by its session, in the same unit.

        Raises:
            PolicyDenied: the send policy forbids it; asked for messages of people and programs only.
            IdempotencyConflict, SessionIdReplaced, Unavailable
        """
        self._check_open()
        if request.kind is RunKind.MESSAGE:
            check = self.guard.check if check is None else _both(self.guard.check, check)
        return await self._lanes.submit(request, check)

    def _check_open(self) -> None:
        if self.supervisor.is_halted:
            raise Unavailable("the gateway is without its database: send the message again soon", retryAfterMs=AWAY_MS)
        if not self.supervisor.is_open:
            raise ShuttingDown("the gateway is stopping: send the message again when it is back")

    async def take(self, arrival: Arrival) -> InboundTaken:
        """Handle an inbound message exactly once; what follows is durable when this returns.

        Raises:
            ShuttingDown, Unavailable: nothing was taken, and it may be sent again.
        """
        self._check_open()
        return await self._lanes.take(arrival)

    async def abort(self, key: str, run_id: str | None, *, expected_session_id: str | None = None) -> list[str]:
        """Stop the active run of a session, or the run named; returns the ids of those stopped.

        Raises:
            RunNotFound, SessionIdReplaced
        """
        stopped = await self._store.request_abort(key, run_id, expected_session_id=expected_session_id)
        return [run.id for run in stopped]

    async def inject(
        self, key: SessionKey, text: str, label: str | None, *, expected_session_id: str | None = None
    ) -> str:
        """Leave a note in a session; it starts no run. Returns the message id.

        Raises:
            SessionIdReplaced
        """
        note = Message(
            id=new_id(),
            role=Role.SYSTEM,
            content=text_content(text),
            timestamp=self._clock.now_ms(),
            provenance=Provenance(kind=ProvenanceKind.INTERNAL_SYSTEM, source_tool="chat.inject"),
            label=label,
        )
        await self._store.add_note(key, note, expected_session_id=expected_session_id)
        return note.id

    async def delete(self, key: SessionKey, *, expected_session_id: str | None = None) -> Session:
        """Archive a session, and return when that is done.

        Raises:
            SessionIdReplaced, SessionNotFound, MainSessionKept
        """
        archived = asyncio.Event()

        def on_event(event: Event) -> None:
            if isinstance(event, SessionChanged) and event.key == str(key) and event.reason == "delete":
                archived.set()

        unlisten = self.hub.listen(on_event, SessionChanged, elsewhere=True)
        try:
            session = await self._store.delete_session(key, expected_session_id=expected_session_id)
            if session.archived_at is not None:
                return session
            await archived.wait()
            now = await self._store.session(str(key))
            # What lives under the key may be another one by now.
            return session if now is None or now.session_id != session.session_id else now
        finally:
            unlisten()


def _both(first: Check, second: Check) -> Check:
    """Ask two checks, one after the other; the first gives the reason."""

    def check(session: Session) -> SendDecision | None:
        decision = first(session)
        second(session)
        return decision

    return check
