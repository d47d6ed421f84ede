"""Recovery: runs that an earlier process left go on.

Queued runs wake their lanes, and interrupted runs are resumed, all side by side. Suspects are runs in whose very step
the process has died before. They go last and one at a time, until each has committed a step or had its time. So the one
that kills the process is found without blaming its neighbours.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from backchannel.agents.registry import Agents
from backchannel.core.contracts import Clock
from backchannel.core.facts import RunChanged
from backchannel.core.keys import SessionKey
from backchannel.core.runs import NOBODY, RunInterrupted, RunState
from backchannel.errors import InvalidRequest, Unavailable
from backchannel.runtime.clocks import sleep_or_event
from backchannel.runtime.events import Event, Hub, WaitStarted
from backchannel.runtime.lanes import Lanes
from backchannel.runtime.supervisor import RESTART, Tasks
from backchannel.service import Reactions, Service, SupervisedLoop
from backchannel.storage.store import Store

log = structlog.get_logger(__name__)

SUSPECT_ALONE_S = 30.0
"""How long a suspect that neither commits nor waits keeps the next one from going on."""
SIGN_OF_LIFE_S = 5.0
"""How often it is written that runs are at work: of what a crash takes, the time up to the last sign is known."""


class Functions(Service):
    """Remembers which agents are functions of a program, so that their runs wait for that program."""

    def __init__(self, store: Store, agents: Agents) -> None:
        self._store = store
        self._agents = agents

    async def start(self) -> None:
        self._agents.remember(await self._store.function_agents())
        for agent_id in self._agents.functions():
            await self._store.remember_function(agent_id)
        waiting = await self._store.runs_waiting_for_functions(self._agents.functions())
        for agent_id, count in waiting.items():
            log.warning("runs wait for the program whose function is their agent", agent=agent_id, runs=count)

    async def forget(self, agent_id: str) -> str:
        """Stop waiting for an agent's function; returns the agent's id.

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
        return agent.id


class Recovery(Service):
    """Goes on with runs that were accepted before, and records that runs are at work."""

    name = "recovery"

    def __init__(self, store: Store, agents: Agents, lanes: Lanes, hub: Hub, clock: Clock) -> None:
        self._store = store
        self._agents = agents
        self._lanes = lanes
        self._hub = hub
        self._clock = clock
        self._kept = SupervisedLoop(self.name, clock, RESTART)
        self.kept = (self._kept,)
        self._tasks = Tasks()
        self._is_open = False
        self._suspicion = asyncio.Lock()
        self._suspects: set[str] = set()
        """Runs whose turn to go on alone is waited for."""

    def reactions(self) -> Reactions:
        return {RunChanged: self._resume_suspect}

    async def start(self) -> None:
        """Go on with everything that was accepted, for the agents that this process has."""
        self._is_open = True
        await self.recover(self._agents.ids_here())
        self._tasks.spawn(self._kept.keep(self._record_signs_of_life), self.name)

    async def halt(self) -> None:
        await self.close()

    async def close(self) -> None:
        self._is_open = False
        await self._tasks.cancel()

    def add(self, agent_id: str) -> None:
        """Go on with what was accepted for an agent that was registered after the start."""
        # Written before the agent can get a message: a run of it never is stored before its function is.
        self._tasks.spawn(self._resume_agent(agent_id, self._store.remember_function(agent_id)))

    async def _resume_agent(self, agent_id: str, remembered: asyncio.Future[None]) -> None:
        try:
            await remembered
            await self.recover({agent_id})
        except Unavailable:
            if not self._store.is_closed:
                raise
            log.debug("the gateway ends before it went on with an agent", agent=agent_id)  # the next start does

    async def recover(self, agent_ids: set[str]) -> None:
        """Resume the interrupted runs of agents, and wake the lanes with queued ones."""
        await self.resume_interrupted(agent_ids)
        for key in await self._store.sessions_with_queue():
            if SessionKey.stored(key).agent in agent_ids:
                self._lanes.wake(key)

    async def resume_interrupted(self, agent_ids: set[str]) -> None:
        """Resume the interrupted runs of agents, suspects last."""
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
            self._tasks.spawn(self._resume_one_by_one(suspects))

    async def _record_signs_of_life(self) -> None:
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_S)
            if self._lanes.running:
                with suppress(Unavailable):  # a full disk: how much time a crash lost is less exactly known
                    await self._store.sign_of_life()
            self._kept.recovered()

    def _resume_suspect(self, fact: RunChanged) -> None:
        """React to a suspect that has reached the head of its lane: it goes on when no other one is at work."""
        if fact.run.state is RunState.RUNNING and fact.run.fence == NOBODY and self._is_open:
            entry = RunInterrupted(fact.run.id, fact.run.session_key, fact.run.crashes, is_suspect=True)
            self._tasks.spawn(self._resume_one_by_one([entry]))

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

        unlisten = self._hub.listen(on_event)
        try:
            # It may have been aborted while it waited for its turn, or taken up already: its agent was added again.
            run = await self._store.run(suspect.run_id)
            if run is not None and run.crashes and run.fence != self._store.number:
                self._lanes.resume(suspect.session_key, suspect.run_id)
                await sleep_or_event(self._clock, SUSPECT_ALONE_S, cleared)
        finally:
            unlisten()
