"""The runtime: puts lanes, runner, waits and events together, and offers what doors need of them.

Starting is recovery: queued runs wake their lanes, interrupted ones are resumed, all side by side. Only those in whose
very step the process has died before go last and one at a time, until each has committed a step or had its time, so
that the one that kills the process is found without blaming its neighbours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from backchannel.agents.gates import MODEL, Gates
from backchannel.agents.models import Models
from backchannel.agents.registry import Agents
from backchannel.config.schema import Config
from backchannel.core.contracts import Check, Clock, ToolSet
from backchannel.core.delivery.channels import Channels
from backchannel.core.facts import (
    AccountHeld,
    ApprovalChanged,
    DeliveryChanged,
    Fact,
    LaneFree,
    PairingChanged,
    PolicyShadowed,
    RunChanged,
    SessionChanged,
    TimerSet,
)
from backchannel.core.keys import SessionKey, normalise_agent_id
from backchannel.core.messages import Message, Provenance, ProvenanceKind, Role, text_content
from backchannel.core.policy.inbound import Arrival, InboundTaken
from backchannel.core.policy.send_policy import SendDecision
from backchannel.core.runs import NOBODY, RunAccepted, RunInterrupted, RunKind, RunRequest, RunState
from backchannel.core.sessions import Session
from backchannel.errors import InvalidRequest, ShuttingDown, Unavailable
from backchannel.runtime.approvals import Approvals
from backchannel.runtime.cluster.media import Media
from backchannel.runtime.cluster.member import ClusterMember, MemberParts
from backchannel.runtime.drafts import Drafts
from backchannel.runtime.events import Event, Hub, WaitStarted, log_failures, log_pairings
from backchannel.runtime.guard import SendGuard
from backchannel.runtime.holds import AccountHolds
from backchannel.runtime.lanes import RUN, Lanes, RunSlots
from backchannel.runtime.outbox import ChannelOutlets, Outbox
from backchannel.runtime.pictures import Pictures
from backchannel.runtime.retries import Retries
from backchannel.runtime.runner import Runner
from backchannel.runtime.timers import Timers, sleep_or_event
from backchannel.runtime.waits import Exchanges, Waits
from backchannel.runtime.watchdog import Watchdog
from backchannel.storage.ids import new_id
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

SUSPECT_ALONE_S = 30.0
"""How long a suspect that neither commits nor waits keeps the next one from going on."""
AWAY_MS = 1000
SIGN_OF_LIFE_S = 5.0
"""How often it is written that runs are at work: of what a crash takes, the time up to the last sign is known."""


class Runtime:
    """Everything that happens between a door and the store."""

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
    ) -> None:
        defaults = config.agents.defaults
        self.hub = Hub()
        self.watchdog = Watchdog(store)
        self.hub.listen(log_failures, RunChanged, DeliveryChanged)
        self.hub.listen(log_pairings, PairingChanged)
        self.retries = Retries(self.hub)
        self.guard = SendGuard(config.session.send_policy, store.scheme)
        self._store = store
        self._agents = agents
        self._clock = clock
        # The lanes are made below: they need the runner, which needs a way to give a slot back.
        self._approvals = Approvals(
            store,
            config.tools.approval,
            config.tools.approval_lives_ms,
            self.hub,
            lambda key, run_id: self._lanes.paused(key, run_id),
        )
        self.media = Media(store)
        asking = gates.gate(MODEL, defaults.max_concurrent, grows=False)
        self._runner = Runner(
            store, agents, models, tools, self._approvals, self.hub, clock, Pictures(self.media), asking
        )
        slots = RunSlots(gates.shares(defaults.max_concurrent), gates.shares(defaults.subagents.max_concurrent))
        self._lanes = Lanes(store, self._runner.work, slots, agents.is_awaited)
        gates.add(RUN, self._lanes)
        self._waits = Waits(store)
        holds = AccountHolds(clock)
        self._drafts = Drafts(store, channels, clock, holds, self.hub)
        self.outbox = Outbox(store, channels, clock, holds, self._drafts.settled)
        self._timers = Timers(store, clock, self.outbox.wake)
        store.deliver_to(ChannelOutlets(channels, self.guard), tells_failures=config.messages.failure_notice)
        self.exchanges = Exchanges(store, self._lanes, self._waits, self.hub, clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._suspicion = asyncio.Lock()
        self._suspects: set[str] = set()
        """Runs whose turn to go on alone is waited for."""
        self._is_open = False
        self._is_away = False
        """Whether it has no lease for now: the database does not answer, or others have taken it for dead."""
        self._reactions = self._reacting(holds)
        """Who does something about a fact, in order; whoever only watches listens to the hub."""
        self.member = self._make_member(config, channels, holds)
        """This gateway among others on the same database."""
        self.wait = self._waits.ended
        store.on_facts = self._on_facts

    def _reacting(self, holds: AccountHolds) -> Mapping[type, Sequence[Callable[[Any], None]]]:
        return {
            # Waits come before the lanes: a run that returns from a wait comes before queued ones.
            RunChanged: (self._waits.on_run, self._lanes.on_run, self._resume_suspect),
            LaneFree: (self._lanes.on_free,),
            DeliveryChanged: (self.outbox.on_delivery, self._timers.on_delivery),
            AccountHeld: (holds.on_held,),
            ApprovalChanged: (self._approvals.on_change,),
            TimerSet: (self._timers.on_timer,),
            PolicyShadowed: (self.guard.on_shadowed,),
        }

    def _make_member(self, config: Config, channels: Channels, holds: AccountHolds) -> ClusterMember:
        parts = MemberParts(
            config=config,
            store=self._store,
            agents=self._agents,
            channels=channels,
            hub=self.hub,
            lanes=self._lanes,
            waits=self._waits,
            approvals=self._approvals,
            outbox=self.outbox,
            drafts=self._drafts,
            timers=self._timers,
            holds=holds,
        )
        return ClusterMember(
            parts, resume=self._resume_interrupted, recover=self._recover, open_or_close=self._open_or_close
        )

    def _on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            for react in self._reactions.get(type(fact), ()):
                react(fact)
            self.hub.publish(fact)
        self.member.tell(facts)

    async def start(self) -> None:
        """Go on with everything that was accepted, for the agents that this process has."""
        self._is_open = True
        await self._remember_functions()
        await self.member.start()
        if self.member.is_alone:  # others may have work under way by the times that their rows have
            await self._store.reschedule_after_clock_set_back()
        await self._drafts.start()
        await self.outbox.start()
        await self._recover(self.member.own_agents())
        self.member.begin()
        self._timers.start()
        self.watchdog.start()
        self._spawn(self._record_signs_of_life())

    def _open_or_close(self, is_open: bool) -> None:
        self._is_open, self._is_away = is_open, not is_open
        if not is_open:
            self._suspects.clear()

    def agent_added(self, agent_id: str) -> None:
        """Go on with what was accepted for an agent that was registered after the start."""
        if self._is_open:
            agent = normalise_agent_id(agent_id)
            # Written before the agent can get a message: a run of it never is stored before its function is.
            self._spawn(self._resume_agent(agent, self._store.remember_function(agent)))

    async def _resume_agent(self, agent_id: str, remembered: asyncio.Future[None]) -> None:
        try:
            await remembered
            await self._recover({agent_id})
        except Unavailable:
            if not self._store.is_closed:
                raise
            log.debug("the gateway ends before it went on with an agent", agent=agent_id)  # the next start does

    async def forget_agent(self, agent_id: str) -> None:
        """Stop waiting for an agent's function: the agent is what the configuration says from now on.

        Raises:
            UnknownAgent: it is not configured, so it could not answer.
            InvalidRequest: no function is awaited for it.
        """
        agent = self._agents.get(agent_id)
        if not self._agents.is_awaited(agent.id):
            here = "it is a function of this program" if self._agents.is_function(agent.id) else "it never was one"
            raise InvalidRequest(f"no function is awaited for the agent {agent.id!r}: {here}", agentId=agent.id)
        self._agents.configured(agent.id)
        await self._store.forget_function(agent.id)
        self._agents.forget(agent.id)
        await self._recover({agent.id})

    async def _remember_functions(self) -> None:
        self._agents.remember(await self._store.function_agents())
        for agent_id in self._agents.functions():
            await self._store.remember_function(agent_id)
        waiting = await self._store.runs_waiting_for_functions(self._agents.functions())
        for agent_id, count in waiting.items():
            log.warning("runs wait for the program whose function is their agent", agent=agent_id, runs=count)

    async def _recover(self, agent_ids: set[str]) -> None:
        await self._resume_interrupted(agent_ids)
        for key in await self._store.sessions_with_queue():
            if SessionKey.stored(key).agent in agent_ids:
                self._lanes.wake(key)

    async def _resume_interrupted(self, agent_ids: set[str]) -> None:
        interrupted = [
            entry
            for entry in await self._store.interrupted_runs()
            if SessionKey.stored(entry.session_key).agent in agent_ids
        ]
        for entry in interrupted:
            if not entry.is_suspect:
                self._lanes.resume(entry.session_key, entry.run_id)
        suspects = [entry for entry in interrupted if entry.is_suspect and entry.run_id not in self._suspects]
        if suspects:
            self._spawn(self._resume_one_by_one(suspects))

    async def _record_signs_of_life(self) -> None:
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_S)
            if self._lanes.running:
                with suppress(Unavailable):  # a full disk: how much time a crash lost is less exactly known
                    await self._store.sign_of_life()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _resume_suspect(self, fact: RunChanged) -> None:
        """React to a suspect that has reached the head of its lane: it goes on when no other one is at work."""
        if fact.run.state is RunState.RUNNING and fact.run.fence == NOBODY:
            entry = RunInterrupted(fact.run.id, fact.run.session_key, fact.run.crashes, is_suspect=True)
            if self._is_open:
                self._spawn(self._resume_one_by_one([entry]))

    async def _resume_one_by_one(self, suspects: list[RunInterrupted]) -> None:
        self._suspects |= {entry.run_id for entry in suspects}
        try:
            for entry in suspects:
                async with self._suspicion:
                    await self._clear(entry)
        finally:
            self._suspects -= {entry.run_id for entry in suspects}

    async def _clear(self, suspect: RunInterrupted) -> None:
        """Resume a run, and return when it has committed a step, ended, waits for another run, or has had its time."""
        cleared = asyncio.Event()

        def on_event(event: Event) -> None:
            if isinstance(event, RunChanged) and event.run.id == suspect.run_id and not event.run.crashes:
                cleared.set()
            elif isinstance(event, WaitStarted) and event.run_id == suspect.run_id:
                cleared.set()  # the one it waits for may be a suspect too, whose turn must come

        unlisten = self.hub.listen(on_event)
        try:
            # It may have been aborted while it waited for its turn, or taken up already: its agent was added again.
            run = await self._store.run(suspect.run_id)
            if run is not None and run.crashes and run.fence != self._store.number:
                self._lanes.resume(suspect.session_key, suspect.run_id)
                await sleep_or_event(self._clock, SUSPECT_ALONE_S, cleared)
        finally:
            unlisten()

    async def close(self) -> None:
        """Stop working; what was accepted goes on at the next start."""
        self._is_open = self._is_away = False
        await self.member.close()
        self.watchdog.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._timers.close()
        await self._lanes.close()
        await self._drafts.close()
        await self.outbox.close()
        self._waits.close()

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
        if self._is_away:
            raise Unavailable("the gateway is without its database: send the message again soon", retryAfterMs=AWAY_MS)
        if not self._is_open:
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
